/* Drawing, running and comparing. */
#include "training/support_exact.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"

typedef struct exact_module {
    fsdp_module base;
    fsdp_module *layers[EXACT_LAYERS];
    fsdp_parameter *table, *scale;
} exact_module;

static const fsdp_module_class exact_class = {.type = "exact"};

enum { TABLE_ROWS = 7, TABLE_COLUMNS = 11, SCALE = 13 };

static uint32_t word(uint64_t seed, uint64_t a, uint64_t b)
{
    return rng_word(rng_key_make(seed), a, b);
}

static void add_parameter(exact_model *m, const char *name, int layer, int64_t rows, int64_t columns, bool vector,
                          bool muon)
{
    exact_parameter *p = &m->parameters[m->n_parameters++];
    *p = (exact_parameter){.rows = rows, .columns = columns, .vector = vector, .muon = muon};
    if (layer >= 0)
        snprintf(p->name, sizeof p->name, "l%d.%s", layer, name);
    else
        snprintf(p->name, sizeof p->name, "%s", name);
}

exact_model exact_draw(uint64_t seed)
{
    exact_model m = {.seed = seed, .n_layers = 1 + (int)(word(seed, 0, 0) % EXACT_LAYERS)};
    m.unit = 100 + word(seed, 0, 1) % 900;
    for (int i = 0; i < m.n_layers; i++) {
        m.inputs[i] = 1 + word(seed, 1, (uint64_t)i) % EXACT_WIDTH;
        m.outputs[i] = 1 + word(seed, 2, (uint64_t)i) % EXACT_WIDTH;
        add_parameter(&m, "weight", i, m.outputs[i], m.inputs[i], false, true);
        add_parameter(&m, "bias", i, 1, m.outputs[i], true, false);
    }
    add_parameter(&m, "table", -1, TABLE_ROWS, TABLE_COLUMNS, false, false);
    add_parameter(&m, "scale", -1, 1, SCALE, true, false);
    return m;
}

int64_t exact_numel(const exact_model *m, int parameter)
{
    return m->parameters[parameter].rows * m->parameters[parameter].columns;
}

static fsdp_module *make_net(const exact_model *m)
{
    exact_module *net = fsdp_module_new(&exact_class, sizeof *net);
    for (int i = 0; i < m->n_layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", i);
        net->layers[i] = fsdp_module_add(net, name, fsdp_linear_new(m->inputs[i], m->outputs[i], true));
    }
    net->table =
        fsdp_module_parameter(net, "table", 2, (const int64_t[]){TABLE_ROWS, TABLE_COLUMNS}, FSDP_INIT_NORMAL, 1);
    net->scale = fsdp_module_parameter(net, "scale", 1, (const int64_t[]){SCALE}, FSDP_INIT_ONE, 1);
    return &net->base;
}

fsdp_status exact_open(const exact_model *m, fsdp_config *config, const fsdp_optimizer_config *optimizer,
                       exact_run *out)
{
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_status status;
    *out = (exact_run){NULL, NULL, NULL};
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    config->wrap = fsdp_wrap_by_size(m->unit);
    TRY_OR(fail, fsdp_world_open(&wc, &out->world));
    TRY_OR(fail, fsdp_shard(out->world, make_net(m), config, &out->model));
    TRY_OR(fail, fsdp_optimizer_new(out->model, optimizer, &out->optimizer));
    return FSDP_OK;
fail:
    exact_close(out);
    return status;
}

void exact_close(exact_run *e)
{
    fsdp_optimizer_free(e->optimizer);
    fsdp_model_free(e->model);
    fsdp_world_close(e->world);
}

/* An integer of -3 to 3, sum of several rows: a function of the row's place in the whole batch. */
static float integer(const exact_model *m, int what, int64_t row, int64_t element)
{
    return (float)(word(m->seed * 64 + (uint64_t)what, (uint64_t)row, (uint64_t)element) % 7) - 3;
}

typedef struct rows {
    int64_t first, n;
} rows;

static fsdp_tensor *of_rows(fsdp_tape *t, const exact_model *m, int what, rows r, int64_t width, fsdp_dtype dtype,
                            float *values)
{
    for (int64_t i = 0; i < r.n * width; i++)
        values[i] = integer(m, what, r.first + i / width, i % width);
    return fsdp_cast(t, fsdp_input(t, FSDP_F32, 2, (const int64_t[]){r.n, width}, values), dtype);
}

/* Every element times the sum of its integers in these rows. */
static fsdp_tensor *weighted(fsdp_tape *t, const exact_model *m, int what, rows r, fsdp_parameter *p, int n_dims,
                             const int64_t *shape, fsdp_dtype dtype, float *values)
{
    int64_t n = n_dims == 2 ? shape[0] * shape[1] : shape[0];
    for (int64_t i = 0; i < n; i++) {
        values[i] = 0;
        for (int64_t k = 0; k < r.n; k++)
            values[i] += integer(m, what, r.first + k, i);
    }
    return fsdp_sum(t,
                    fsdp_mul(t, fsdp_use(t, p), fsdp_cast(t, fsdp_input(t, FSDP_F32, n_dims, shape, values), dtype)));
}

typedef struct batch {
    float x[EXACT_LAYERS][EXACT_ROWS * EXACT_WIDTH], y[EXACT_LAYERS][EXACT_ROWS * EXACT_WIDTH];
    float table[TABLE_ROWS * TABLE_COLUMNS], scale[SCALE], ones[EXACT_ROWS];
} batch;

