/* Options by table, samples, memory, rows. The state of the row under way and the two options that every case has are
 * the only globals. */
#include "bench.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <fsdp/status.h>

#include "base/clock.h"

enum { HUGE_PAGE = 2 << 20, MAX_COLUMNS = 24, CELL = 48 };

static bool json, best;

/* ---- options ---- */

static bool set_option(const bench_option *o, const char *text)
{
    char *end;
    double number = strtod(text, &end);
    if (o->kind == BENCH_TEXT) {
        *(const char **)o->value = text;
        return true;
    }
    if (end == text || *end != '\0' || number < o->min || number > o->max)
        return false;
    if (o->kind == BENCH_INT)
        *(int *)o->value = (int)number;
    else
        *(double *)o->value = number;
    return true;
}

static const bench_option *find_option(const bench_option *table, const char *argument)
{
    static const bench_option common[] = {
        {"json", BENCH_SWITCH, &json, 0, 0}, {"best", BENCH_SWITCH, &best, 0, 0}, {NULL, BENCH_SWITCH, NULL, 0, 0}};
    const bench_option *const tables[] = {table, common};
    if (strncmp(argument, "--", 2) != 0)
        return NULL;
    for (int i = 0; i < 2; i++)
        for (const bench_option *o = tables[i]; o->name; o++)
            if (strcmp(o->name, argument + 2) == 0)
                return o;
    return NULL;
}

bool bench_options(int argc, char **argv, const bench_option *table)
{
    for (int i = 0; i < argc; i++) {
        const bench_option *o = find_option(table, argv[i]);
        if (!o) {
            fprintf(stderr, "bench: there is no option %s here\n", argv[i]);
            return false;
        }
        if (o->kind == BENCH_SWITCH) {
            *(bool *)o->value = true;
        } else if (i + 1 == argc || !set_option(o, argv[++i])) {
            fprintf(stderr, "bench: --%s wants a value from %g to %g\n", o->name, o->min, o->max);
            return false;
        }
    }
    return true;
}

int bench_list(const char *text, int *out, int most)
{
    int n = 0;
    for (char *end; n < most; text = end + 1) {
        long value = strtol(text, &end, 10);
        if (end == text || value < 1 || value > INT_MAX || (*end != ',' && *end != '\0'))
            return 0;
        out[n++] = (int)value;
        if (*end == '\0')
            return n;
    }
    return 0;
}

bool bench_is_json(void)
{
    return json;
}

void bench_fail(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, fsdp_last_error());
    exit(1);
}

/* ---- times ---- */

bench_moment bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (bench_moment){.wall = clock_seconds(), .cpu = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec};
}

void bench_add(bench_times *t, double wall, double cpu)
{
    if (t->n == BENCH_SAMPLES)
        return;
    t->wall[t->n] = wall;
    t->cpu[t->n++] = cpu;
}

void bench_record(bench_times *t, bench_moment begun)
{
    bench_moment end = bench_now();
    bench_add(t, end.wall - begun.wall, end.cpu - begun.cpu);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, ascending);
    return n > 0 ? samples[n / 2] : 0;
}

double bench_best(double *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, ascending);
    return n > 0 ? samples[0] : 0;
}

double bench_typical(double *samples, int n)
{
    return (best ? bench_best : bench_median)(samples, n);
}

/* ---- memory ---- */

static size_t whole_pages(size_t bytes)
{
    return (bytes / HUGE_PAGE + 1) * HUGE_PAGE;
}

void *bench_take(size_t bytes)
{
    size_t whole = whole_pages(bytes);
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(memory, whole, MADV_HUGEPAGE);
    memset(memory, 1, whole);
    return memory;
}

void bench_give_back(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, whole_pages(bytes));
}

/* ---- figures ---- */

typedef struct cell {
    char column[CELL], text[CELL];
    bool number;
} cell;

static cell row[MAX_COLUMNS];
static int n_cells;
static char header[MAX_COLUMNS * CELL]; /* columns of the table that is being printed, a line each */

void bench_title(const char *format, ...)
{
    va_list arguments;
    if (json)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    header[0] = '\0';
}

static void add_cell(const char *column, const char *text, bool number)
{
    if (n_cells == MAX_COLUMNS)
        return;
    cell *c = &row[n_cells++];
    snprintf(c->column, sizeof c->column, "%s", column);
    snprintf(c->text, sizeof c->text, "%s", text);
    c->number = number;
}

void bench_text(const char *column, const char *value)
{
    add_cell(column, value, false);
}

void bench_number(const char *column, int decimals, double value)
{
    char text[CELL];
    if (isfinite(value))
        snprintf(text, sizeof text, "%.*f", decimals, value);
    else
        snprintf(text, sizeof text, "%s", json ? "null" : "-");
    add_cell(column, text, true);
}

static int width_of(const cell *c)
{
    int least = c->number ? 9 : 34, name = (int)strlen(c->column);
    return name > least ? name : least;
}

static void print_header(void)
{
    char columns[sizeof header] = "";
    for (int i = 0; i < n_cells; i++) {
        strcat(columns, row[i].column);
        strcat(columns, "\n");
    }
    if (strcmp(columns, header) == 0)
        return;
    strcpy(header, columns);
    for (int i = 0; i < n_cells; i++)
        printf("%s%*s", i ? "  " : "", row[i].number ? width_of(&row[i]) : -width_of(&row[i]), row[i].column);
    printf("\n");
}

void bench_row(void)
{
    if (json)
        printf("{");
    else
        print_header();
    for (int i = 0; i < n_cells; i++) {
        const cell *c = &row[i];
        const char *quote = c->number ? "" : "\"";
        if (json)
            printf("%s\"%s\": %s%s%s", i ? ", " : "", c->column, quote, c->text, quote);
        else
            printf("%s%*s", i ? "  " : "", c->number ? width_of(c) : -width_of(c), c->text);
    }
    printf(json ? "}\n" : "\n");
    fflush(stdout);
    n_cells = 0;
}
