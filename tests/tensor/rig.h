/* What tensor tests stand on: parameters and constants with memory of their own, and programs that run on the CPU in a
 * slab full of NaN, so that whatever is read before it is written shows in the result. Knows no operation. */
#ifndef TESTS_TENSOR_RIG_H
#define TESTS_TENSOR_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/ops.h>

#include "base/rng.h"
#include "tensor/program.h"

#define RIG_MAX_PARAMETERS 32
#define RIG_MAX_CONSTANTS 128

typedef struct rig {
    device *dev;
    stream *compute, *transfers;
    step_scalars scalars;
    const statistics_group *statistics;
    float seed;
    uint64_t random_seed;
    size_t offload_bytes; /* of programs to come */
    fsdp_parameter parameters[RIG_MAX_PARAMETERS];
    int n_parameters;
    void *constants[RIG_MAX_CONSTANTS]; /* in the order of their first recording */
    int n_constants;
} rig;

/* A compiled recording and its memory. */
typedef struct plan {
    program *program;
    uint8_t *slab, *host;
    size_t slab_bytes, host_bytes;
} plan;

static inline void must_be(fsdp_status status, fsdp_status wanted, const char *file, int line)
{
    if (status == wanted)
        return;
    print_error("%s, wanted %s: %s\n", fsdp_status_name(status), fsdp_status_name(wanted),
                status == FSDP_OK ? "" : fsdp_last_error());
    _fail(file, line);
}

#define assert_ok(call) must_be((call), FSDP_OK, __FILE__, __LINE__)
#define assert_status(wanted, call) must_be((call), (wanted), __FILE__, __LINE__)

static inline void rig_open(rig *r)
{
    *r = (rig){.seed = 1, .random_seed = 7, .scalars = {.step = 3, .first_sample = 11}};
    assert_ok(device_open_cpu(CPU_GEMM_AUTO, &r->dev));
    assert_ok(r->dev->stream_create(r->dev, 0, &r->compute));
    assert_ok(r->dev->stream_create(r->dev, 0, &r->transfers));
}

/* Forgets parameters and constants. */
static inline void rig_clear(rig *r)
{
    for (int i = 0; i < r->n_parameters; i++) {
        free(r->parameters[i].data);
        free(r->parameters[i].grad);
    }
    for (int i = 0; i < r->n_constants; i++)
        free(r->constants[i]);
    r->n_parameters = r->n_constants = 0;
}

static inline void rig_close(rig *r)
{
    rig_clear(r);
    r->dev->stream_free(r->compute);
    r->dev->stream_free(r->transfers);
    device_close(r->dev);
}

/* For cmocka: one rig for a group of tests, as its state; and forgetting after a test. */
static inline int rig_setup(void **state)
{
    static rig shared;
    rig_open(&shared);
    *state = &shared;
    return 0;
}

static inline int rig_teardown(void **state)
{
    rig_close(*state);
    return 0;
}

static inline int rig_reset(void **state)
{
    rig_clear(*state);
    return 0;
}

static inline void *rig_memory(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xFF, bytes);
    return memory;
}

/* A trainable fp32 parameter with standard normal values. */
static inline fsdp_parameter *rig_parameter(rig *r, int n_dims, const int64_t *shape)
{
    assert_true(r->n_parameters < RIG_MAX_PARAMETERS);
    fsdp_parameter *p = &r->parameters[r->n_parameters];
    *p = (fsdp_parameter){
        .name = "parameter", .n_dims = n_dims, .numel = 1, .trainable = true, .index = r->n_parameters};
    p->dtype = p->grad_dtype = FSDP_F32;
    p->group_head = p;
    for (int i = 0; i < n_dims; i++) {
        p->shape[i] = shape[i];
        p->numel *= shape[i];
    }
    p->data = rig_memory((size_t)p->numel * sizeof(float));
    p->grad = rig_memory((size_t)p->numel * sizeof(float));
    rng_key key = rng_key_fold(rng_key_make(r->random_seed), (uint64_t)r->n_parameters);
    rng_fill_normal(key, 0, p->numel, 0, 1, p->data);
    r->n_parameters++;
    return p;
}

