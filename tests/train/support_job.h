/* Whole training jobs in this process, small enough to run by the dozen: flags go in as on the command line, what was
 * said and what metrics.jsonl holds comes out. */
#ifndef TESTS_TRAIN_SUPPORT_JOB_H
#define TESTS_TRAIN_SUPPORT_JOB_H

#include <fsdp/train.h>

enum { JOB_MAX_STEPS = 128, JOB_SAMPLES = 50, JOB_WIDTH = 16 };

typedef struct job_step {
    double loss, lr, grad_norm;
    int64_t samples, tokens;
} job_step;

typedef struct job {
    char folder[64];    /* holds text.txt of JOB_SAMPLES contexts and whatever a test adds; removed by job_end */
    fsdp_status status; /* of the last run */
    char error[2048];   /* its message */
    char said[1 << 16]; /* all lines */
    int n_progress;     /* lines of progress among them */
    int most_threads;   /* of this process while a line was said */
    int n_steps;        /* lines of metrics.jsonl */
    job_step steps[JOB_MAX_STEPS];
    fsdp_train_result result;
} job;

job *job_begin(void);
void job_end(job *j);
/* The same for cmocka: one job for a group of tests, as its state. */
int job_setup(void **state);
int job_teardown(void **state);
/* A LLaMA of a few thousand parameters over text.txt, 4 steps of constant learning rate, with `flags` (NULL ends them)
 * behind its own. "@" at the start of a value stands for the job's folder. The run's folder is emptied before. */
void job_run(job *j, const char *const *flags);
/* The callback that collects lines in j->said. */
void job_hear(void *context, fsdp_line kind, const char *text);
/* The text of a file in the job's folder; malloc'd, NULL when there is none. */
char *job_file(const job *j, const char *name);
void job_write(const job *j, const char *name, const char *text);

#define RUN(j, ...) job_run(j, (const char *[]){__VA_ARGS__, NULL})

#endif
