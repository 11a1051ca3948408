/* Adds up the spans of trace files: by phase, operation, collective and kernel, within the steps that the trace covers.
 * Where kernels of a device are in the trace, operations take as long as theirs, and communication is exposed where
 * nothing computes beside it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/trace.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text/printable.h"
#include "observe/intervals.h"
#include "observe/table.h"
#include "observe/units.h"

enum { MAX_LINES = 256, MAX_STEPS = 4096, MAX_RANKS = 16384, NAME_BYTES = 48 };

/* In the order of the table. */
typedef enum span_class {
    CLASS_PHASE,
    CLASS_WAIT,
    CLASS_COLLECTIVE,
    CLASS_OP,
    CLASS_KERNEL,
    CLASS_COPY,
    N_CLASSES
} span_class;

static const char *const categories[N_CLASSES] = {"phase", "wait", "collective", "op", "kernel", "copy"};
static const char *const titles[N_CLASSES] = {"phase", "wait for", "collective", "operation", "kernel", "device"};

typedef struct line {
    span_class class;
    char name[NAME_BYTES];
    double us;
    int64_t count;
    double bytes; /* a stranger's file may hold any: their sum overflows nothing */
} line;

typedef struct rank_sums {
    interval *steps; /* (n_steps) */
    int n_steps;
    double step_us, phase_us, wait_us, collective_us;
    intervals computing, communicating; /* of its device */
} rank_sums;

typedef struct sums {
    const char *path;
    line lines[MAX_LINES];
    int n_lines;
    rank_sums *ranks; /* (n_ranks) */
    int n_ranks;
    int64_t n_steps; /* of all ranks */
    double step_us;
    bool of_device;                             /* there are kernels in the trace */
    double busy_us, moving_us, moving_alone_us; /* of devices: all, communication, and what nothing computes beside */
} sums;

typedef struct span {
    span_class class;
    int rank;
    const char *name, *detail;
    double from, us;
    int64_t bytes;
} span;

/* False: nothing to add up. */
static bool read_span(const json_t *e, span *out)
{
    const char *phase = json_string_value(json_object_get(e, "ph")),
               *cat = json_string_value(json_object_get(e, "cat"));
    const json_t *args = json_object_get(e, "args"), *rank = json_object_get(e, "pid");
    *out = (span){.name = json_string_value(json_object_get(e, "name")),
                  .detail = json_string_value(json_object_get(args, "detail")),
                  .from = json_number_value(json_object_get(e, "ts")),
                  .us = json_number_value(json_object_get(e, "dur")),
                  .bytes = (int64_t)json_integer_value(json_object_get(args, "bytes"))};
    if (!phase || strcmp(phase, "X") != 0 || !cat || !out->name || !json_is_integer(rank) || out->us < 0)
        return false;
    json_int_t number = json_integer_value(rank);
    if (number < 0 || number >= MAX_RANKS)
        return false;
    out->rank = (int)number;
    for (out->class = 0; out->class < N_CLASSES && strcmp(cat, categories[out->class]) != 0;)
        out->class ++;
    return out->class < N_CLASSES;
}

static fsdp_status add_step(sums *s, const span *x)
{
    if (x->rank >= s->n_ranks) {
        rank_sums *more = realloc(s->ranks, (size_t)(x->rank + 1) * sizeof *more);
        if (!more)
            return error_set(FSDP_ERR_MEMORY, "%s: out of memory", s->path);
        memset(more + s->n_ranks, 0, (size_t)(x->rank + 1 - s->n_ranks) * sizeof *more);
        s->ranks = more;
        s->n_ranks = x->rank + 1;
    }
    rank_sums *r = &s->ranks[x->rank];
    if (!r->steps)
        r->steps = calloc(MAX_STEPS, sizeof *r->steps);
    if (!r->steps)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", s->path);
    if (r->n_steps == MAX_STEPS)
        return error_set(FSDP_ERR_INPUT, "%s: rank %d has more than %d steps", s->path, x->rank, MAX_STEPS);
    r->steps[r->n_steps++] = (interval){x->from, x->from + x->us};
    r->step_us += x->us;
    s->step_us += x->us;
    s->n_steps++;
    return FSDP_OK;
}

