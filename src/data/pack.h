/* Best fit: rows of `width` tokens, and for each length the row that it leaves the least room in. Lengths only; who
 * lies where is the caller's to keep. The result depends on the lengths and their order alone. */
#ifndef DATA_PACK_H
#define DATA_PACK_H

#include <stdint.h>

#include <fsdp/status.h>

typedef struct pack {
    int64_t width, most_rows, n_rows;
    int64_t *room;  /* (most_rows) tokens that still fit */
    int64_t *next;  /* (most_rows) the next row with as much room; -1: none */
    int64_t *first; /* (width + 1) the first row with that much room; -1: none */
    uint64_t *some; /* (width / 64 + 1) one bit for each room that a row has */
} pack;

fsdp_status pack_make(int64_t width, int64_t most_rows, pack *out);
void pack_free(pack *p); /* legal on zeros */
void pack_clear(pack *p);

/* The row for `length` tokens (1 to width) and where in it they begin; -1 when no row has room and there are most_rows.
 */
int64_t pack_add(pack *p, int64_t length, int64_t *begin);

#endif
