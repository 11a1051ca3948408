/* Spans merged as they are added, so that the total needs no sorting and memory follows the number of gaps. */
#include "format/weights/span_set.h"

#include <stdlib.h>
#include <string.h>

/* The first span that ends at or after `begin`: everything before it is apart from what is added. */
static size_t first_reaching(const span_set *set, uint64_t begin)
{
    size_t low = 0, high = set->n_spans;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->spans[middle].end < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool span_set_add(span_set *set, uint64_t begin, uint64_t end)
{
    size_t first = first_reaching(set, begin), last = first;
    while (last < set->n_spans && set->spans[last].begin <= end)
        last++;
    if (first == last) { /* touches nothing: a new span */
        if (set->n_spans == set->capacity) {
            size_t capacity = set->capacity ? 2 * set->capacity : 4;
            span *spans = realloc(set->spans, capacity * sizeof *spans);
            if (!spans)
                return false;
            set->spans = spans;
            set->capacity = capacity;
        }
        memmove(set->spans + first + 1, set->spans + first, (set->n_spans - first) * sizeof *set->spans);
        set->spans[first] = (span){begin, end};
        set->n_spans++;
        return true;
    }
    span *merged = &set->spans[first];
    if (begin < merged->begin)
        merged->begin = begin;
    merged->end = end > set->spans[last - 1].end ? end : set->spans[last - 1].end;
    memmove(set->spans + first + 1, set->spans + last, (set->n_spans - last) * sizeof *set->spans);
    set->n_spans -= last - first - 1;
    return true;
}

uint64_t span_set_total(const span_set *set)
{
    uint64_t total = 0;
    for (size_t i = 0; i < set->n_spans; i++)
        total += set->spans[i].end - set->spans[i].begin;
    return total;
}

void span_set_free(span_set *set)
{
    free(set->spans);
    *set = (span_set){0};
}
