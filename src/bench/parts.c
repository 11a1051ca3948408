/* Operations nest (the optimizer waits for collectives): each gets the time that is its own. What no operation claims,
 * the host's time between them and copies, is "other". */
#include "bench/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"

enum { DEEPEST = 8 };

typedef enum part_class { PRODUCTS, ATTENTION, POINTWISE, LOSS, OPTIMIZER, COMMUNICATION, OTHER } part_class;

static const char *const class_names[FSDP_BENCH_CLASSES] = {
    "products", "attention", "norms and pointwise", "loss with its product", "optimizer", "communication", "other"};

/* Operations that are not here are pointwise or move data. */
static const struct {
    const char *name;
    part_class class;
} classes[] = {
    {"linear", PRODUCTS},
    {"linear_fp8", PRODUCTS},
    {"matmul", PRODUCTS},
    {"conv2d", PRODUCTS},
    {"attention", ATTENTION},
    {"linear_cross_entropy", LOSS},
    {"cross_entropy", LOSS},
    {"mse", LOSS},
    {"sum", LOSS},
    {"all_gather", COMMUNICATION},
    {"offload", OTHER},
};

typedef struct part {
    char name[FSDP_BENCH_NAME];
    part_class class;
    int64_t nanoseconds, count;
} part;

struct bench_parts {
    device *dev;
    stream *stream;
    part parts[FSDP_BENCH_OPERATIONS];
    int n;
    struct {
        int64_t begun, inner; /* when, and how much of the time belonged to what it called */
    } open[DEEPEST];
    int depth;
};

static bool is_heard(const hook_event *e)
{
    return e->kind == HOOK_OP || e->kind == HOOK_WAIT || (e->kind == HOOK_PHASE && strcmp(e->name, "optimizer") == 0);
}

static part_class class_of(const hook_event *e)
{
    if (e->kind == HOOK_WAIT)
        return COMMUNICATION;
    if (e->kind == HOOK_PHASE)
        return OPTIMIZER;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(e->name, classes[i].name) == 0)
            return classes[i].class;
    return POINTWISE;
}

/* "linear.backward"; waits by collective, not by unit. */
static void name_of(const hook_event *e, char *name)
{
    bool phase = e->kind == HOOK_OP && e->detail;
    snprintf(name, FSDP_BENCH_NAME, "%s%s%s%s", e->kind == HOOK_WAIT ? "wait for " : "", e->name, phase ? "." : "",
             phase ? e->detail : "");
}

static void add(bench_parts *p, const hook_event *e, int64_t nanoseconds)
{
    char name[FSDP_BENCH_NAME];
    int i = 0;
    name_of(e, name);
    while (i < p->n && strcmp(p->parts[i].name, name) != 0)
        i++;
    if (i == FSDP_BENCH_OPERATIONS)
        return; /* the rest is "other" */
    if (i == p->n) {
        p->parts[i] = (part){.class = class_of(e)};
        memcpy(p->parts[i].name, name, sizeof name);
        p->n++;
    }
    p->parts[i].nanoseconds += nanoseconds;
    p->parts[i].count++;
}

static void listen(void *context, const hook_event *e)
{
    bench_parts *p = context;
    if (!is_heard(e) || e->moment == HOOK_INSTANT)
        return;
    p->dev->stream_synchronize(p->stream); /* a failure is reported by the step itself */
    int64_t now = clock_nanoseconds();
    if (e->moment == HOOK_BEGIN) {
        if (p->depth < DEEPEST) {
            p->open[p->depth].begun = now;
            p->open[p->depth].inner = 0;
        }
        p->depth++;
        return;
    }
    if (p->depth == 0 || --p->depth >= DEEPEST)
        return;
    int64_t all = now - p->open[p->depth].begun;
    add(p, e, all - p->open[p->depth].inner);
    if (p->depth > 0)
        p->open[p->depth - 1].inner += all;
}

fsdp_status bench_parts_start(device *d, stream *s, bench_parts **out)
{
    bench_parts *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    p->dev = d;
    p->stream = s;
    fsdp_status status = hooks_add(listen, p);
    if (status != FSDP_OK) {
        free(p);
        return status;
    }
    *out = p;
    return FSDP_OK;
}

static int by_time(const void *a, const void *b)
{
    const part *x = a, *y = b;
    return x->nanoseconds < y->nanoseconds ? 1 : x->nanoseconds > y->nanoseconds ? -1 : 0;
}

void bench_parts_end(bench_parts *p, int steps, double seconds, fsdp_bench_result *r)
{
    if (!p)
        return;
    hooks_remove(listen, p);
    double rest = seconds * 1e3 / steps;
    qsort(p->parts, (size_t)p->n, sizeof *p->parts, by_time);
    r->n_classes = FSDP_BENCH_CLASSES;
    r->n_operations = p->n;
    r->waited_milliseconds = rest;
    for (int c = 0; c < FSDP_BENCH_CLASSES; c++)
        snprintf(r->classes[c].name, FSDP_BENCH_NAME, "%s", class_names[c]);
    for (int i = 0; i < p->n; i++) {
        fsdp_bench_part *o = &r->operations[i], *c = &r->classes[p->parts[i].class];
        memcpy(o->name, p->parts[i].name, sizeof o->name);
        o->milliseconds = (double)p->parts[i].nanoseconds / 1e6 / steps;
        o->count = p->parts[i].count / steps;
        c->milliseconds += o->milliseconds;
        c->count += o->count;
        rest -= o->milliseconds;
    }
    r->classes[OTHER].milliseconds += rest > 0 ? rest : 0;
    free(p);
}
