/* Nothing is trusted: what lies outside the bytes fails, and stays failed. */
#include "format/table/runs.h"

#include <stddef.h>

run_reader runs_over(const uint8_t *at, const uint8_t *end, int width)
{
    return (run_reader){.at = at, .end = end, .width = width};
}

static void begin_run(run_reader *r)
{
    uint64_t header = 0;
    int shift = 0;
    size_t value_bytes = ((size_t)r->width + 7) / 8;
    for (uint8_t byte = 0x80; byte >= 0x80; shift += 7) {
        if (r->at == r->end || shift > 35) {
            r->failed = true;
            return;
        }
        byte = *r->at++;
        header |= (uint64_t)(byte & 0x7f) << shift;
    }
    r->packed = header & 1;
    r->left = r->packed ? (header >> 1) * 8 : header >> 1;
    size_t room = (size_t)(r->end - r->at), wanted = r->packed ? (size_t)(header >> 1) * (size_t)r->width : value_bytes;
    if (r->packed && wanted > room && room > 0 &&
        r->width > 0) { /* the last group may be cut where no value is needed */
        r->left = room * 8 / (uint64_t)r->width;
        wanted = room;
    }
    if (wanted > room || r->left == 0) {
        r->failed = true;
        return;
    }
    r->bits = r->at;
    r->bit = 0;
    r->value = 0;
    for (size_t i = 0; i < value_bytes && !r->packed; i++)
        r->value |= (uint32_t)r->at[i] << (8 * i);
    r->at += wanted;
}

uint32_t runs_next(run_reader *r)
{
    if (r->left == 0 && !r->failed)
        begin_run(r);
    if (r->failed)
        return 0;
    r->left--;
    if (!r->packed)
        return r->value;
    uint32_t value = 0;
    for (int i = 0; i < r->width; i++, r->bit++)
        value |= (uint32_t)(r->bits[r->bit / 8] >> (r->bit % 8) & 1) << i;
    return value;
}
