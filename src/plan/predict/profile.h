/* What a device's kernels and links take: timings by kernel and shape, measured by `fsdp bench kernel --profile` and
 * kept in a file, or one of those that the library brings along. Predictions are made of these. */
#ifndef PLAN_PREDICT_PROFILE_H
#define PLAN_PREDICT_PROFILE_H

#include "device/kernel_work.h"
#include "shard/plan/script.h"

/* One kernel, one shape. */
typedef struct profile_row {
    kernel_work work;
    double seconds; /* of a call */
} profile_row;

/* One collective over `ranks` ranks of one host, measured. */
typedef struct profile_collective {
    script_collective which;
    int ranks;
    double bytes; /* of the whole buffer */
    double seconds;
    bool alone; /* measured by itself, not in a step */
} profile_collective;

/* A workload's steps on one rank, beside the sum of its kernels, each timed where it runs. */
typedef struct profile_step {
    double seconds, kernels; /* of a step; of all its kernels */
    double calls;            /* of kernels */
} profile_step;

/* Between ranks, where nothing was measured. */
typedef struct profile_links {
    double inside, outside; /* bytes a second: of a rank within its node; of a rank's own way out of it */
    double hop_inside, hop_outside, start; /* seconds: from neighbour to neighbour; before the first */
} profile_links;

/* What surrounds kernels, in seconds. */
typedef struct profile_launch {
    double gap;        /* from one kernel of a graph to the next, beyond what the rows contain */
    double graph;      /* the host, to start a graph */
    double kernel;     /* the host, to start a kernel outside of graphs, and all it does between two of them */
    double collective; /* the host, to start a collective */
    double step;       /* the host, before the first kernel of a step and after its last */
} profile_launch;

typedef struct kernel_profile {
    char device[256]; /* as the device describes itself */
    char origin[128]; /* where the profile comes from: a path, or its name */
    int ranks;        /* that were measured side by side on one host */
    int threads;      /* of each */
    bool streams; /* the device works by itself on what the host gives it; otherwise kernels run in the host's thread */
    bool overlaps;                 /* collectives go on while the rank computes */
    double slowdown;               /* of kernels while a collective runs, 0 .. 1 */
    double busy;                   /* how much longer kernels take in a graph than where each is timed; 0: as long */
    double compute, memory;        /* how much faster this device is than the one that was measured; 1: it is the one */
    double host_copy, host_update; /* bytes a second: between host and device; of an update in host memory */
    double host_shared;            /* the same of an update that the device shares; 0: not measured */
    double host_beside;            /* the share of its speed that an update has while gradients leave; 0: all of it */
    profile_links links;
    profile_launch launch;
    profile_row *rows;
    int n_rows, rows_capacity;
    profile_step *steps; /* that `busy` and launch.gap follow from */
    int n_steps, steps_capacity;
    profile_collective *collectives;
    int n_collectives, collectives_capacity;
} kernel_profile;

/* A path, or a name that is one of the library's (h200, h100, a100). FSDP_ERR_INPUT for what is neither, and for a file
 * that is damaged, which is not used in part. Ended by profile_clear. */
fsdp_status profile_open(const char *name, kernel_profile *out);
void profile_clear(kernel_profile *p); /* legal on zeros */

fsdp_status profile_write(const kernel_profile *p, const char *path);

/* A row of the same work is replaced. */
fsdp_status profile_add(kernel_profile *p, const kernel_work *work, double seconds);
fsdp_status profile_add_collective(kernel_profile *p, const profile_collective *c);

fsdp_status profile_add_step(kernel_profile *p, const profile_step *s);
/* Finds `busy` and launch.gap, with which the steps come out best. `start` is the gap between kernels that do nothing:
 * what events add to those. calibrate.c */
void profile_calibrate(kernel_profile *p, double start);

/* Where `fsdp bench kernel --profile` leaves the profile of this device with so many ranks side by side, in the user's
 * cache folder, and runs look for it. malloc'd; NULL: nobody says where the cache is. */
char *profile_default_path(const char *described, int ranks);

typedef enum profile_source {
    PROFILE_MEASURED,     /* this kernel at this shape */
    PROFILE_INTERPOLATED, /* this kernel at other shapes */
    PROFILE_ESTIMATED,    /* other kernels that move as many bytes, or multiply */
    PROFILE_SOURCES
} profile_source;

/* Seconds of one call on the compute stream; *source (may be NULL): what they rest on. */
double profile_seconds(const kernel_profile *p, const kernel_work *work, profile_source *source);

/* Seconds of a collective of so many bytes over `ranks` ranks, `stride` apart, with so many of the job's ranks on a
 * node; of one that is `direct`, without the kernel that sums. */
double profile_collective_seconds(const kernel_profile *p, const script_item *collective, int ranks_per_node);

#endif