static fsdp_loss record(const exact_run *e, const exact_model *m, fsdp_tape *t, rows r, batch *b)
{
    exact_module *net = (exact_module *)fsdp_model_module(e->model);
    fsdp_dtype dtype = e->model ? fsdp_tensor_dtype(fsdp_use(t, net->scale)) : FSDP_F32;
    fsdp_tensor *sum =
        weighted(t, m, 0, r, net->table, 2, (const int64_t[]){TABLE_ROWS, TABLE_COLUMNS}, dtype, b->table);
    sum = fsdp_add(t, sum, weighted(t, m, 1, r, net->scale, 1, (const int64_t[]){SCALE}, dtype, b->scale));
    for (int i = 0; i < m->n_layers; i++) {
        fsdp_tensor *x = of_rows(t, m, 2 + 2 * i, r, m->inputs[i], dtype, b->x[i]);
        fsdp_tensor *y = of_rows(t, m, 3 + 2 * i, r, m->outputs[i], dtype, b->y[i]);
        sum = fsdp_add(t, sum, fsdp_sum(t, fsdp_mul(t, fsdp_call(net->layers[i], t, x), y)));
    }
    for (int64_t i = 0; i < r.n; i++)
        b->ones[i] = 1;
    return (fsdp_loss){fsdp_output(t, sum), fsdp_output(t, fsdp_sum(t, fsdp_input(t, FSDP_F32, 1, &r.n, b->ones)))};
}

fsdp_status exact_backward(exact_run *e, const exact_model *m, int step, int micro_batches)
{
    static batch b;
    int64_t share = EXACT_ROWS / fsdp_world_size(e->world);
    for (int i = 0; i < micro_batches; i++) {
        rows r = {((int64_t)step * micro_batches + i) * EXACT_ROWS + fsdp_world_rank(e->world) * share, share};
        fsdp_tape *t = fsdp_begin(e->model);
        FSDP_TRY(fsdp_backward(t, record(e, m, t, r, &b), i + 1 == micro_batches));
    }
    return FSDP_OK;
}

fsdp_status exact_hash(const exact_run *e, const exact_model *m, uint64_t *out)
{
    static float values[EXACT_MAX];
    *out = HASH_START;
    for (int i = 0; i < m->n_parameters; i++) {
        FSDP_TRY(fsdp_parameter_read(e->model, m->parameters[i].name, 0, exact_numel(m, i), values));
        *out = hash_bytes(*out, values, (size_t)exact_numel(m, i) * sizeof *values);
    }
    return FSDP_OK;
}

fsdp_status exact_fail(const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return error_set(FSDP_ERR_STATE, "%s", text);
}

bool exact_ranks(int ranks, fsdp_status (*body)(int rank, void *context), void *context)
{
    return ranks_run(ranks, body, context);
}

/* ---- One process against several ---- */

typedef struct exact_case {
    exact_model model;
    fsdp_config config;
    fsdp_optimizer_config optimizer;
    int micro_batches;
    uint64_t *hash; /* shared */
} exact_case;

static fsdp_status run_case(int rank, void *context)
{
    exact_case *c = context;
    exact_run e;
    uint64_t hash;
    FSDP_TRY(exact_open(&c->model, &c->config, &c->optimizer, &e));
    for (int step = 1; step <= 3; step++) {
        FSDP_TRY(exact_backward(&e, &c->model, step, c->micro_batches));
        FSDP_TRY(fsdp_step(e.optimizer, NULL));
    }
    FSDP_TRY(exact_hash(&e, &c->model, &hash));
    exact_close(&e);
    if (rank == 0)
        *c->hash = hash;
    return FSDP_OK;
}

static uint64_t hash_of(exact_case *c, int ranks)
{
    *c->hash = 0;
    if (!ranks_run(ranks, run_case, c))
        fail_msg("seed %llu on %d ranks failed", (unsigned long long)c->model.seed, ranks);
    return *c->hash;
}

void exact_same_bits_everywhere(fsdp_optimizer_kind kind, uint64_t first, int n)
{
    uint64_t *hash = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), last = 0;
    assert_true(hash != MAP_FAILED);
    for (uint64_t seed = first; seed < first + (uint64_t)n; seed++) {
        exact_case c = {.model = exact_draw(seed), .config = FSDP_CONFIG_INIT, .optimizer = FSDP_OPTIMIZER_CONFIG_INIT};
        c.hash = hash;
        c.optimizer.kind = kind, c.optimizer.lr = 0.03f, c.optimizer.weight_decay = 0.1f;
        c.optimizer.clip = word(seed, 9, 0) % 2 ? 0.5f : 0;
        c.optimizer.average = word(seed, 9, 1) % 3 ? 0 : 0.5f;
        c.config.param_dtype = word(seed, 9, 2) % 2 ? FSDP_BF16 : FSDP_F32;
        c.config.sync_each_micro_batch = word(seed, 9, 3) % 2;
        c.micro_batches = 1 + (int)(word(seed, 9, 4) % 2);
        uint64_t alone = hash_of(&c, 1);
        assert_true(alone != last); /* the seed decides */
        last = alone;
        for (int ranks = 2; ranks <= 4; ranks++) {
            bool grouped = ranks == 4 && word(seed, 9, 5) % 2;
            c.config.strategy = grouped ? (fsdp_strategy)(FSDP_HYBRID + word(seed, 9, 6) % 2)
                                        : (fsdp_strategy)(word(seed, 9, 7 + (uint64_t)ranks) % 4);
            c.config.shard_group_size = grouped ? 2 : 0;
            if (hash_of(&c, ranks) != alone)
                fail_msg("seed %llu: %d ranks with %s differ from one process", (unsigned long long)seed, ranks,
                         fsdp_strategy_name(c.config.strategy));
        }
    }
    munmap(hash, 4096);
}
