/* A schedule that is shaken: random delays around collectives, waits, copies and events, and NaN in whatever the engine
 * has given up: gathered units when they are released, gradient buffers when they are reduced, the slab between runs. A
 * result that changes had read something too early, too late, or after its end. Attached by the library's hooks and the
 * device's table, so a run that is not shaken pays nothing. */
#ifndef TESTS_DIFFERENTIAL_SHAKE_H
#define TESTS_DIFFERENTIAL_SHAKE_H

#include <fsdp/shard.h>

typedef struct shake shake;

/* Shakes everything this process does with the model until shake_end. A seed of 0 shakes nothing: *out is NULL. One at
 * a time. */
fsdp_status shake_begin(fsdp_model *m, uint64_t seed, shake **out);
void shake_end(shake *s); /* before the model is freed; NULL is legal */
/* Between two programs: what the last one left behind counts for nothing. NULL is legal. */
void shake_between(shake *s);

#endif
