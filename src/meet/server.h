/* The store at a socket: listens, lets in who proves that it knows the job's secret, and carries messages to and from
 * the store, on a thread of its own. Strangers are few at a time, heard for a short while, and logged. */
#ifndef MEET_SERVER_H
#define MEET_SERVER_H

#include "meet/endpoint.h"
#include "meet/rounds.h"
#include "meet/secret.h"

typedef struct server server;

typedef struct server_config {
    endpoint at;
    bool anywhere; /* listen on all addresses of this host */
    const secret *key;
    const char *job;             /* whose clients may come */
    const rounds_policy *policy; /* NULL: ranks only */
    /* Hears WIRE_PART_WRITE and what follows it, and writes the answer; false: the message makes no sense. On the
     * server's thread. NULL: nobody does. */
    bool (*serve)(void *context, uint32_t kind, const void *body, size_t bytes, wire_body *answer);
    void *context;
} server_config;

/* Statuses as of endpoint_listen. The caller owns *out. */
fsdp_status server_open(const server_config *config, server **out);
const endpoint *server_endpoint(const server *s); /* with the port that was free */
/* Ends it, at most `linger` seconds after the last client was to go. NULL is legal. */
void server_close(server *s, double linger);

/* For tests. */
typedef struct server_counts {
    int clients, strangers; /* now */
    long admitted, refused; /* ever */
} server_counts;
server_counts server_count(server *s);

#endif
