/* Parquet's small numbers, levels and places in a dictionary: runs of equal values, and values packed into bits, in
 * turn. */
#ifndef FORMAT_TABLE_RUNS_H
#define FORMAT_TABLE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct run_reader {
    const uint8_t *at, *end;
    int width; /* bits of a value */
    uint64_t left;
    bool packed;
    uint32_t value;      /* of a run of equal ones */
    const uint8_t *bits; /* of packed ones */
    uint64_t bit;        /* of the next of them */
    bool failed;
} run_reader;

/* Over bytes that the caller keeps; `width` is at most 32. */
run_reader runs_over(const uint8_t *at, const uint8_t *end, int width);
/* The next value; 0 and r->failed where there is none. */
uint32_t runs_next(run_reader *r);

#endif
