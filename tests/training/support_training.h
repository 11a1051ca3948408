/* A small training run on forked ranks, the same for every strategy and world size: the global batch is fixed, each
 * rank takes its share. What comes out: the loss of every step and a hash of every bit of the final parameters. */
#ifndef TESTS_TRAINING_SUPPORT_H
#define TESTS_TRAINING_SUPPORT_H

#include <fsdp/lora.h>
#include <fsdp/optim.h>

enum { TRAINING_STEPS = 20, TRAINING_COUNTED = TRAINING_STEPS - 1, TRAINING_MAX_RANKS = 8 };

typedef enum training_model { TRAIN_LLAMA, TRAIN_T5, TRAIN_CNN, TRAIN_MODELS } training_model;

typedef struct training {
    training_model model;
    int ranks;
    fsdp_config config;  /* wrap is filled in */
    int micro_batches;   /* a step */
    int samples;         /* a micro-batch, over all ranks */
    const char *backend; /* NULL: shm, or self for one rank */
    const char *device;  /* NULL: cpu; "cuda": all ranks share the first GPU; "recording": shard/recording_device.h */
    bool comm_thread;
    int comm_ctas; /* of NCCL's collectives; 0: its own choice */
    fsdp_comm_memory comm_memory;
    fsdp_reduce_accumulation reduce_accumulation;
    bool plainly;       /* somebody listens to operations: no work is recorded */
    bool split_masters; /* on a recording device: bf16 masters as halves */
    bool sixteens;      /* LLaMA: without fp8, too, of dimensions that are multiples of 16 */
    bool packed;        /* LLaMA: rows hold several documents, cut anew in every sample */
    fsdp_optimizer_kind optimizer;
    const fsdp_optimizer_group *groups;
    int n_groups;
    float average;                /* decay of the average of the weights; 0: none */
    const fsdp_lora_config *lora; /* NULL: no adapters */
    fsdp_dtype state_dtype;       /* of the moments */
} training;

typedef struct training_result {
    double loss[TRAINING_STEPS], norm[TRAINING_STEPS];
    uint64_t hash, average_hash;
    int64_t shard_bytes, replica_bytes; /* received in those groups from the second step on: TRAINING_COUNTED steps */
    int launches;                       /* of graphs, on a recording device */
    int64_t memory;                     /* most that was held at once, by allocation hooks */
    /* What the plan says of one micro-batch of this rank. */
    int64_t planned_gathered, planned_reduced, planned_replica, planned_memory;
    int64_t planned_update; /* of the step that closes it */
} training_result;

training training_default(training_model model, int ranks);

/* Forks the ranks, runs, collects rank 0's result (all ranks' hashes are compared). False: a rank failed; its message
 * is on stderr. */
bool training_run(const training *t, training_result *out);
/* The same, with all ranks' results: all[t->ranks]. */
bool training_run_all(const training *t, training_result *all);

/* In a process that is already a rank (mpirun): the run itself. */
fsdp_status training_run_here(const training *t, training_result *out);

#endif
