/* The last events of a rank: phases, collectives and waits, in fixed memory that is written without a lock. Under
 * `fsdp run` it lies in memory of the launcher, so that what a killed rank did last can still be read; a file of it
 * ("flight-RANK.bin", docs/flight-format.md) is the memory as it is. base/record/hooks.h writes here; observe/flight.h
 * reads the files. */
#ifndef BASE_RECORD_RING_H
#define BASE_RECORD_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RING_EVENTS = 4096,
    RING_GROUPS = 17, /* as many as a rank can be in, the world among them */
    RING_VERSION = 1,
    RING_FOLDER_BYTES = 512,
    RING_REASON_BYTES = 256,
};

#define RING_MAGIC UINT64_C(0x31474e4952504446) /* "FDPRING1" */

/* Plain data. `number` counts events from 1 and stands at both ends: where the two differ, or are 0, the event was
 * being written. */
typedef struct ring_event {
    uint64_t number;
    int64_t time_ns, bytes, step; /* time: clock_nanoseconds() */
    int32_t serial, first;        /* of a collective: its group, by the split that made it and its first member */
    uint32_t sequence;            /* of the collective in its group, from 1; 0: this is none */
    uint8_t kind, moment, lane, unused;
    char name[24], subject[48]; /* cut, ended by a NUL */
    uint64_t same_number;
} ring_event;

enum { RING_WORDS = sizeof(ring_event) / sizeof(uint64_t) };

/* How far this rank is in a group: calls that it has made, begun to run, and ended. */
typedef struct ring_group {
    _Atomic int32_t serial, first, size; /* size 0: no group here */
    _Atomic uint32_t called, begun, ended;
    char name[32];
} ring_group;

typedef struct ring {
    _Alignas(64) _Atomic uint64_t magic; /* RING_MAGIC once a rank has taken it up */
    uint32_t version, header_bytes, event_bytes, n_events;
    int32_t rank, world_size, process;
    _Atomic uint32_t n_files;   /* written by the rank itself */
    int64_t taken_ns, taken_at; /* the same instant: clock_nanoseconds(), and nanoseconds since 1970 */
    _Atomic int64_t written_ns; /* when a file was written last */
    _Atomic int64_t step;
    char host[64];
    char folder[RING_FOLDER_BYTES]; /* where files go; "": nobody has said */
    char reason[RING_REASON_BYTES]; /* why a file was written, where something had failed; "": to look */
    ring_group groups[RING_GROUPS];
    _Alignas(64) _Atomic uint64_t next; /* events so far */
    _Alignas(64) _Atomic uint64_t events[RING_EVENTS][RING_WORDS];
} ring;

/* Bytes before the first ring in memory that holds `n` pulses. */
size_t ring_offset(int n);

/* Takes up the memory that FSDP_PULSE names ("descriptor:number:count"), or memory of its own. Once: later calls only
 * tell rank and size of the world. */
void ring_open(int rank, int world_size);
ring *ring_own(void); /* NULL: not opened */

/* Files of this rank go to `folder` from now on, unless FSDP_FLIGHT_DIR says another. */
void ring_set_folder(const char *folder);

void ring_set_group(ring *r, int slot, int serial, int first, int size, const char *name);
/* `e` without numbers; any thread. */
void ring_write(ring *r, const ring_event *e);

/* What went wrong, for the file; the first one stays. Safe in a signal handler. */
void ring_set_reason(ring *r, const char *reason);
/* Writes flight-RANK.bin into `folder`, complete or not at all. Safe in a signal handler, and for another process's
 * ring. False, with errno, when it cannot. */
bool ring_save(ring *r, const char *folder);
/* The same of this process's ring into its own folder; nothing where there is none. `reason` may be NULL. */
void ring_save_own(const char *reason);
/* SIGUSR2 does it from now on, unless it has a handler already. */
void ring_save_on_signal(void);

#endif
