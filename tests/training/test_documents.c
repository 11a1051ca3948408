/* Rows of several documents: nothing of one reaches another, each comes out as if it were alone in its row, and
 * strategies, recorded steps, checkpointing and offloading change no bit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/fsdp.h>

#include "base/rng.h"
#include "shard/model.h"
#include "training/support_training.h"

enum { VOCABULARY = 53, LONGEST = 200, MOST_ROWS = 3, TOKENS = MOST_ROWS * LONGEST };

static void assert_ok(fsdp_status status)
{
    if (status != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
}

/* Numbers of a test, the same in every run. */
static uint64_t drawn;

static int64_t draw(int64_t n)
{
    return (int64_t)(rng_word(rng_key_make(17), 3, drawn++) % (uint64_t)n);
}

typedef struct rows {
    int64_t n, length;
    int32_t ids[TOKENS], labels[TOKENS], documents[TOKENS], positions[TOKENS];
} rows;

/* Documents of every length: one token, tiles of kernels, whole rows; at the end there may be padding. */
static rows *draw_rows(int64_t n, int64_t length)
{
    rows *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->n = n, r->length = length;
    for (int64_t row = 0; row < n; row++) {
        int64_t padding = draw(3) == 0 ? draw(length) : 0;
        for (int64_t at = 0, number = 0; at < length; number++) {
            int64_t kind = draw(5), left = length - at;
            int64_t size = kind == 0 ? 1 : kind == 1 ? 64 : kind == 2 ? left : 1 + draw(kind == 3 ? 12 : 100);
            size = size < left ? size : left;
            for (int64_t i = 0; i < size; i++, at++) {
                int64_t token = row * length + at;
                bool is_padding = at >= length - padding;
                r->ids[token] = (int32_t)draw(VOCABULARY);
                r->documents[token] = is_padding ? -1 : (int32_t)number;
                r->positions[token] = is_padding ? 0 : (int32_t)i;
            }
        }
        for (int64_t at = 0; at < length; at++) {
            int64_t token = row * length + at;
            bool goes_on = at + 1 < length && r->positions[token + 1] > 0;
            r->labels[token] = goes_on ? r->ids[token + 1] : FSDP_IGNORE;
        }
    }
    return r;
}

/* Whether two tokens are of one document; a padding token is alone. */
static bool together(const rows *r, int64_t a, int64_t b)
{
    if (a == b)
        return true;
    return a / r->length == b / r->length && r->documents[a] >= 0 && r->documents[a] == r->documents[b];
}

static fsdp_model *open_model(fsdp_world *w, fsdp_family family, int64_t heads, int64_t kv_heads, int64_t window,
                              fsdp_dtype dtype)
{
    fsdp_decoder_config c = FSDP_DECODER_CONFIG_INIT;
    fsdp_config sharding = FSDP_CONFIG_INIT;
    fsdp_module *net;
    fsdp_model *m;
    c.family = family;
    c.vocabulary = VOCABULARY, c.hidden = 32, c.intermediate = 48, c.layers = 2, c.heads = heads, c.kv_heads = kv_heads;
    c.head_dim = 8, c.positions = LONGEST, c.window = window;
    if (family == FSDP_FAMILY_GPT2)
        c.function = FSDP_FUNCTION_GELU_TANH, c.tied = true;
    if (family == FSDP_FAMILY_GEMMA3)
        c.function = FSDP_FUNCTION_GELU_TANH, c.tied = true, c.rope_local_base = 1000, c.full_layers[0] = 2;
    c.init_deviation = 0.3f; /* so that attention is far from even */
    sharding.param_dtype = dtype;
    assert_ok(fsdp_decoder_new(&c, &net));
    assert_ok(fsdp_shard(w, net, &sharding, &m));
    return m;
}

/* (tokens, VOCABULARY) */
static float *logits_of(fsdp_model *m, const rows *r)
{
    int64_t shape[] = {r->n, r->length}, n = r->n * r->length * VOCABULARY;
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *logits = fsdp_decoder_logits_packed(fsdp_model_module(m), t, fsdp_input(t, FSDP_I32, 2, shape, r->ids),
                                                     fsdp_input(t, FSDP_I32, 2, shape, r->documents),
                                                     fsdp_input(t, FSDP_I32, 2, shape, r->positions));
    logits = fsdp_output(t, fsdp_cast(t, logits, FSDP_F32));
    assert_ok(fsdp_evaluate(t));
    assert_ok(fsdp_read(logits, values, n));
    return values;
}

static fsdp_world *open_world(void)
{
    fsdp_world_config c = FSDP_WORLD_CONFIG_INIT;
    fsdp_world *w;
    c.device = "cpu", c.threads = 2;
    assert_ok(fsdp_world_open(&c, &w));
    return w;
}

typedef struct variant {
    fsdp_family family;
    int64_t heads, kv_heads, window;
} variant;

