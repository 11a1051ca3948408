/* Sorted lists without overlaps make sums and intersections single walks. */
#include "observe/intervals.h"

#include <stdlib.h>

bool intervals_add(intervals *s, double from, double to)
{
    if (s->n == s->room) {
        size_t wanted = s->room ? 2 * s->room : 256;
        interval *grown = realloc(s->list, wanted * sizeof *grown);
        if (!grown)
            return false;
        s->list = grown;
        s->room = wanted;
    }
    s->list[s->n++] = (interval){from, to > from ? to : from};
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const interval *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

void intervals_join(intervals *s)
{
    size_t kept = 0;
    if (s->n == 0)
        return;
    qsort(s->list, s->n, sizeof *s->list, by_begin);
    for (size_t i = 1; i < s->n; i++) {
        if (s->list[i].from > s->list[kept].to)
            s->list[++kept] = s->list[i];
        else if (s->list[i].to > s->list[kept].to)
            s->list[kept].to = s->list[i].to;
    }
    s->n = kept + 1;
}

double intervals_length(const intervals *s)
{
    double length = 0;
    for (size_t i = 0; i < s->n; i++)
        length += s->list[i].to - s->list[i].from;
    return length;
}

double intervals_overlap(const intervals *a, const intervals *b)
{
    double length = 0;
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        const interval *x = &a->list[i], *y = &b->list[k];
        double from = x->from > y->from ? x->from : y->from, to = x->to < y->to ? x->to : y->to;
        length += to > from ? to - from : 0;
        if (x->to < y->to)
            i++;
        else
            k++;
    }
    return length;
}

void intervals_free(intervals *s)
{
    free(s->list);
    *s = (intervals){NULL, 0, 0};
}