static bool is_step(const span *x)
{
    return x->class == CLASS_PHASE && strcmp(x->name, "step") == 0;
}

static bool is_in_step(const sums *s, const span *x)
{
    if (x->rank >= s->n_ranks)
        return false;
    const rank_sums *r = &s->ranks[x->rank];
    for (int i = 0; i < r->n_steps; i++)
        if (x->from >= r->steps[i].from && x->from < r->steps[i].to)
            return true;
    return false;
}

/* The phases that make up a step; others lie between steps, or beside them. */
static bool is_part(const span *x)
{
    static const char *const parts[] = {"data", "forward", "backward", "optimizer"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(x->name, parts[i]) == 0)
            return true;
    return false;
}

static void add_line(sums *s, const span *x, const char *name)
{
    char clean[NAME_BYTES];
    int i = 0;
    printable(name, false, clean, sizeof clean);
    while (i < s->n_lines && (s->lines[i].class != x->class || strcmp(s->lines[i].name, clean) != 0))
        i++;
    if (i == MAX_LINES)
        return;
    if (i == s->n_lines) {
        s->lines[i] = (line){.class = x->class};
        memcpy(s->lines[i].name, clean, sizeof clean);
        s->n_lines++;
    }
    s->lines[i].us += x->us;
    s->lines[i].count++;
    s->lines[i].bytes += (double)x->bytes;
}

