/* Flight files: the rings (base/record/ring.h) that ranks, or their launcher, left when a job hung or died. Here they
 * are read, trusting nothing in them; flight_words.c says what they mean. */
#ifndef OBSERVE_FLIGHT_H
#define OBSERVE_FLIGHT_H

#include <fsdp/status.h>

#include "base/file.h"
#include "base/record/ring.h"

/* One rank's file. */
typedef struct flight {
    int rank;
    file_map map;
    const ring *ring;
    ring_event *events; /* (n) whole ones, in the order of their numbers */
    int n;
} flight;

/* A collective that a rank has called. */
typedef struct flight_group {
    int serial, first, size;
    uint32_t called, begun, ended;
    char name[32];
} flight_group;

typedef struct flights {
    flight *list; /* (n) by rank */
    int n, world_size;
} flights;

/* Reads the file of one rank. The caller closes *out, also on failure. */
fsdp_status flight_open(const char *path, int rank, flight *out);
void flight_close(flight *f); /* legal on a zeroed one */
/* Reads every flight-RANK.bin of the folder. FSDP_ERR_INPUT when there is none, or one is damaged. */
fsdp_status flights_open(const char *folder, flights *out);
void flights_close(flights *f); /* legal on a zeroed one */

/* The rank's side of the group of this slot; false: there is none. */
bool flight_group_at(const flight *f, int slot, flight_group *out);
int64_t flight_written(const flight *f); /* nanoseconds since 1970 */

/* What the rank said of this call (kind HOOK_COLLECTIVE), or NULL when the ring has forgotten it. */
const ring_event *flight_call(const flight *f, const flight_group *g, uint32_t sequence);
/* The innermost phase, or the wait, that had begun and not ended; NULL: none. */
const ring_event *flight_phase(const flight *f);
const ring_event *flight_wait(const flight *f);

#endif
