/* Rows hang in lists by the room they have, and a bit for each list finds the smallest that is large enough. */
#include "data/pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

fsdp_status pack_make(int64_t width, int64_t most_rows, pack *out)
{
    *out = (pack){.width = width, .most_rows = most_rows};
    out->room = malloc((size_t)most_rows * sizeof *out->room);
    out->next = malloc((size_t)most_rows * sizeof *out->next);
    out->first = malloc((size_t)(width + 1) * sizeof *out->first);
    out->some = malloc((size_t)(width / 64 + 1) * sizeof *out->some);
    if (out->room == NULL || out->next == NULL || out->first == NULL || out->some == NULL) {
        pack_free(out);
        return error_set(FSDP_ERR_MEMORY, "out of memory for packing %lld rows", (long long)most_rows);
    }
    pack_clear(out);
    return FSDP_OK;
}

void pack_free(pack *p)
{
    free(p->room);
    free(p->next);
    free(p->first);
    free(p->some);
    *p = (pack){0};
}

void pack_clear(pack *p)
{
    p->n_rows = 0;
    memset(p->first, -1, (size_t)(p->width + 1) * sizeof *p->first);
    memset(p->some, 0, (size_t)(p->width / 64 + 1) * sizeof *p->some);
}

static void hang(pack *p, int64_t row)
{
    int64_t room = p->room[row];
    p->next[row] = p->first[room];
    p->first[room] = row;
    p->some[room / 64] |= 1ull << (room % 64);
}

/* The least room of at least `length` that a row has; -1: none. */
static int64_t least_room(const pack *p, int64_t length)
{
    int64_t word = length / 64;
    uint64_t bits = p->some[word] & ~0ull << (length % 64);
    while (bits == 0 && ++word <= p->width / 64)
        bits = p->some[word];
    return bits == 0 ? -1 : 64 * word + __builtin_ctzll(bits);
}

int64_t pack_add(pack *p, int64_t length, int64_t *begin)
{
    int64_t room = least_room(p, length), row;
    if (room < 0) {
        if (p->n_rows == p->most_rows)
            return -1;
        row = p->n_rows++;
        room = p->width;
    } else {
        row = p->first[room];
        p->first[room] = p->next[row];
        if (p->first[room] < 0)
            p->some[room / 64] &= ~(1ull << (room % 64));
    }
    *begin = p->width - room;
    p->room[row] = room - length;
    hang(p, row);
    return row;
}