/* Kernels of NCCL, of links that are emulated, and of sums of what peers have sent. */
static bool communicates(const span *x)
{
    static const char *const begins[] = {"nccl", "paced_move", "sum_parts"};
    for (size_t i = 0; x->class == CLASS_KERNEL && i < sizeof begins / sizeof *begins; i++)
        if (strncmp(x->name, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

/* An operation is what its kernels are, where they are known. */
static fsdp_status add_device_span(sums *s, const span *x)
{
    rank_sums *r = &s->ranks[x->rank];
    span of_operation = *x;
    of_operation.class = CLASS_OP;
    of_operation.bytes = 0;
    if (x->detail && *x->detail)
        add_line(s, &of_operation, x->detail);
    if (!intervals_add(communicates(x) ? &r->communicating : &r->computing, x->from, x->from + x->us))
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", s->path);
    return FSDP_OK;
}

static fsdp_status add_span(sums *s, const span *x)
{
    char name[NAME_BYTES];
    bool op = x->class == CLASS_OP && x->detail, of_device = x->class == CLASS_KERNEL || x->class == CLASS_COPY;
    if (op && s->of_device)
        return FSDP_OK; /* the host only asked for it */
    snprintf(name, sizeof name, of_device ? "%.40s%s%.16s" : "%.24s%s%.16s", x->name, op ? "." : "",
             op ? x->detail : "");
    add_line(s, x, name);
    rank_sums *r = &s->ranks[x->rank];
    r->phase_us += x->class == CLASS_PHASE && is_part(x) ? x->us : 0;
    r->wait_us += x->class == CLASS_WAIT ? x->us : 0;
    r->collective_us += x->class == CLASS_COLLECTIVE ? x->us : 0;
    return of_device ? add_device_span(s, x) : FSDP_OK;
}

static void sum_devices(sums *s)
{
    for (int i = 0; i < s->n_ranks; i++) {
        rank_sums *r = &s->ranks[i];
        intervals_join(&r->computing);
        intervals_join(&r->communicating);
        double moving = intervals_length(&r->communicating);
        double both = intervals_overlap(&r->computing, &r->communicating);
        s->busy_us += intervals_length(&r->computing) + moving - both;
        s->moving_us += moving;
        s->moving_alone_us += moving - both;
    }
}

static int by_time(const void *a, const void *b)
{
    const line *x = a, *y = b;
    if (x->class != y->class)
        return (int)x->class - (int)y->class;
    return x->us < y->us ? 1 : x->us > y->us ? -1 : strcmp(x->name, y->name);
}

static fsdp_status read_sums(const char *path, sums *s)
{
    json_t *array;
    const json_t *e;
    size_t i;
    span x;
    *s = (sums){.path = path};
    FSDP_TRY(json_read_file(path, &array));
    fsdp_status status = json_is_array(array) ? FSDP_OK : error_set(FSDP_ERR_INPUT, "%s is not a trace", path);
    json_array_foreach(array, i, e)
    {
        if (status != FSDP_OK || !read_span(e, &x))
            continue;
        s->of_device |= x.class == CLASS_KERNEL;
        if (is_step(&x))
            status = add_step(s, &x);
    }
    json_array_foreach(array, i, e) if (status == FSDP_OK && read_span(e, &x) && !is_step(&x) && is_in_step(s, &x))
        status = add_span(s, &x);
    json_decref(array);
    sum_devices(s);
    if (status == FSDP_OK && s->n_steps == 0)
        status = error_set(FSDP_ERR_INPUT,
                           "%s has no steps: it is no trace of `fsdp train --trace`, or of an older one", path);
    qsort(s->lines, (size_t)s->n_lines, sizeof *s->lines, by_time);
    return status;
}

static void sums_free(sums *s)
{
    for (int i = 0; i < s->n_ranks; i++) {
        free(s->ranks[i].steps);
        intervals_free(&s->ranks[i].computing);
        intervals_free(&s->ranks[i].communicating);
    }
    free(s->ranks);
}

static double per_step(const sums *s, double us)
{
    return us / 1e3 / (double)s->n_steps;
}

/* ---- words ---- */

static void say_whole(FILE *out, const sums *s)
{
    double phases = 0, waits = 0, collectives = 0, most = -1;
    int slowest = 0, ranks = 0;
    for (int i = 0; i < s->n_ranks; i++) {
        const rank_sums *r = &s->ranks[i];
        double busy = r->n_steps ? (r->step_us - r->wait_us) / r->n_steps : 0;
        phases += r->phase_us;
        waits += r->wait_us;
        collectives += r->collective_us;
        ranks += r->n_steps > 0;
        if (busy > most)
            most = busy, slowest = i;
    }
    if (s->moving_us > 0) /* what the host waited for says nothing of a device */
        waits = s->moving_alone_us, collectives = s->moving_us;
    fprintf(out, "%s: %lld steps on %d rank%s, %.3f ms a step\n", s->path, (long long)s->n_steps / (ranks ? ranks : 1),
            ranks, ranks == 1 ? "" : "s", per_step(s, s->step_us));
    fprintf(out, "phases cover %.1f%% of the steps\n", 100 * phases / s->step_us);
    if (s->of_device)
        fprintf(out, "device busy: %.3f ms a step (%.1f%%)\n", per_step(s, s->busy_us), 100 * s->busy_us / s->step_us);
    fprintf(out, "exposed communication: %.3f ms a step (%.1f%%)\n", per_step(s, waits), 100 * waits / s->step_us);
    if (collectives > 0)
        fprintf(out, "hidden under compute: %.1f%% of %.3f ms of communication\n",
                100 * (waits < collectives ? 1 - waits / collectives : 0), per_step(s, collectives));
    if (ranks > 1)
        fprintf(out, "slowest: rank %d, busy for %.3f ms a step\n", slowest, most / 1e3);
}

static fsdp_status say_table(FILE *out, const sums *s)
{
    table *t;
    char *text = NULL, bytes[UNITS_TEXT], name[NAME_BYTES + 16];
    FSDP_TRY(table_new("class|ms a step|share|calls|bytes", &t));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < s->n_lines && status == FSDP_OK; i++) {
        const line *l = &s->lines[i];
        int64_t each = (int64_t)fmax(0, fmin(l->bytes / (double)s->n_steps, 0x1p62));
        snprintf(name, sizeof name, "%s %s", titles[l->class], l->name);
        for (char *bar = name; (bar = strchr(bar, '|'));)
            *bar = '/';
        status = table_row(t, "%s|%.3f|%.1f%%|%.1f|%s", name, per_step(s, l->us), 100 * l->us / s->step_us,
                           (double)l->count / (double)s->n_steps, each ? units_bytes(bytes, each) : "");
    }
    if (status == FSDP_OK)
        status = table_text(t, &text);
    if (status == FSDP_OK)
        fprintf(out, "\n%s\n\n", text);
    free(text);
    table_free(t);
    return status;
}

static const line *find(const sums *s, const line *like)
{
    for (int i = 0; i < s->n_lines; i++)
        if (s->lines[i].class == like->class && strcmp(s->lines[i].name, like->name) == 0)
            return &s->lines[i];
    return NULL;
}

static fsdp_status difference_row(table *t, const char *title, const char *name, double before, double after)
{
    char share[32] = "";
    if (before > 0)
        snprintf(share, sizeof share, "%+.1f%%", 100 * (after - before) / before);
    return table_row(t, "%s %s|%.3f|%.3f|%+.3f|%s", title, name, before, after, after - before, share);
}

/* Line by line, in the order of the first file; what only the second has comes last. */
static fsdp_status say_difference(FILE *out, const sums *a, const sums *b)
{
    table *t;
    char *text = NULL;
    FSDP_TRY(table_new("class|before|after|ms a step|change", &t));
    fsdp_status status = difference_row(t, "whole", "step", per_step(a, a->step_us), per_step(b, b->step_us));
    for (int i = 0; i < a->n_lines && status == FSDP_OK; i++) {
        const line *l = &a->lines[i], *other = find(b, l);
        status = difference_row(t, titles[l->class], l->name, per_step(a, l->us), other ? per_step(b, other->us) : 0);
    }
    for (int i = 0; i < b->n_lines && status == FSDP_OK; i++)
        if (!find(a, &b->lines[i]))
            status = difference_row(t, titles[b->lines[i].class], b->lines[i].name, 0, per_step(b, b->lines[i].us));
    if (status == FSDP_OK)
        status = table_text(t, &text);
    if (status == FSDP_OK)
        fprintf(out, "From %s to %s:\n%s\n", a->path, b->path, text);
    free(text);
    table_free(t);
    return status;
}

static fsdp_status summarize(FILE *out, const char *const *files, int n)
{
    sums *list = calloc((size_t)n, sizeof *list);
    fsdp_status status = list ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "summing up traces: out of memory");
    int read = 0;
    while (status == FSDP_OK && read < n) {
        status = read_sums(files[read], &list[read]);
        read++;
        if (status == FSDP_OK)
            say_whole(out, &list[read - 1]);
        if (status == FSDP_OK)
            status = say_table(out, &list[read - 1]);
    }
    if (status == FSDP_OK && n == 2)
        status = say_difference(out, &list[0], &list[1]);
    for (int i = 0; i < read; i++)
        sums_free(&list[i]);
    free(list);
    return status;
}

fsdp_status fsdp_trace_summary(const char *const *files, int n, char **text)
{
    size_t bytes;
    *text = NULL;
    FILE *out = open_memstream(text, &bytes);
    fsdp_status status = out ? summarize(out, files, n) : error_set(FSDP_ERR_MEMORY, "out of memory");
    if (out && fclose(out) != 0 && status == FSDP_OK)
        status = error_set(FSDP_ERR_MEMORY, "summing up traces: out of memory");
    if (status != FSDP_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
