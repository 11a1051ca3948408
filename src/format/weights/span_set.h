/* Which bytes of a range were written: disjoint, sorted half-open spans. Writes in order keep it at one span. */
#ifndef FORMAT_WEIGHTS_SPAN_SET_H
#define FORMAT_WEIGHTS_SPAN_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct span {
    uint64_t begin, end;
} span;

typedef struct span_set { /* zeroed: empty */
    span *spans;
    size_t n_spans, capacity;
} span_set;

/* False when memory ran out; the set is then as before. `begin` is below `end`. */
bool span_set_add(span_set *set, uint64_t begin, uint64_t end);
uint64_t span_set_total(const span_set *set);
void span_set_free(span_set *set);

#endif
