/* A connection to the store. Requests wait for their answer, and end at their timeout; messages that come meanwhile are
 * kept for client_receive. One thread at a time may ask and receive; any may send. */
#ifndef MEET_CLIENT_H
#define MEET_CLIENT_H

#include "meet/endpoint.h"
#include "meet/line.h"
#include "meet/secret.h"
#include "meet/store.h"

typedef struct client client;

typedef struct client_config {
    const endpoint *candidates; /* the store is at one of them, now or soon */
    int n_candidates;
    const secret *key;
    const char *job;
    store_introduction who;
    double timeout_seconds;         /* for finding it */
    double welcome_seconds;         /* for being let in once it is found; 0: 20 */
    bool (*give_up)(void *context); /* asked between attempts; optional */
    void *context;
} client_config;

/* FSDP_ERR_TIMEOUT: nobody was there; FSDP_ERR_PEER: refused, or whoever is there does not know the secret. */
fsdp_status client_open(const client_config *config, client **out);
void client_close(client *c);       /* says goodbye; NULL is legal */
int client_socket(const client *c); /* for poll */

fsdp_status client_set(client *c, const char *name, const void *value, size_t bytes);
/* Waits until somebody has set it. At most `room` bytes; *bytes is how many there are. */
fsdp_status client_get(client *c, const char *name, double seconds, void *value, size_t room, size_t *bytes);
fsdp_status client_add(client *c, const char *name, int64_t amount, int64_t *sum);

/* Everybody's values in the order of seats: part i is bytes[i] long and lies at offsets[i] of data. free() the three
 * through client_parts_free. */
typedef struct client_parts {
    char *data;
    size_t *offsets, *bytes;
    int n;
} client_parts;
fsdp_status client_gather(client *c, const char *name, double seconds, const void *mine, size_t bytes,
                          client_parts *out);
void client_parts_free(client_parts *p);
/* Any request; takes the body, names itself `name` in errors. *answer is what was asked for, valid until the next
 * message is received. */
fsdp_status client_ask(client *c, uint32_t kind, wire_body *body, double seconds, const char *name,
                       wire_reader *answer);
fsdp_status client_barrier(client *c, const char *name, double seconds);

/* Queues a message and sends what the socket takes. Any thread. */
void client_send(client *c, uint32_t kind, const void *body, size_t bytes);
/* Waits at most that long for what is queued; 0: not at all. Any thread. */
void client_flush(client *c, double seconds);
/* The next message that is no answer; body is valid until the next call. Reads only what is there. */
line_state client_receive(client *c, uint32_t *kind, const void **body, size_t *bytes);

#endif
