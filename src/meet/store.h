/* The state of the rendezvous: named values, counters, gathers and barriers of those who came, and messages between
 * them. Plain bookkeeping: how messages get here is left to server.c, what launchers agree on to rounds.c.
 *
 * Clients sit in circles (the ranks of a round, say), each at a seat with a number of its own. Everything is bounded:
 * names, values, how many there are, requests (one a client at a time). What breaks the rules is not answered; the
 * client that sent it is dropped. */
#ifndef MEET_STORE_H
#define MEET_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "meet/wire.h"

enum { STORE_MAX_SEATS = 1 << 16, STORE_MAX_VALUES = 1 << 14, STORE_MAX_BYTES = 256 << 20 };

typedef struct store store;
typedef struct store_circle store_circle;

/* One client that has proved itself. The first three fields are for everybody to read, `node` is for rounds.c. */
typedef struct store_guest {
    void *link;                /* the server's */
    char who[WIRE_NAME_BYTES]; /* "rank 3", "node 1 (host)", for messages */
    int seat;
    struct round_node *node;
    store_circle *circle; /* NULL: a launcher */
    /* The request that waits for an answer; 0: none. */
    uint32_t asks;
    double deadline, seconds;
    struct store_value *value;
    struct store_gather *gather;
    struct store_guest *next_waiting;    /* for the same value */
    struct store_guest *next, *previous; /* of all */
} store_guest;

typedef struct store_introduction {
    char circle[WIRE_NAME_BYTES]; /* "" : a launcher */
    int32_t seat, seats;
    char who[WIRE_NAME_BYTES];
} store_introduction;

struct rounds_policy;

/* `send` queues a message for a guest, or, for WIRE_NOTHING, hangs up; it must not call the store. policy: of rounds.h,
 * borrowed; NULL: no launchers are admitted. NULL: no memory. */
typedef void (*store_send)(void *context, store_guest *g, uint32_t kind, const void *body, size_t bytes);
store *store_new(store_send send, void *context, const struct rounds_policy *policy);
void store_free(store *s); /* the guests too; NULL is legal */

/* FSDP_ERR_INPUT, with the reason, when there is no such seat or it is taken. */
fsdp_status store_admit(store *s, const store_introduction *who, void *link, store_guest **out);
/* A message of a guest; false: it makes no sense, drop the guest. */
bool store_hear(store *s, store_guest *g, uint32_t kind, const void *body, size_t bytes, double now);
void store_lose(store *s, store_guest *g, bool said_goodbye, double now); /* g is gone then */
void store_tick(store *s, double now);                                    /* looks for deadlines that have passed */
int store_count(const store *s);                                          /* guests */

/* For rounds.c. */
void store_tell(store *s, store_guest *g, uint32_t kind, const wire_body *body);
void store_publish(store *s, const char *name, const void *value, size_t bytes);

#endif
