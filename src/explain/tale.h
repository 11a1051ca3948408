/* The records of all ranks as one tale: scenes in the order in which they happened, with the state of every unit and
 * the memory of every rank after each. */
#ifndef EXPLAIN_TALE_H
#define EXPLAIN_TALE_H

#include <jansson.h>

#include <fsdp/explain.h>

#include "explain/record.h"

enum { TALE_UNITS = 16, TALE_SENTENCE = 512 };

typedef enum scene_kind {
    SCENE_STEP,
    SCENE_GATHER,
    SCENE_COMPUTE,
    SCENE_RELEASE,
    SCENE_BACKWARD,
    SCENE_GRADIENTS, /* room for a full gradient is taken */
    SCENE_REDUCE,
    SCENE_REDUCED, /* and given back */
    SCENE_OPTIMIZER,
    SCENE_LOSS,
} scene_kind;

typedef struct scene {
    scene_kind kind;
    int step; /* from 1 */
    int unit; /* -1: none in particular */
    bool backward, all_reduce;
    int operations;
    double loss;
    int64_t bytes[FSDP_EXPLAIN_RANKS];     /* received, taken or given back by each rank */
    int64_t gathered[FSDP_EXPLAIN_RANKS];  /* full parameters that each rank holds after it */
    int64_t gradients[FSDP_EXPLAIN_RANKS]; /* full gradients likewise */
    char parameters[TALE_UNITS + 1];       /* a letter for each unit: Sharded, Gathering, Full */
    char sums[TALE_UNITS + 1];             /* of gradients: None, Full, Reducing, Sharded */
} scene;

typedef struct tale_unit {
    char name[RECORD_NAME];
    int64_t parameters;
    size_t gathered_bytes, gradient_bytes;
    int64_t shard_bytes[FSDP_EXPLAIN_RANKS];
} tale_unit;

typedef struct tale {
    fsdp_strategy strategy;
    int n_ranks, group; /* ranks among which a unit is sharded */
    workload work;
    int64_t n_parameters;
    int n_units, n_scenes, capacity;
    tale_unit units[TALE_UNITS];
    memory_plan plans[FSDP_EXPLAIN_RANKS];
    int64_t taken[FSDP_EXPLAIN_RANKS];
    int64_t planned[FSDP_EXPLAIN_RANKS];
    scene *scenes;
} tale;

/* `dev` is for the plan of what stays in memory. Ended by tale_clear. */
fsdp_status tale_make(tale *t, fsdp_strategy strategy, const rank_record *records, int n_ranks, device *dev);
void tale_clear(tale *t); /* legal on zeros */

/* What a rank holds over the whole step: its shards, their gradients, the optimizer's state. */
int64_t tale_state_bytes(const tale *t, int rank);
/* That and what it has gathered and not reduced yet, after the scene. */
int64_t tale_held(const tale *t, const scene *s, int rank);
/* The most that rank 0 holds after any scene. */
int64_t tale_peak(const tale *t);
/* What the rank received in a step's gathers, or in its reductions. */
int64_t tale_received(const tale *t, scene_kind kind, int rank);

/* A scene in a sentence or two, from rank 0's place. */
const char *tale_sentence(const tale *t, const scene *s, const char *language, char *text);

/* The tale as text, and as data for a page. */
fsdp_status tale_text(const tale *t, const char *language, char **text);
json_t *tale_json(const tale *t, const char *language);

#endif