static const variant variants[] = {
    {FSDP_FAMILY_LLAMA, 4, 2, 0},   {FSDP_FAMILY_MISTRAL, 4, 1, 23}, {FSDP_FAMILY_QWEN3, 3, 3, 0},
    {FSDP_FAMILY_GEMMA3, 4, 2, 16}, {FSDP_FAMILY_GPT2, 4, 4, 0},
};

enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

static void expect_no_trace(const rows *r, int64_t changed, const float *before, const float *after, int *moved)
{
    for (int64_t token = 0; token < r->n * r->length; token++) {
        bool same = memcmp(before + token * VOCABULARY, after + token * VOCABULARY, VOCABULARY * sizeof(float)) == 0;
        if (!same && (!together(r, changed, token) || token < changed))
            fail_msg("token %lld (document %d) changed logits of token %lld (document %d) of rows of %lld",
                     (long long)changed, r->documents[changed], (long long)token, r->documents[token],
                     (long long)r->length);
        *moved += !same && token > changed;
    }
}

static void a_changed_token_changes_no_bit_of_another_document(void **state)
{
    (void)state;
    const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    fsdp_world *w = open_world();
    for (int v = 0; v < N_VARIANTS; v++) {
        for (int d = 0; d < 3; d++) {
            fsdp_model *m = open_model(w, variants[v].family, variants[v].heads, variants[v].kv_heads,
                                       variants[v].window, dtypes[d]);
            int moved = 0;
            for (int cut = 0; cut < 4; cut++) {
                rows *r = draw_rows(1 + draw(MOST_ROWS), cut == 0 ? 1 + draw(20) : 20 + draw(LONGEST - 19));
                float *before = logits_of(m, r);
                for (int i = 0; i < 3; i++) {
                    int64_t changed = draw(r->n * r->length);
                    int32_t was = r->ids[changed];
                    r->ids[changed] = (int32_t)((was + 1 + draw(VOCABULARY - 1)) % VOCABULARY);
                    float *after = logits_of(m, r);
                    expect_no_trace(r, changed, before, after, &moved);
                    r->ids[changed] = was;
                    free(after);
                }
                free(before);
                free(r);
            }
            assert_true(moved > 0); /* within its document a token is seen */
            fsdp_model_free(m);
        }
    }
    fsdp_world_close(w);
}

/* The document of tokens first .. first + n - 1, alone in a row of `length`, and padding after it. */
static rows *alone(const rows *r, int64_t first, int64_t n, int64_t length)
{
    rows *one = calloc(1, sizeof *one);
    assert_non_null(one);
    one->n = 1, one->length = length;
    for (int64_t i = 0; i < length; i++) {
        one->documents[i] = -1;
        one->labels[i] = FSDP_IGNORE;
    }
    for (int64_t i = 0; i < n; i++) {
        one->documents[i] = 0;
        one->ids[i] = r->ids[first + i];
        one->labels[i] = r->labels[first + i];
        one->positions[i] = (int32_t)i;
    }
    return one;
}

static int64_t size_of_document(const rows *r, int64_t first)
{
    int64_t n = 1;
    while ((first + n) % r->length != 0 && together(r, first, first + n))
        n++;
    return n;
}

/* Up to rounding: products of another number of rows, and tiles that lie otherwise, add in another order. */
static void a_packed_row_equals_each_document_alone(void **state)
{
    (void)state;
    fsdp_world *w = open_world();
    for (int v = 0; v < N_VARIANTS; v++) {
        fsdp_model *m =
            open_model(w, variants[v].family, variants[v].heads, variants[v].kv_heads, variants[v].window, FSDP_F32);
        for (int cut = 0; cut < 4; cut++) {
            rows *r = draw_rows(1, 64 + draw(LONGEST - 63));
            float *packed = logits_of(m, r);
            int64_t n;
            for (int64_t first = 0; first < r->n * r->length; first += n) {
                n = size_of_document(r, first);
                rows *one = alone(r, first, n, draw(2) == 0 ? r->length : n);
                float *single = logits_of(m, one);
                const float *same = packed + first * VOCABULARY;
                for (int64_t i = 0; i < n * VOCABULARY; i++)
                    assert_true(fabsf(single[i] - same[i]) <= 2e-4f * (1 + fabsf(same[i])));
                free(single);
                free(one);
            }
            free(packed);
            free(r);
        }
        fsdp_model_free(m);
    }
    fsdp_world_close(w);
}

