/* The world: this process's place among the ranks, its device, and its connection to the others.
 *
 *     fsdp_world *world;
 *     FSDP_TRY(fsdp_world_open(NULL, &world));      // one process alone, or as many as `fsdp run` or torchrun started
 *     double right_and_all[2] = {right, all};
 *     FSDP_TRY(fsdp_world_all_reduce(world, NULL, FSDP_REDUCE_SUM, right_and_all, 2));
 *     if (fsdp_world_rank(world) == 0)
 *         printf("accuracy %g\n", right_and_all[0] / right_and_all[1]);
 *     fsdp_world_close(world); */
#ifndef FSDP_WORLD_H
#define FSDP_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/kinds.h>
#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_world fsdp_world;

typedef struct fsdp_world_config {
    size_t size;
    const char *device;   /* "cpu", "cuda", or "auto": cuda if there is one */
    const char *products; /* how the CPU multiplies matrices: "auto", "onednn", "amx", "avx512", "portable" */
    const char *backend;  /* "self", "shm", "mpi", "ucx", "nccl"; NULL: chosen for the job */
    int threads;          /* 0: OMP_NUM_THREADS, otherwise this rank's share of the cores */
    double comm_timeout;  /* maximum seconds of any single wait */
    bool comm_thread;     /* collectives run on a thread of their own even if no core is free for it */
    int64_t comm_ctas; /* GPUs: the most thread blocks, each on a multiprocessor, of a collective; 0: 16 on Hopper, else
                          NCCL's */
    fsdp_comm_memory comm_memory;                 /* GPUs: the memory that collectives run on */
    fsdp_reduce_accumulation reduce_accumulation; /* GPUs: of sums of bf16 and fp16 values */
} fsdp_world_config;

#define FSDP_WORLD_CONFIG_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_world_config), .device = "auto", .products = "auto", .comm_timeout = 600                   \
    }

/* Reads rank and world size from the environment (with the names of torchrun, Slurm or Open MPI; without any, the world
 * is one rank) and meets the other ranks. `config` NULL means defaults. */
FSDP_API fsdp_status fsdp_world_open(const fsdp_world_config *config, fsdp_world **out);
/* Call it after everything that uses the world is freed. NULL is legal. */
FSDP_API void fsdp_world_close(fsdp_world *w);

/* This process's rank, from 0. */
FSDP_API int fsdp_world_rank(const fsdp_world *w);
/* Number of ranks. */
FSDP_API int fsdp_world_size(const fsdp_world *w);
/* This process's rank on its host, from 0. */
FSDP_API int fsdp_world_local_rank(const fsdp_world *w);
/* Threads that this rank computes with. */
FSDP_API int fsdp_world_threads(const fsdp_world *w);
FSDP_API const char *fsdp_world_device(const fsdp_world *w);      /* "cpu", "cuda" */
FSDP_API const char *fsdp_world_description(const fsdp_world *w); /* the device in words */
/* What collectives go through: "self", "shm", "mpi", "ucx", "nccl". */
FSDP_API const char *fsdp_world_backend(const fsdp_world *w);

/* ---- Host values among ranks: metrics, decisions, a user's own logic ----
 *
 * Every rank of the group calls these in the same order, each waits for the others (comm_timeout at most), and ranks
 * that call different things are told so. `group` NULL means all ranks. */

typedef struct fsdp_group fsdp_group;

/* Collective over all ranks: those that give the same color form a group, ordered by key, then by rank. `name` is for
 * messages. At most 12 at a time beside those of the models. */
FSDP_API fsdp_status fsdp_group_split(fsdp_world *w, const char *name, int color, int key, fsdp_group **out);
FSDP_API void fsdp_group_free(fsdp_group *group); /* before the world is closed; NULL is legal */
/* This process's rank in the group. */
FSDP_API int fsdp_group_rank(const fsdp_group *group);
/* Number of ranks of the group. */
FSDP_API int fsdp_group_size(const fsdp_group *group);
/* The world's rank of the group's rank `rank`. */
FSDP_API int fsdp_group_world_rank(const fsdp_group *group, int rank);

/* Returns when every rank of the group has called it. Collective. */
FSDP_API fsdp_status fsdp_world_barrier(fsdp_world *w, fsdp_group *group);
/* Copies `bytes` of data from the group's rank `root` to all its ranks. */
FSDP_API fsdp_status fsdp_world_broadcast(fsdp_world *w, fsdp_group *group, int root, void *data, size_t bytes);
/* Reduces values[i] over all ranks, in place; sums run in rank order, so all ranks get the same bits. */
FSDP_API fsdp_status fsdp_world_all_reduce(fsdp_world *w, fsdp_group *group, fsdp_reduction reduction, double *values,
                                           int64_t n);
/* The same for whole numbers. */
FSDP_API fsdp_status fsdp_world_all_reduce_i64(fsdp_world *w, fsdp_group *group, fsdp_reduction reduction,
                                               int64_t *values, int64_t n);
/* Collects `bytes` from every rank, the same number from each, in rank order: `all` has room for bytes times the
 * group's size. */
FSDP_API fsdp_status fsdp_world_all_gather(fsdp_world *w, fsdp_group *group, const void *mine, size_t bytes, void *all);

/* Ends the job on all ranks with this rank's last error: their waits end at once. NULL is legal. */
FSDP_API void fsdp_world_abort(fsdp_world *w);

/* A string for --version: the CPU, and how it multiplies matrices. */
FSDP_API fsdp_status fsdp_describe_cpu(const char *products, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
