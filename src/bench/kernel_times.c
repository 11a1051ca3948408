/* The device's table of kernels is replaced by one whose entries time the real ones: with events on the stream where
 * the device has its own time, otherwise with the clock. A kernel sees nothing but a stream and its arguments, so who
 * listens is a global of this file, for as long as it listens. */
#include "bench/kernel_times.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "bench/samples.h"

enum { MAX_OPEN = 1 << 14, MAX_SAMPLES = 512 };

typedef struct timed_row {
    kernel_work work;
    double *samples; /* (MAX_SAMPLES), seconds */
    int n;
} timed_row;

/* A call whose end the device has not reached yet. */
typedef struct open_call {
    int row;
    event *begin, *end;
} open_call;

struct kernel_times {
    device *dev;
    const kernel_table *real;
    kernel_table table;
    fsdp_status (*copy)(stream *s, void *to, const void *from, size_t bytes);
    fsdp_status (*zero)(stream *s, void *to, size_t bytes);
    pthread_t owner;
    bool listening;
    timed_row *rows;
    int n_rows, capacity;
    open_call *open; /* (MAX_OPEN): events are made once */
    int n_open, n_events;
    int64_t calls;
    double seconds; /* of all calls */
    double busy;    /* since the last kernel_times_collect, of clocks */
};

static kernel_times *listener;

static fsdp_status find_row(kernel_times *t, const kernel_work *w, int *at)
{
    for (*at = 0; *at < t->n_rows; (*at)++)
        if (kernel_work_same(&t->rows[*at].work, w))
            return FSDP_OK;
    if (t->n_rows == t->capacity) {
        int wanted = t->capacity ? 2 * t->capacity : 64;
        timed_row *grown = realloc(t->rows, (size_t)wanted * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "timing kernels: out of host memory");
        t->rows = grown;
        t->capacity = wanted;
    }
    t->rows[t->n_rows] = (timed_row){*w, malloc(MAX_SAMPLES * sizeof(double)), 0};
    if (!t->rows[t->n_rows].samples)
        return error_set(FSDP_ERR_MEMORY, "timing kernels: out of host memory");
    t->n_rows++;
    return FSDP_OK;
}

static void add_sample(kernel_times *t, int row, double seconds)
{
    timed_row *r = &t->rows[row];
    t->seconds += seconds;
    if (r->n < MAX_SAMPLES)
        r->samples[r->n++] = seconds;
}

static bool times_this(const kernel_times *t)
{
    return t->listening && pthread_equal(t->owner, pthread_self()) && (!t->dev->own_memory || t->n_open < MAX_OPEN);
}

/* *start is the clock's, where the device has no time of its own. */
static fsdp_status begin(kernel_times *t, stream *s, const kernel_work *w, int *row, double *start)
{
    FSDP_TRY(find_row(t, w, row));
    if (t->dev->own_memory) {
        open_call *c = &t->open[t->n_open];
        if (t->n_open == t->n_events) {
            FSDP_TRY(t->dev->event_create(t->dev, &c->begin));
            FSDP_TRY(t->dev->event_create(t->dev, &c->end));
            t->n_events++;
        }
        c->row = *row;
        return t->dev->event_record(s, c->begin);
    }
    *start = clock_seconds();
    return FSDP_OK;
}

static fsdp_status end(kernel_times *t, stream *s, int row, double start)
{
    t->calls++;
    if (t->dev->own_memory)
        return t->dev->event_record(s, t->open[t->n_open++].end);
    double seconds = clock_seconds() - start;
    add_sample(t, row, seconds);
    t->busy += seconds;
    return FSDP_OK;
}

