/* A case run by the library: on this process's rank, under one of the many settings that must not change its numbers.
 */
#ifndef TESTS_DIFFERENTIAL_ENGINE_H
#define TESTS_DIFFERENTIAL_ENGINE_H

#include "differential/support_case.h"

/* Where a state that was saved comes back to. */
typedef enum resume_how {
    RESUME_ANOTHER, /* a model of other settings */
    RESUME_SAME,    /* the same model */
    RESUME_LATER    /* likewise; it was saved in the background of one more step, which is made again */
} resume_how;

/* What changes nothing where updates may have begun. */
typedef enum peek { PEEK_NONE, PEEK_READ, PEEK_EVALUATE, PEEK_UNSHARD, PEEK_WRITE, PEEK_KINDS } peek;

/* Settings that change when and where things happen. */
typedef struct variant {
    fsdp_strategy strategy;
    int shard_group_size; /* hybrid */
    bool forward_prefetch;
    fsdp_prefetch backward_prefetch;
    int gather_buffers;
    fsdp_checkpointing checkpointing;
    bool recompute_cheap, offload_activations;
    bool split, ahead; /* of the update of offloaded units: shared by the device, made before the norm is known */
    int offload;       /* 0: none, 1: all units, 2: block 0 only */
    int resident;      /* percent of those that stay on the device */
    fsdp_fp8_weights fp8_weights;
    peek peeks;      /* between the last micro-batch and the step */
    bool rate_first; /* the rate of a step is set before its micro-batches */
    int resumes;     /* behind this step the state is saved, and comes back; -1: never */
    resume_how how;
    bool full_save;      /* of kind full */
    uint64_t resumed_as; /* in another model: seed of its settings */
    uint64_t policies;   /* not 0: strategy, resharding, checkpointing and offload are drawn for every unit from this */
    uint64_t shaken;     /* not 0: seed of the delays, and memory that is given up is filled with NaN */
} variant;

variant variant_plain(void);
variant variant_draw(const test_case *c, uint64_t *state);
void variant_print(const variant *v, char *text, size_t bytes);
/* Whether this case and these settings promise the bits of variant_plain. */
bool variant_keeps_bits(const test_case *c, const variant *v);

/* Collective. Lists the numbers that came out; ENTRY_SEEN are this rank's own. States are saved in `folder`. */
fsdp_status engine_run(fsdp_world *w, const test_case *c, const variant *v, const char *folder, outcome *out);

#endif
