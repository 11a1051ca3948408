/* How many blocks a collective between GPUs should take. NCCL opens 24 ring channels between eight H100s, a block each,
 * which is more than the links need: products lack the multiprocessors. */
#ifndef COMM_CTAS_H
#define COMM_CTAS_H

#include <math.h>

/* What a channel of a ring carries at most on Hopper, in NCCL's own model (src/graph/tuning.cc, perChMaxRingLL128Bws).
 */
#define CTAS_RING_RATE 36.7e9

/* NVLink's rate a direction on an H100 or H200. */
#define CTAS_HOPPER_LINKS 450e9

/* NCCL launches its blocks in clusters of this many, where they divide the grid. */
enum { CTAS_CLUSTER = 4 };

/* Blocks that carry `rate` bytes a second over a ring: whole clusters. */
static inline int ctas_for_rate(double rate)
{
    return (int)ceil(rate / CTAS_RING_RATE / CTAS_CLUSTER) * CTAS_CLUSTER;
}

#endif
