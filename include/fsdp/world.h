/* The world: this process's place among the ranks, its device, and its connection to the others. */
#ifndef FSDP_WORLD_H
#define FSDP_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_world fsdp_world;

typedef struct fsdp_world_config {
    size_t size;
    const char *device;   /* "cpu", "cuda", or "auto": cuda where there is one */
    const char *products; /* how the CPU multiplies matrices: "auto", "onednn", "amx", "avx512", "portable" */
    const char *backend;  /* "self", "shm", "mpi", "nccl"; NULL: what fits */
    int threads;          /* 0: OMP_NUM_THREADS, else this rank's share of the cores */
    double comm_timeout;  /* seconds that any single wait may take */
    bool comm_thread;     /* collectives run on a thread of their own even when cores are scarce */
} fsdp_world_config;

#define FSDP_WORLD_CONFIG_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_world_config), .device = "auto", .products = "auto", .comm_timeout = 600                   \
    }

/* Reads rank and world size from the environment (torchrun's, Slurm's or Open MPI's names; one rank without) and meets
 * the other ranks. config may be NULL: defaults. */
FSDP_API fsdp_status fsdp_world_open(const fsdp_world_config *config, fsdp_world **out);
/* After everything that was built on it is freed. NULL is legal. */
FSDP_API void fsdp_world_close(fsdp_world *w);

FSDP_API int fsdp_world_rank(const fsdp_world *w);
FSDP_API int fsdp_world_size(const fsdp_world *w);
FSDP_API int fsdp_world_local_rank(const fsdp_world *w);
FSDP_API int fsdp_world_threads(const fsdp_world *w);
FSDP_API const char *fsdp_world_device(const fsdp_world *w);      /* "cpu", "cuda" */
FSDP_API const char *fsdp_world_description(const fsdp_world *w); /* the device in words */
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
FSDP_API int fsdp_group_rank(const fsdp_group *group);
FSDP_API int fsdp_group_size(const fsdp_group *group);
FSDP_API int fsdp_group_world_rank(const fsdp_group *group, int rank);

typedef enum fsdp_reduction { FSDP_REDUCE_SUM, FSDP_REDUCE_MAX, FSDP_REDUCE_MIN } fsdp_reduction;

FSDP_API fsdp_status fsdp_world_barrier(fsdp_world *w, fsdp_group *group);
/* `bytes` of the group's rank `root` on all of them. */
FSDP_API fsdp_status fsdp_world_broadcast(fsdp_world *w, fsdp_group *group, int root, void *data, size_t bytes);
/* values[i] over all ranks, in place; sums run in rank order, so all ranks get the same bits. */
FSDP_API fsdp_status fsdp_world_all_reduce(fsdp_world *w, fsdp_group *group, fsdp_reduction reduction, double *values,
                                           int64_t n);
FSDP_API fsdp_status fsdp_world_all_reduce_i64(fsdp_world *w, fsdp_group *group, fsdp_reduction reduction,
                                               int64_t *values, int64_t n);
/* `bytes` of every rank, the same number on each, in rank order: all has bytes times the group's size. */
FSDP_API fsdp_status fsdp_world_all_gather(fsdp_world *w, fsdp_group *group, const void *mine, size_t bytes, void *all);

/* Tells all ranks that this one gives up, with its last error: their waits end at once. */
FSDP_API void fsdp_world_abort(fsdp_world *w);

/* A string for --version: the CPU and what its products run on. */
FSDP_API fsdp_status fsdp_describe_cpu(const char *products, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
