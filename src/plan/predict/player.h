/* Plays a step event by event: a compute stream, a stream of collectives, one each way between host and device, the
 * host's thread, and its optimizer. Whoever waits for somebody stands still until then. */
#ifndef PLAN_PREDICT_PLAYER_H
#define PLAN_PREDICT_PLAYER_H

#include "plan/predict/profile.h"

enum { PLAYED_COLLECTIVES = 3 };

typedef struct played_step {
    double seconds;
    double forward, backward, close; /* the step's parts on the compute stream, as one follows the other */
    double compute;                  /* kernels at work */
    double communication;            /* collectives at work */
    double exposed;                  /* compute stood still for them */
    double exposed_by[PLAYED_COLLECTIVES];
    double transfer_wait;              /* compute stood still for copies to and from the host, and for updates there */
    double launch_wait;                /* compute stood still because the host had nothing for it yet */
    double slowed;                     /* kernels took longer because a collective ran */
    double by_source[PROFILE_SOURCES]; /* compute, by what its times rest on */
} played_step;

/* A step in its steady state: the first ones fill the streams. */
fsdp_status player_play(const plan_script *s, const kernel_profile *p, int ranks_per_node, played_step *out);

#endif
