/* A random training program, drawn from a seed: a small net, the numbers it is trained with, and a list of what happens
 * to it. Plain data, so that a failing case can be copied, made smaller and run again. */
#ifndef TESTS_DIFFERENTIAL_CASE_H
#define TESTS_DIFFERENTIAL_CASE_H

#include <fsdp/optim.h>

enum {
    MAX_RANKS = 4,
    MAX_BLOCKS = 4,
    MAX_STEPS = 6,
    MAX_MICRO = 3,
    MAX_ROWS = 64, /* samples * tokens of a micro-batch */
    MAX_HIDDEN = 32,
    MAX_PARAMETERS = 5 + 6 * MAX_BLOCKS,
    TARGETS = 3, /* columns of the second loss */
    IGNORED = -100,
};

typedef enum block_kind { BLOCK_GELU, BLOCK_SILU, BLOCK_RELU, BLOCK_SWIGLU, BLOCK_KINDS } block_kind;

/* A recording: which parts of the net it uses, on what data. */
typedef struct recording {
    unsigned blocks; /* bit i: block i is called */
    int data;        /* number of its data: another, other tokens */
    int samples[MAX_RANKS], tokens[MAX_RANKS];
    bool poisoned;   /* rank 0's first feature is NaN */
    unsigned silent; /* bit i: rank i's labels are all ignored */
} recording;

typedef enum look { LOOK_NONE, LOOK_TRAINING, LOOK_EVALUATION } look;

typedef struct case_micro {
    recording work;
    int loss;                /* 0: cross entropy of the head; 1: squared error of the second head */
    bool nothing[MAX_RANKS]; /* the rank has run out of data: fsdp_backward_nothing */
    /* Before it something is evaluated: the same recording, in training mode, or another one in evaluation mode. */
    look before;
    recording seen;
} case_micro;

typedef struct case_step {
    float checks; /* not 0: a shadow step on the first micro-batch comes first, with this bound of errors */
    int n_micro;
    case_micro micro[MAX_MICRO];
    float lr;
    float scales;       /* not 0: the gradients' norm is asked for, and those of norms are multiplied by this */
    bool stepped_twice; /* a second fsdp_step, which has no gradients, must be refused */
    int reads;          /* parameter that is read behind the step, -1: none */
    int halves;         /* likewise: one that is written, half of what it was */
    bool whole;         /* its unit is unsharded for that, and resharded */
    look after;
    recording seen;
    bool averaged; /* what is looked at is the average of the weights */
} case_step;

typedef struct test_case {
    uint64_t seed;
    int ranks;
    bool recorded; /* on a device that records and launches graphs */
    /* The net. */
    int hidden, inner, vocabulary, n_blocks;
    block_kind kinds[MAX_BLOCKS];
    bool layernorm, bias, tied, features, fused_loss;
    float dropout;
    bool fp8; /* of blocks; no reference: settings are compared with each other */
    /* The numbers. */
    int wrap, frozen; /* into lists of support_engine.c */
    fsdp_dtype param_dtype, reduce_dtype;
    bool sync, decay_vectors, weighted;
    int64_t bucket_bytes;
    fsdp_optimizer_kind optimizer;
    float weight_decay, momentum, clip;
    fsdp_dtype state_dtype, gradient_dtype;
    float average, loss_scale;
    bool grouped; /* rates and decays by names */
    /* The program. */
    int n_steps;
    case_step steps[MAX_STEPS];
} test_case;

/* World size and device follow from seed % CASE_CLASSES: cases of one class can share a world. */
enum { CASE_CLASSES = 2 * MAX_RANKS };
test_case case_draw(uint64_t seed);

/* Its optimizer refuses units in host memory. */
bool case_stays_on_device(const test_case *c);
/* Some rank runs out of data. */
bool case_has_idle_ranks(const test_case *c);
/* The reference follows all that it does; otherwise settings are compared with each other alone. */
bool case_has_reference(const test_case *c);

/* A few lines that say what the case does. */
void case_print(const test_case *c);

/* The net's parameters, in the order in which outcomes list them. */
typedef struct case_parameter {
    char name[32];
    int n_dims;
    int64_t shape[2], numel;
} case_parameter;
int case_parameters(const test_case *c, case_parameter *out); /* out[MAX_PARAMETERS] */
bool case_freezes(const test_case *c, const char *name);
extern const char *const case_wraps[];    /* module types; "" for none */
extern const char *const case_freezing[]; /* globs; "" for none */
#define CASE_SCALED "*norm.weight"        /* glob of gradients that steps scale */

/* The data of a recording on one rank, a function of the case's seed and the recording's number. */
typedef struct case_data {
    int rows; /* samples * tokens */
    int32_t ids[MAX_ROWS], labels[MAX_ROWS];
    float features[MAX_ROWS * MAX_HIDDEN], targets[MAX_ROWS * TARGETS];
} case_data;
void case_fill(const test_case *c, const recording *r, int rank, case_data *out);

/* Random numbers of the tests themselves, from draw_mixed. */
int draw(uint64_t *state, int n); /* 0 .. n-1 */
bool chance(uint64_t *state, int percent);

/* ---- What came out, as a list of numbers ---- */

typedef enum entry_kind {
    ENTRY_LOSS,
    ENTRY_NORM,
    ENTRY_COUNT,
    ENTRY_SKIPPED,
    ENTRY_GRADIENT, /* norm before the step */
    ENTRY_CHECK,    /* errors of a layer in 8 bits */
    ENTRY_SEEN,     /* of an evaluation: this rank's own numbers */
    ENTRY_FIRST,    /* a parameter before training */
    ENTRY_READ,     /* a parameter behind a step, and at the end */
} entry_kind;

typedef struct entry {
    entry_kind kind;
    int step;  /* n_steps: the end */
    int which; /* micro-batch (-1: behind the step), or parameter */
    int64_t at;
    double value;
} entry;

typedef struct outcome {
    entry *list;
    int n, capacity;
    int followed; /* of a reference: entries before updates that come out of noise, which no other precision repeats */
} outcome;

void outcome_add(outcome *o, entry e);
void outcome_clear(outcome *o);
void outcome_free(outcome *o);
/* "norm of step 1", "blocks.0.up.weight[3] at the end" */
void entry_describe(const test_case *c, const entry *e, char *text, size_t bytes);
/* NULL when they are equal to the bit (any NaN equals any other); else a sentence in `text`. */
const char *outcome_differs(const test_case *c, const outcome *a, const outcome *b, char *text, size_t bytes);

#endif
