/* What lies in a run folder, read as a stranger's: regular files of bounded size, no links, numbers checked, texts made
 * printable. What is missing, torn or of another form is noted and left out; it never fails the reading. */
#ifndef REPORT_RUN_FILES_H
#define REPORT_RUN_FILES_H

#include <stdbool.h>

#include <jansson.h>

#include <fsdp/status.h>

#include "base/record/laps.h"

/* Figures of a line of metrics.jsonl; NAN where there is none. */
typedef enum figure {
    FIGURE_LOSS,
    FIGURE_GRAD_NORM,
    FIGURE_LR,
    FIGURE_SECONDS,
    FIGURE_TOKENS_PER_S,
    FIGURE_UTILIZATION,
    FIGURE_TFLOPS,
    FIGURE_MEMORY,
    FIGURE_MEMORY_PEAK,
    FIGURE_PREDICTED,
    FIGURE_PREDICTED_EXPOSED,
    N_FIGURES,
} figure;

extern const char *const figure_names[N_FIGURES]; /* as metrics.jsonl has them */

typedef struct metrics_row {
    int64_t step;
    float laps[LAP_COUNT]; /* mean seconds over the ranks; 0 where the lap took none */
    float exposed;
    double figures[N_FIGURES];
    int slow_rank; /* -1: none was named */
    lap slow_phase;
} metrics_row;

typedef struct validation_row {
    int64_t step;
    double loss, accuracy;
} validation_row;

typedef struct run_files {
    char *path, *name; /* as given; its last part, printable */
    metrics_row *rows; /* (n_rows) steps ascend */
    int64_t n_rows;
    validation_row *validations; /* (n_validations) likewise */
    int64_t n_validations;
    json_t *settings, *run, *ranks; /* settings.json, run.json, ranks.json: objects, or NULL */
    json_t *checkpoints;            /* array of {name, step, written, time} */
    json_t *failures;               /* what ranks of the last session said when they failed: array of sentences */
    json_t *troubles;               /* array of sentences */
} run_files;

/* FSDP_ERR_INPUT where `path` is no folder or holds nothing of a run. The caller clears *out, also on failure. */
fsdp_status run_files_read(const char *path, run_files *out);
/* Only settings.json, run.json and the checkpoints, of a run that is not a stranger's: these lie in `checkpoints`. The
 * caller clears *out, also on failure. */
fsdp_status run_files_read_documents(const char *path, const char *checkpoints, run_files *out);
void run_files_clear(run_files *r); /* legal on zeros */

/* A file of the folder that is no link and a regular one of at most `most` bytes; NULL: there is none, which is noted
 * where it is there and not of that kind. malloc'd. */
char *run_files_find(run_files *r, const char *name, int64_t most);
void run_files_trouble(run_files *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `text` as a JSON string that shows, not does, what it holds; cut to a few hundred bytes. NULL: null. */
json_t *shown_text(const char *text);

#endif