/* Gradients of the summed loss, one after another. */
static float *gradients_of(fsdp_model *m, const rows *r, int64_t *n)
{
    int64_t shape[] = {r->n, r->length};
    fsdp_tape *t = fsdp_begin(m);
    fsdp_loss loss = fsdp_decoder_loss_packed(fsdp_model_module(m), t, fsdp_input(t, FSDP_I32, 2, shape, r->ids),
                                              fsdp_input(t, FSDP_I32, 2, shape, r->labels),
                                              fsdp_input(t, FSDP_I32, 2, shape, r->documents),
                                              fsdp_input(t, FSDP_I32, 2, shape, r->positions));
    assert_ok(fsdp_backward(t, loss, true));
    *n = 0;
    for (int i = 0; i < m->contents.n_parameters; i++)
        *n += m->contents.parameters[i]->numel;
    float *all = malloc((size_t)*n * sizeof *all), *at = all;
    assert_non_null(all);
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        assert_ok(model_fetch(m, at, p->grad, (size_t)p->numel * sizeof *at));
        for (int64_t k = 0; k < p->numel; k++)
            at[k] = (float)(at[k] * m->expected_count / m->loss_scale);
        at += p->numel;
    }
    return all;
}

static void the_gradient_is_the_sum_over_documents_alone(void **state)
{
    (void)state;
    fsdp_world *w = open_world();
    for (int v = 0; v < N_VARIANTS; v++) {
        rows *r = draw_rows(2, 90 + draw(60));
        fsdp_model *m =
            open_model(w, variants[v].family, variants[v].heads, variants[v].kv_heads, variants[v].window, FSDP_F32);
        int64_t n, length, size;
        float *packed = gradients_of(m, r, &n);
        fsdp_model_free(m);
        double *sum = calloc((size_t)n, sizeof *sum), error = 0, norm = 0;
        for (int64_t first = 0; first < r->n * r->length; first += size) {
            size = size_of_document(r, first);
            rows *one = alone(r, first, size, size);
            m = open_model(w, variants[v].family, variants[v].heads, variants[v].kv_heads, variants[v].window,
                           FSDP_F32);
            float *part = gradients_of(m, one, &length);
            for (int64_t i = 0; i < n; i++)
                sum[i] += part[i];
            fsdp_model_free(m);
            free(part);
            free(one);
        }
        for (int64_t i = 0; i < n; i++) {
            error += (sum[i] - packed[i]) * (sum[i] - packed[i]);
            norm += sum[i] * sum[i];
        }
        if (!(norm > 0 && sqrt(error / norm) < 1e-5))
            fail_msg("%d: gradients are off by %g of their norm", v, sqrt(error / norm));
        free(packed);
        free(sum);
        free(r);
    }
    fsdp_world_close(w);
}

static training packed_training(int ranks)
{
    training t = training_default(TRAIN_LLAMA, ranks);
    t.packed = true;
    return t;
}

static void every_strategy_gives_the_same_bits(void **state)
{
    (void)state;
    training_result alone_result, first = {.hash = 0}, r;
    training one = packed_training(1), unpacked = training_default(TRAIN_LLAMA, 1);
    assert_true(training_run(&one, &alone_result));
    assert_true(training_run(&unpacked, &r));
    assert_true(r.hash != alone_result.hash);
    for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
        for (int way = 0; way < 3; way++) {
            training t = packed_training(3);
            t.config.strategy = (fsdp_strategy)s;
            t.config.checkpointing = way == 0 ? FSDP_CHECKPOINT_NONE : FSDP_CHECKPOINT_FULL;
            t.config.offload_activations = way == 2;
            assert_true(training_run(&t, &r));
            if (s == FSDP_FULL && way == 0)
                first = r;
            assert_true(r.hash == first.hash);
            assert_true(fabs(r.loss[TRAINING_STEPS - 1] - alone_result.loss[TRAINING_STEPS - 1]) < 1e-5);
        }
    }
}

/* Where documents lie changes from batch to batch: what is recorded must not know it. */
static void recorded_steps_have_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        for (int offload = 0; offload < 2; offload++) {
            training t = packed_training(ranks);
            training_result plain, recorded;
            t.config.checkpointing = offload ? FSDP_CHECKPOINT_FULL : FSDP_CHECKPOINT_NONE;
            t.config.offload_activations = offload;
            assert_true(training_run(&t, &plain));
            t.device = "recording";
            assert_true(training_run(&t, &recorded));
            assert_true(recorded.launches > TRAINING_STEPS);
            assert_true(plain.hash == recorded.hash);
        }
    }
}

static void planned_memory_is_what_is_held(void **state)
{
    (void)state;
    training t = packed_training(2);
    training_result all[TRAINING_MAX_RANKS];
    assert_true(training_run_all(&t, all));
    for (int i = 0; i < t.ranks; i++)
        assert_true(all[i].memory == all[i].planned_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_changed_token_changes_no_bit_of_another_document),
        cmocka_unit_test(a_packed_row_equals_each_document_alone),
        cmocka_unit_test(the_gradient_is_the_sum_over_documents_alone),
        cmocka_unit_test(every_strategy_gives_the_same_bits),
        cmocka_unit_test(recorded_steps_have_the_same_bits),
        cmocka_unit_test(planned_memory_is_what_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