static inline void *rig_constant(rig *r, size_t bytes)
{
    assert_true(r->n_constants < RIG_MAX_CONSTANTS);
    return r->constants[r->n_constants++] = rig_memory(bytes);
}

static inline fsdp_tape *rig_tape(rig *r)
{
    fsdp_tape *t;
    assert_ok(tape_create(r->dev, &t));
    t->seed = r->random_seed;
    return t;
}

/* Takes the tape. root NULL: forward only. */
static inline plan rig_compile(rig *r, fsdp_tape *t, fsdp_tensor *root, bool stage_inputs)
{
    plan p;
    program_options options = {
        .backward = root != NULL, .stage_inputs = stage_inputs, .offload_bytes = r->offload_bytes};
    assert_ok(fsdp_tape_status(t));
    assert_ok(program_compile(t, root, &options, &p.program));
    p.slab_bytes = program_slab_bytes(p.program);
    p.host_bytes = program_host_bytes(p.program);
    assert_ok(r->dev->allocate(r->dev, MEMORY_DEVICE, p.slab_bytes + 256, (void **)&p.slab));
    assert_ok(r->dev->allocate(r->dev, MEMORY_HOST, p.host_bytes + 256, (void **)&p.host));
    return p;
}

static inline void rig_free(rig *r, plan *p)
{
    r->dev->release(r->dev, MEMORY_DEVICE, p->slab, p->slab_bytes + 256);
    r->dev->release(r->dev, MEMORY_HOST, p->host, p->host_bytes + 256);
    program_free(p->program);
}

static inline program_run_args rig_arguments(rig *r, const plan *p)
{
    return (program_run_args){.dev = r->dev,
                              .compute = r->compute,
                              .slab = p->slab,
                              .host = p->host,
                              .transfers = r->transfers,
                              .seed = &r->seed,
                              .scalars = &r->scalars,
                              .statistics = r->statistics,
                              .deterministic = true};
}

/* Gradients of all parameters, the slab and the host memory are NaN before. */
static inline void rig_run(rig *r, const plan *p)
{
    memset(p->slab, 0xFF, p->slab_bytes);
    memset(p->host, 0xFF, p->host_bytes);
    for (int i = 0; i < r->n_parameters; i++)
        memset(r->parameters[i].grad, 0xFF, (size_t)r->parameters[i].numel * sizeof(float));
    program_run_args arguments = rig_arguments(r, p);
    assert_ok(program_run(p->program, program_tape(p->program), &arguments));
}

/* The caller frees the result. */
static inline float *rig_output(const plan *p, const fsdp_tensor *x)
{
    buffer b;
    assert_ok(program_output(p->program, x, p->slab, &b));
    assert_int_equal(b.dtype, FSDP_F32);
    float *copy = malloc((size_t)x->numel * sizeof *copy + 1);
    assert_non_null(copy);
    return memcpy(copy, b.p, (size_t)x->numel * sizeof *copy);
}

/* All gradients behind one another; the caller frees the result. */
static inline float *rig_gradients(const rig *r, int64_t *n)
{
    *n = 0;
    for (int i = 0; i < r->n_parameters; i++)
        *n += r->parameters[i].numel;
    float *all = malloc((size_t)*n * sizeof *all + 1), *at = all;
    assert_non_null(all);
    for (int i = 0; i < r->n_parameters; at += r->parameters[i++].numel)
        memcpy(at, r->parameters[i].grad, (size_t)r->parameters[i].numel * sizeof *all);
    return all;
}

static inline bool same_bits(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static inline bool all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return false;
    }
    return true;
}

/* Largest difference relative to the largest of b. */
static inline double relative_distance(const float *a, const float *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference = fmax(difference, fabs((double)a[i] - b[i]));
        size = fmax(size, fabs((double)b[i]));
        if (isnan(a[i]) || isnan(b[i]))
            return INFINITY;
    }
    return size > 0 ? difference / size : difference;
}

#define DIMS(...)                                                                                                      \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                                       \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

#endif
