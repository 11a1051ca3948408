/* Reads flight files and finds events in them. */
#include "observe/flight.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"

enum { MAX_WORLD = 1 << 20 };

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const ring_event *)a)->number, y = ((const ring_event *)b)->number;
    return x < y ? -1 : x > y;
}

static bool is_whole(const ring_event *e)
{
    return e->number != 0 && e->number == e->same_number && e->kind <= HOOK_WAIT && e->moment <= HOOK_INSTANT;
}

static fsdp_status take_events(const char *path, flight *f)
{
    f->events = malloc(sizeof f->ring->events);
    if (!f->events)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    const uint8_t *from = f->map.data + offsetof(ring, events);
    for (int i = 0; i < RING_EVENTS; i++) {
        ring_event *e = &f->events[f->n];
        memcpy(e, from + (size_t)i * sizeof *e, sizeof *e);
        e->name[sizeof e->name - 1] = e->subject[sizeof e->subject - 1] = 0;
        f->n += is_whole(e);
    }
    qsort(f->events, (size_t)f->n, sizeof *f->events, by_number);
    return FSDP_OK;
}

fsdp_status flight_open(const char *path, int rank, flight *f)
{
    *f = (flight){.rank = rank};
    FSDP_TRY(file_map_open(path, &f->map));
    const ring *r = f->ring = (const ring *)(const void *)f->map.data;
    if (f->map.bytes != sizeof *r || r->magic != RING_MAGIC || r->version != RING_VERSION ||
        r->header_bytes != offsetof(ring, events) || r->event_bytes != sizeof(ring_event) || r->n_events != RING_EVENTS)
        return error_set(FSDP_ERR_INPUT, "%s is no flight file of this version of fsdp, or it is damaged", path);
    if (r->rank != rank || r->world_size < 1 || r->world_size > MAX_WORLD || rank >= r->world_size)
        return error_set(FSDP_ERR_INPUT, "%s says that it is of rank %d of %d; it was renamed, or it is damaged", path,
                         r->rank, r->world_size);
    return take_events(path, f);
}

static int by_rank(const void *a, const void *b)
{
    return ((const flight *)a)->rank - ((const flight *)b)->rank;
}

static fsdp_status add(const char *folder, const char *name, flights *out)
{
    int rank, end = 0;
    if (sscanf(name, "flight-%9d.bin%n", &rank, &end) != 1 || end == 0 || name[end] || rank < 0)
        return FSDP_OK;
    flight *list = realloc(out->list, (size_t)(out->n + 1) * sizeof *list);
    char *path = file_join(folder, name);
    if (list)
        out->list = list;
    if (!list || !path) {
        free(path);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
    }
    flight *f = &out->list[out->n++];
    fsdp_status status = flight_open(path, rank, f);
    free(path);
    return status;
}

fsdp_status flights_open(const char *folder, flights *out)
{
    *out = (flights){0};
    DIR *d = opendir(folder);
    if (!d)
        return error_set_errno(FSDP_ERR_INPUT, "%s: cannot look for flight files", folder);
    fsdp_status status = FSDP_OK;
    for (struct dirent *e; status == FSDP_OK && (e = readdir(d));)
        status = add(folder, e->d_name, out);
    closedir(d);
    if (status == FSDP_OK && out->n == 0)
        status = error_set(FSDP_ERR_INPUT,
                           "%s has no flight-RANK.bin: ranks write them into their --output_dir (or FSDP_FLIGHT_DIR) "
                           "when a collective fails or times out, when they crash, and on SIGUSR2",
                           folder);
    if (status != FSDP_OK) {
        flights_close(out);
        return status;
    }
    qsort(out->list, (size_t)out->n, sizeof *out->list, by_rank);
    for (int i = 0; i < out->n; i++)
        if (out->list[i].ring->world_size > out->world_size)
            out->world_size = out->list[i].ring->world_size;
    return FSDP_OK;
}

void flight_close(flight *f)
{
    free(f->events);
    file_map_close(&f->map);
    *f = (flight){0};
}

void flights_close(flights *f)
{
    for (int i = 0; i < f->n; i++)
        flight_close(&f->list[i]);
    free(f->list);
    *f = (flights){0};
}

bool flight_group_at(const flight *f, int slot, flight_group *out)
{
    const ring_group *g = &f->ring->groups[slot];
    *out = (flight_group){.serial = g->serial,
                          .first = g->first,
                          .size = g->size,
                          .called = g->called,
                          .begun = g->begun,
                          .ended = g->ended};
    memcpy(out->name, g->name, sizeof out->name - 1);
    return out->size > 1;
}

/* The file may say anything: sums of its numbers wrap instead of overflowing. */
int64_t flight_written(const flight *f)
{
    return (int64_t)((uint64_t)f->ring->taken_at + (uint64_t)f->ring->written_ns - (uint64_t)f->ring->taken_ns);
}

const ring_event *flight_call(const flight *f, const flight_group *g, uint32_t sequence)
{
    for (int i = f->n - 1; i >= 0; i--) {
        const ring_event *e = &f->events[i];
        if (e->kind == HOOK_COLLECTIVE && e->moment == HOOK_INSTANT && e->sequence == sequence &&
            e->serial == g->serial && e->first == g->first)
            return e;
    }
    return NULL;
}

/* The newest begin on the computing lane that no end belongs to: they nest. */
static const ring_event *innermost(const flight *f, int kind)
{
    int ended = 0;
    for (int i = f->n - 1; i >= 0; i--) {
        const ring_event *e = &f->events[i];
        if (e->kind != kind || e->lane != 0)
            continue;
        if (e->moment == HOOK_END)
            ended++;
        else if (e->moment == HOOK_BEGIN && ended-- == 0)
            return e;
    }
    return NULL;
}

const ring_event *flight_phase(const flight *f)
{
    return innermost(f, HOOK_PHASE);
}

const ring_event *flight_wait(const flight *f)
{
    return innermost(f, HOOK_WAIT);
}
