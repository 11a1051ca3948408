/* One optimizer step of a plan as a list of what happens, in the order in which a rank starts it: kernels with their
 * shapes, collectives with their bytes, transfers to and from the host. Taken from the very program and schedule that a
 * job would run, by running them on a device that only notes. Says nothing of time: plan/predict plays it. */
#ifndef SHARD_PLAN_SCRIPT_H
#define SHARD_PLAN_SCRIPT_H

#include <fsdp/optim.h>

#include "device/kernel_work.h"
#include "tensor/program.h"

typedef enum script_kind {
    SCRIPT_WORK,       /* a kernel, a copy or a clear on the compute stream */
    SCRIPT_LAUNCH,     /* the host gives the device what follows, up to the next launch; as one graph where `graph` */
    SCRIPT_COLLECTIVE, /* starts, after what compute has done so far; `slot` is its name */
    SCRIPT_WAIT,       /* compute waits for the collective or transfer of that slot */
    SCRIPT_OUT,        /* a copy to the host starts, after what compute has done so far and collective `after` */
    SCRIPT_IN,         /* a copy from the host starts, likewise */
    SCRIPT_UPDATE,     /* the host's optimizer updates a unit, when the host has come here and `after` is done; nothing
                          where an update ahead of this one was begun in time */
    SCRIPT_RETURN,     /* a copy of what that update wrote, back to the device */
    SCRIPT_SYNC,       /* the host waits for compute */
} script_kind;

typedef enum script_collective { SCRIPT_ALL_GATHER, SCRIPT_REDUCE_SCATTER, SCRIPT_ALL_REDUCE } script_collective;

typedef struct script_item {
    script_kind kind;
    bool graph;      /* of LAUNCH */
    bool backward;   /* of LAUNCH: the program's backward begins here or has begun */
    int work;        /* of WORK, and of a collective that is `direct` its sum: place in `works` */
    int slot, after; /* -1: none */
    int unit;        /* -1: none */
    script_collective collective;
    int ranks, stride; /* of the group, and how far its neighbours are apart */
    double bytes;      /* of a collective: of the whole buffer */
    double received;   /* of a collective: what this rank receives, as comm counts it */
    bool direct;       /* of a collective: ranks send to those who sum (comm_sums_directly) */
    bool ahead;        /* of UPDATE: made before the host comes to the close, or not at all */
} script_item;

/* Items first .. end-1, so many times. */
typedef struct script_section {
    int first, end;
    int64_t times;
} script_section;

enum { SCRIPT_SECTIONS = 4 };

typedef struct plan_script {
    kernel_work *works; /* each different one once */
    int n_works, works_capacity;
    script_item *items;
    int n_items, items_capacity;
    script_section sections[SCRIPT_SECTIONS]; /* micro-batches, and the close of the step */
    int n_sections;
    int n_slots, n_units;
    bool alone;          /* one rank: nothing but the compute stream takes part */
    bool shares_updates; /* those in host memory, with the device */
} plan_script;

struct fsdp_model;
struct schedule;

/* The optimizer, as far as its work depends on it. */
typedef struct script_optimizer {
    fsdp_optimizer_kind kind;
    int numbers, halves; /* that it keeps of a parameter, and those of them that have 16 bits */
} script_optimizer;

struct comm_config;

/* Fills in *out, which must be zeros or cleared, for a step of so many micro-batches over such a link. Points the
 * model's parameters at memory that is not there: it may only be planned with. */
fsdp_status plan_script_take(plan_script *out, struct fsdp_model *m, program *p, const struct schedule *s,
                             const struct comm_config *link, int64_t micro_batches, script_optimizer optimizer);
void plan_script_clear(plan_script *s); /* legal on zeros */

/* For who writes one by hand. */
fsdp_status plan_script_add(plan_script *s, script_item item);
fsdp_status plan_script_add_work(plan_script *s, const kernel_work *work);

#endif
