/* A launcher among the others: opens the store of the job where that is this host's task, joins its rounds, and hears
 * what was decided. What it decides about its own ranks is left to launch.c. */
#ifndef LAUNCH_TEAM_H
#define LAUNCH_TEAM_H

#include <fsdp/launch.h>

#include "meet/client.h"
#include "meet/rounds.h"
#include "meet/secret.h"

typedef struct team {
    const fsdp_launch_config *config;
    endpoint at; /* of the store, as ranks and launchers reach it */
    secret key;
    char key_text[SECRET_MAX + 1], job[WIRE_NAME_BYTES], host[ROUNDS_HOST_BYTES], who[WIRE_NAME_BYTES];
    struct server *server; /* NULL: on another host, or another launcher's of this one */
    client *client;        /* NULL: not connected */
    rounds_policy policy;
    /* What a store that begins anew is told. */
    int last_round, n_restarts, first_world_size;
    int64_t id;                     /* drawn: tells this launcher from others that claim its number */
    bool waits;                     /* for a word of the store: it has joined, failed, or is done */
    double unanswered_since;        /* of its beats; 0: all are answered */
    bool (*give_up)(void *context); /* asked while looking for the store */
    void *context;
    struct job_report *report;
} team;

typedef enum team_word {
    TEAM_NOTHING,
    TEAM_ROUND, /* begin, at `place` */
    TEAM_STOP,
    TEAM_FINISHED,
    TEAM_EXAMINE, /* rank `examined` of this launcher, because of `stop.reason` */
    TEAM_LOST,    /* the store is gone, or owes an answer and says nothing */
} team_word;

typedef struct team_news {
    round_place place;
    round_stop stop;
    int examined;
} team_news;

/* Reads what the user gave. */
fsdp_status team_prepare(team *t, const fsdp_launch_config *config);
/* Opens or finds the store, and says that this launcher is ready for a round. One whose ranks have done their work only
 * looks, for a while, whether somebody wants them once more. */
fsdp_status team_join(team *t, bool is_done);
/* This host's address as the other nodes reach it; connected. */
void team_address(const team *t, char *text, size_t bytes);
int team_socket(const team *t);                /* -1: not connected */
team_word team_hear(team *t, team_news *news); /* never waits */
void team_fail(team *t, int round, const char *reason, int exit_code, round_final is_final);
void team_done(team *t, int round);
void team_beat(team *t, const wire_body *beats);
void team_leave(team *t); /* the store goes with the last of the others, or after a moment; legal when zeroed */

#endif
