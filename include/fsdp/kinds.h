/* Enums that the API shares with the layers beneath it, which do not see the headers where they are used. */
#ifndef FSDP_KINDS_H
#define FSDP_KINDS_H

typedef enum fsdp_optimizer_kind {
    FSDP_ADAMW,
    FSDP_ADAM,
    FSDP_SGD,
    FSDP_MUON,     /* weights of linear layers, heads left out; AdamW updates everything else */
    FSDP_ADAFACTOR /* T5's: second moments of matrices as rows and columns, no first ones */
} fsdp_optimizer_kind;

/* Over ranks (world.h) or over dimensions. */
typedef enum fsdp_reduction { FSDP_REDUCE_SUM, FSDP_REDUCE_MAX, FSDP_REDUCE_MIN } fsdp_reduction;

/* The memory that collectives between GPUs run on (world.h). */
typedef enum fsdp_comm_memory {
    FSDP_COMM_MEMORY_PLAIN,
    FSDP_COMM_MEMORY_SYMMETRIC,  /* NCCL's own, at one address on all ranks: a collective takes 4 to 6 multiprocessors
                                    where the links are a switch that sums */
    FSDP_COMM_MEMORY_COPY_ENGINE /* the same, and gathers within a host are copies, which take no multiprocessor */
} fsdp_comm_memory;

/* How sums of bf16 and fp16 values over GPUs are accumulated (world.h). */
typedef enum fsdp_reduce_accumulation {
    FSDP_ACCUMULATE_FP32,   /* in fp32, in rank order, rounded once: the bits of the CPU's */
    FSDP_ACCUMULATE_LIBRARY /* as NCCL does it: a ring rounds every partial sum */
} fsdp_reduce_accumulation;

/* How a checkpoint lies on disk (state.h). */
typedef enum fsdp_checkpoint_kind {
    FSDP_CKPT_SHARDED, /* a file per rank; any number of ranks loads it, with any strategy */
    FSDP_CKPT_FULL,    /* a Hugging Face folder and the optimizer's state; likewise. No rank holds it whole */
    FSDP_CKPT_LOCAL    /* a folder per rank, for disks that ranks do not share; the same ranks and layout load it */
} fsdp_checkpoint_kind;

#endif
