/* Which of several sources gives the sample at a position, by weight: pure functions of the weights. Shares are counted
 * in 65536ths. Every 65536 positions each source gives exactly its share, and after any number of them no source is
 * more than a sample away from it. */
#ifndef DATA_MIX_H
#define DATA_MIX_H

#include <stdint.h>

#include <fsdp/status.h>

enum { MIX_PERIOD = 1 << 16, MIX_MAX = 64 };

typedef struct mix {
    int n;
    int64_t shares[MIX_MAX]; /* of a period */
    uint8_t *source;         /* (MIX_PERIOD) who gives the sample */
    int32_t *before;         /* (MIX_PERIOD) and how many it gave before, in the period */
} mix;

/* Weights are positive; none may be less than a 65536th of their sum. */
fsdp_status mix_make(const double *weights, int n, mix *out);
void mix_free(mix *m);

/* The source at `position`, and which of its own positions that is. */
void mix_at(const mix *m, int64_t position, int *source, int64_t *own);
/* How many samples `source` gave before `position`. */
int64_t mix_count(const mix *m, int source, int64_t position);

#endif
