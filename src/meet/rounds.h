/* What the launchers of a job agree on: which nodes take part in a round, who has which ranks, when a round has failed,
 * whether another follows, and when all is done. A round begins when every node has come, or, where fewer are enough,
 * when no other has come for a while. Costs n log n for n nodes: each hears of its own place, and the list of members
 * is published once, as the value "round.N".
 *
 *     launcher to store                               store to launcher
 *     JOIN      I am here, with so many ranks         ROUND     begin: your ranks are these
 *     FAIL      a rank of mine failed, so             STOP      end your ranks, because; come again, or not
 *     DONE      all my ranks have ended well          FINISHED  so have all others
 *     BEAT      where my ranks are                    EXAMINE   this rank of yours hangs: say where, and end it
 *                                                     BEAT      I have heard yours
 *
 * Either side may fall silent without its connection breaking: a process that is stopped, a host that swaps. Whoever
 * waits for a word of the other then waits for rounds_patience() and no longer. */
#ifndef MEET_ROUNDS_H
#define MEET_ROUNDS_H

#include <fsdp/status.h>

#include "meet/store.h"

enum { ROUNDS_MAX_NODES = 1 << 16, ROUNDS_MAX_RANKS = 4096, ROUNDS_HOST_BYTES = 128 };

typedef struct rounds_policy {
    int min_nodes, max_nodes;
    double last_call_seconds;    /* how long the nodes that are enough wait for one more */
    double join_timeout_seconds; /* how long they wait for being enough */
    int max_restarts;
    double restart_window_seconds; /* restarts longer ago do not count; 0: all count */
    double watchdog_seconds;       /* a rank without progress for so long hangs; 0: nobody looks */
    /* Every reason for which a round ended, with its number and what followed; on the store's thread; optional. */
    void (*report)(void *context, int round, const char *reason, const char *what_follows);
    void *context;
} rounds_policy;

/* What a launcher says of itself in a JOIN. */
typedef struct round_join {
    int32_t node_rank; /* -1: in the order of coming */
    int32_t n_ranks;
    int32_t min_nodes, max_nodes; /* must be everybody's */
    int32_t last_round;           /* the newest it has been in; -1: none */
    int32_t n_restarts;           /* it knows of: a store that begins anew goes on from there */
    int32_t first_world_size;     /* the same; 0: none yet */
    int32_t master_port;          /* of its first rank, if that is rank 0 */
    int64_t launcher;             /* drawn when it started: one that comes again takes its own place; 0: none */
    char host[ROUNDS_HOST_BYTES]; /* name, for messages */
    char address[ROUNDS_HOST_BYTES];
} round_join;

/* A launcher's place in a round. */
typedef struct round_place {
    int32_t round, n_restarts;
    int32_t node, n_nodes; /* its number among the nodes */
    int32_t first_rank, world_size;
    int32_t first_world_size; /* of the job's first round */
    int32_t master_port;
    char master_address[ROUNDS_HOST_BYTES];
} round_place;

typedef enum round_verdict {
    ROUND_AGAIN, /* join again */
    ROUND_GROWS, /* a node came: ranks may save first, then join again */
    ROUND_OVER,  /* no other round follows */
} round_verdict;

/* Whether another round may follow a failure. Ranks that are stopped with their round end as if they had been asked to,
 * and may take others with them before those are told: once a round is over, what its ranks ended with ends nothing. */
typedef enum round_final { FINAL_NO, FINAL_RANK, FINAL_LAUNCHER } round_final;

typedef struct round_failure {
    int32_t round;
    int32_t exit_code; /* what the launcher would exit with */
    int32_t is_final;  /* round_final: asked for, or hopeless */
    char reason[WIRE_TEXT_BYTES];
} round_failure;

typedef struct round_stop {
    int32_t round, verdict, exit_code;
    char reason[WIRE_TEXT_BYTES];
} round_stop;

/* Bodies of the messages. The readers are false on anything malformed. */
void round_join_put(wire_body *b, const round_join *j);
bool round_join_get(wire_reader *r, round_join *j);
void round_place_put(wire_body *b, const round_place *p);
bool round_place_get(wire_reader *r, round_place *p);
void round_failure_put(wire_body *b, const round_failure *f);
bool round_failure_get(wire_reader *r, round_failure *f);
void round_stop_put(wire_body *b, const round_stop *s);
bool round_stop_get(wire_reader *r, round_stop *s);

/* A BEAT is the round, the number of ranks and, for each: beats (0: it says nothing), step, whether it waits for
 * others, and its place in words. An EXAMINE is the number of a rank of the launcher, and why. */
enum { ROUNDS_PLACE_BYTES = 320 };

/* How long silence is borne where an answer is due: TCP notices a cut network within 15 s, and nobody who gave all
 * launchers less time than that to come wants to wait longer for one. */
double rounds_patience(double join_timeout_seconds);

/* The store's side. */
typedef struct rounds rounds;
rounds *rounds_new(store *s, const rounds_policy *policy); /* NULL: no memory */
void rounds_free(rounds *r);                               /* NULL is legal */
bool rounds_hear(rounds *r, store_guest *g, uint32_t kind, wire_reader *body, double now);
void rounds_lose(rounds *r, store_guest *g, bool said_goodbye, double now); /* a guest with a node */
void rounds_tick(rounds *r, double now);

#endif
