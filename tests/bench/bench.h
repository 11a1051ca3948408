/* The harness of build/bench/bench: cases by name, options, samples, memory and one way to print figures. Single
 * kernels are timed by bench/timer.h, as in `fsdp bench kernel`. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bench_case {
    const char *name, *summary, *usage;
    int (*run)(int argc, char **argv); /* arguments after the name; returns an exit code */
} bench_case;

extern const bench_case case_gemm, case_kernels, case_comm, case_overlap, case_tokenizer, case_checkpoint;

/* ---- Options: "--name", "--name 7", "--name text" ---- */

typedef enum bench_option_kind { BENCH_SWITCH, BENCH_INT, BENCH_DOUBLE, BENCH_TEXT } bench_option_kind;

typedef struct bench_option {
    const char *name; /* without dashes; NULL ends a table */
    bench_option_kind kind;
    void *value; /* bool, int, double, const char * */
    double min, max;
} bench_option;

/* Every case takes --json and --best besides: see bench_row and bench_typical. False, with a message, for what no
 * row names or allows. */
bool bench_options(int argc, char **argv, const bench_option *table);

/* The numbers of "1,16,128"; returns how many, 0 when it is not such a list. */
int bench_list(const char *text, int *out, int most);
bool bench_is_json(void);

/* Says what failed and fsdp_last_error, and ends the program with 1. */
_Noreturn void bench_fail(const char *what);

/* ---- Times ---- */

enum { BENCH_SAMPLES = 2000 };

/* Seconds of one contender, a round each. By the clock, and of all processors in this process and the kernel for it:
 * other work on the machine hardly changes those. */
typedef struct bench_times {
    int n;
    double wall[BENCH_SAMPLES], cpu[BENCH_SAMPLES];
} bench_times;

typedef struct bench_moment {
    double wall, cpu;
} bench_moment;

bench_moment bench_now(void);
void bench_add(bench_times *t, double wall, double cpu);
/* Adds the seconds since `begun`. */
void bench_record(bench_times *t, bench_moment begun);
/* The median, or with --best the least; 0 without samples. Sorts. */
double bench_typical(double *samples, int n);
double bench_median(double *samples, int n);
double bench_best(double *samples, int n);

/* ---- Memory: written once, in huge pages where there are some ---- */

void *bench_take(size_t bytes);
void bench_give_back(void *memory, size_t bytes); /* NULL is legal */

/* ---- Figures: rows of named columns; a table for people, or with --json an object a line ---- */

/* A line above the table; left out of JSON. */
void bench_title(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_text(const char *column, const char *value);
void bench_number(const char *column, int decimals, double value); /* NAN: not measured */
/* Ends the row. A row whose columns differ from the one before begins a new table. */
void bench_row(void);

#endif
