/* The host memory that snapshots take, counted over all nodes that share a host's memory file system. */
#ifndef CKPT_HOT_ROOM_H
#define CKPT_HOT_ROOM_H

#include <stdint.h>

#include <fsdp/status.h>

/* What each rank tells the others. */
typedef struct hot_rank {
    uint64_t node; /* ranks of a node follow each other */
    uint64_t host; /* nodes with the same memory file system */
    int64_t bytes; /* of its part of a snapshot */
    int64_t held;  /* by its node, of earlier snapshots */
} hot_rank;

/* The rank after this one, in a circle, that is of another node: there the copies go. -1: there is none. */
int hot_next_rank(const hot_rank *ranks, int n, int rank);

/* At its most: two snapshots of every rank of the host, and two copies for every rank whose next node is there. */
typedef struct hot_need {
    int64_t files;            /* in the memory file system */
    int64_t buffers;          /* from which ranks write */
    int64_t held;             /* of `files`, what earlier snapshots have already */
    int n_ranks, n_neighbors; /* whose own parts and whose copies are held */
} hot_need;

hot_need hot_count_need(const hot_rank *ranks, int n, uint64_t host);

/* FSDP_ERR_INPUT, in one line with a remedy, where the need is more than is left (0: unknown). */
fsdp_status hot_check_room(const hot_need *need, int64_t files_left, int64_t memory_left);

uint64_t hot_host_of(const char *folder);  /* which memory file system that is, of all machines */
int64_t hot_bytes_in(const char *folder);  /* of its files */
int64_t hot_room_left(const char *folder); /* in its file system; 0: unknown */

#endif