#define TIMED(entry, args)                                                                                             \
    static fsdp_status timed_##entry(stream *s, const args *a)                                                         \
    {                                                                                                                  \
        kernel_times *t = listener;                                                                                    \
        kernel_work work;                                                                                              \
        int row;                                                                                                       \
        double start = 0;                                                                                              \
        if (!times_this(t))                                                                                            \
            return t->real->entry(s, a);                                                                               \
        kernel_work_of(KERNEL_##entry, a, &work);                                                                      \
        FSDP_TRY(begin(t, s, &work, &row, &start));                                                                    \
        FSDP_TRY(t->real->entry(s, a));                                                                                \
        return end(t, s, row, start);                                                                                  \
    }
KERNELS(TIMED, TIMED)

static fsdp_status timed_copy(stream *s, void *to, const void *from, size_t bytes)
{
    kernel_times *t = listener;
    kernel_work work = kernel_work_of_copy(2 * (double)bytes);
    int row;
    double start = 0;
    if (!times_this(t))
        return t->copy(s, to, from, bytes);
    FSDP_TRY(begin(t, s, &work, &row, &start));
    FSDP_TRY(t->copy(s, to, from, bytes));
    return end(t, s, row, start);
}

static fsdp_status timed_zero(stream *s, void *to, size_t bytes)
{
    kernel_times *t = listener;
    kernel_work work = kernel_work_of_copy((double)bytes);
    int row;
    double start = 0;
    if (!times_this(t))
        return t->zero(s, to, bytes);
    FSDP_TRY(begin(t, s, &work, &row, &start));
    FSDP_TRY(t->zero(s, to, bytes));
    return end(t, s, row, start);
}

#define REPLACE(entry, args) t->table.entry = timed_##entry;

/* A listener of operations keeps steps from being recorded as graphs. */
static void hear_nothing(void *context, const hook_event *e)
{
    (void)context, (void)e;
}

fsdp_status kernel_times_start(device *d, kernel_times **out)
{
    kernel_times *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t || !(t->open = calloc(MAX_OPEN, sizeof *t->open))) {
        free(t);
        return error_set(FSDP_ERR_MEMORY, "timing kernels: out of host memory");
    }
    fsdp_status status = listener ? error_set(FSDP_ERR_STATE, "the kernels of this process are being timed already")
                                  : hooks_add_kind(HOOK_OP, hear_nothing, t);
    if (status != FSDP_OK) {
        free(t->open);
        free(t);
        return status;
    }
    t->dev = d;
    t->real = d->kernels;
    t->table = *d->kernels;
    t->owner = pthread_self();
    t->listening = true;
    KERNELS(REPLACE, REPLACE)
    listener = t;
    t->copy = d->copy;
    t->zero = d->zero;
    d->kernels = &t->table;
    d->copy = timed_copy;
    d->zero = timed_zero;
    *out = t;
    return FSDP_OK;
}

fsdp_status kernel_times_collect(kernel_times *t, double *busy)
{
    *busy = t->busy;
    t->busy = 0;
    if (t->n_open > 0) {
        double milliseconds;
        FSDP_TRY(t->dev->event_elapsed(t->open[0].begin, t->open[t->n_open - 1].end, &milliseconds));
        *busy = milliseconds * 1e-3;
    }
    for (int i = 0; i < t->n_open; i++) {
        double milliseconds;
        FSDP_TRY(t->dev->event_elapsed(t->open[i].begin, t->open[i].end, &milliseconds));
        add_sample(t, t->open[i].row, milliseconds * 1e-3);
    }
    t->n_open = 0;
    return FSDP_OK;
}

void kernel_times_stop(kernel_times *t)
{
    if (!t->listening)
        return;
    t->listening = false;
    t->dev->kernels = t->real;
    t->dev->copy = t->copy;
    t->dev->zero = t->zero;
    listener = NULL;
    hooks_remove(hear_nothing, t);
}

void kernel_times_free(kernel_times *t)
{
    if (!t)
        return;
    kernel_times_stop(t);
    for (int i = 0; i < t->n_rows; i++)
        free(t->rows[i].samples);
    for (int i = 0; i < t->n_events; i++) {
        t->dev->event_free(t->open[i].begin);
        t->dev->event_free(t->open[i].end);
    }
    free(t->rows);
    free(t->open);
    free(t);
}

int64_t kernel_times_calls(const kernel_times *t)
{
    return t->calls;
}

double kernel_times_seconds(const kernel_times *t)
{
    return t->seconds;
}

int kernel_times_rows(const kernel_times *t)
{
    return t->n_rows;
}

double kernel_times_row(kernel_times *t, int index, kernel_work *work)
{
    timed_row *r = &t->rows[index];
    int tenth = r->n / 10;
    double sum = 0;
    *work = r->work;
    bench_sort(r->samples, r->n);
    for (int i = tenth; i < r->n - tenth; i++)
        sum += r->samples[i];
    return r->n > 0 ? sum / (r->n - 2 * tenth) : 0;
}
