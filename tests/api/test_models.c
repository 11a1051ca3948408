/* Ready-made models as a program calls them: losses are those of the logits, documents in one row do not see each
 * other; adapters are trained, saved, loaded on another number of ranks and merged. */
#include "api/support_stack.h"

#include <math.h>
#include <unistd.h>

#include <fsdp/lora.h>
#include <fsdp/models.h>

enum { VOCABULARY = 40, BATCH = 2, WIDTH = 6, N_LOGITS = BATCH * WIDTH * VOCABULARY };

static fsdp_status decoder(fsdp_family family, fsdp_module **out)
{
    fsdp_decoder_config c = FSDP_DECODER_CONFIG_INIT;
    c.family = family;
    c.vocabulary = VOCABULARY, c.hidden = 16, c.intermediate = 24, c.layers = 2, c.heads = 4, c.kv_heads = 2;
    c.head_dim = 8, c.positions = 16, c.init_deviation = 0.3f;
    return fsdp_decoder_new(&c, out);
}

static fsdp_status shard(fsdp_world *w, fsdp_module *net, fsdp_model **out)
{
    fsdp_config config = ranks_config();
    config.wrap = fsdp_wrap_by_size(500);
    return fsdp_shard(w, net, &config, out);
}

static fsdp_tensor *rows(fsdp_tape *t, const int32_t *values)
{
    return fsdp_input(t, FSDP_I32, 2, (int64_t[]){BATCH, WIDTH}, values);
}

static const int32_t ids[BATCH * WIDTH] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
static const int32_t labels[BATCH * WIDTH] = {1, 4, 1, 5, 9, FSDP_IGNORE, 6, 5, 3, 5, 8, FSDP_IGNORE};
static const int32_t halves[BATCH * WIDTH] = {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1};
static const int32_t within[BATCH * WIDTH] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};

/* The loss against the cross-entropy of the logits; *logits on request. */
static fsdp_status compare(fsdp_world *w, fsdp_tape *t, fsdp_tensor *out, fsdp_loss loss, float *logits)
{
    float mine[2], its[2];
    fsdp_loss by_hand = fsdp_cross_entropy(t, out, rows(t, labels), FSDP_IGNORE);
    fsdp_output(t, out);
    fsdp_output(t, loss.sum), fsdp_output(t, loss.count);
    fsdp_output(t, by_hand.sum), fsdp_output(t, by_hand.count);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(by_hand.sum, &mine[0], 1));
    FSDP_TRY(fsdp_read(by_hand.count, &mine[1], 1));
    FSDP_TRY(fsdp_read(loss.sum, &its[0], 1));
    FSDP_TRY(fsdp_read(loss.count, &its[1], 1));
    EXPECT(w, its[1] == 10 && mine[1] == 10 && its[0] > 1 && fabsf(mine[0] - its[0]) < 1e-3f * its[0]);
    return logits ? fsdp_read(out, logits, N_LOGITS) : FSDP_OK;
}

/* Two documents of three tokens in each row: the second's logits do not know the first. */
static fsdp_status pack_documents(fsdp_world *w, void *context)
{
    static float plain[N_LOGITS], packed[N_LOGITS], changed[N_LOGITS];
    int32_t other[BATCH * WIDTH];
    fsdp_module *net;
    fsdp_model *m;
    (void)context;
    FSDP_TRY(decoder(FSDP_FAMILY_QWEN3, &net));
    FSDP_TRY(shard(w, net, &m));
    fsdp_tape *t = fsdp_begin_evaluation(m);
    FSDP_TRY(compare(w, t, fsdp_decoder_logits(net, t, rows(t, ids)),
                     fsdp_decoder_loss(net, t, rows(t, ids), rows(t, labels)), plain));
    for (int i = 0; i < BATCH * WIDTH; i++)
        other[i] = i % WIDTH < WIDTH / 2 ? (ids[i] + 7) % VOCABULARY : ids[i];
    for (int change = 0; change < 2; change++) {
        t = fsdp_begin_evaluation(m);
        fsdp_tensor *in = rows(t, change ? other : ids), *documents = rows(t, halves), *positions = rows(t, within);
        FSDP_TRY(compare(w, t, fsdp_decoder_logits_packed(net, t, in, documents, positions),
                         fsdp_decoder_loss_packed(net, t, in, rows(t, labels), documents, positions),
                         change ? changed : packed));
    }
    for (int i = 0; i < BATCH * WIDTH; i++) {
        bool second = i % WIDTH >= WIDTH / 2;
        const float *a = packed + i * VOCABULARY, *b = (second ? changed : plain) + i * VOCABULARY;
        for (int k = 0; k < VOCABULARY; k++)
            EXPECT(w, fabsf(a[k] - b[k]) < 1e-4f);
    }
    EXPECT(w, memcmp(plain, packed, sizeof plain) != 0 && memcmp(packed, changed, sizeof packed) != 0);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void documents_in_one_row_do_not_see_each_other(void **state)
{
    (void)state;
    assert_true(ranks_run(2, pack_documents, NULL));
}

static fsdp_status compare_t5(fsdp_world *w, void *context)
{
    fsdp_t5_config c = FSDP_T5_CONFIG_INIT;
    fsdp_module *net;
    fsdp_model *m;
    (void)context;
    c.vocabulary = VOCABULARY, c.hidden = 16, c.intermediate = 24, c.layers = c.decoder_layers = 1;
    c.heads = 2, c.head_dim = 8;
    FSDP_TRY(fsdp_t5_new(&c, &net));
    FSDP_TRY(shard(w, net, &m));
    for (int masked = 0; masked < 2; masked++) {
        fsdp_tape *t = fsdp_begin_evaluation(m);
        fsdp_tensor *mask = masked ? rows(t, (const int32_t[]){1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0}) : NULL;
        FSDP_TRY(compare(w, t, fsdp_t5_logits(net, t, rows(t, ids), mask, rows(t, ids)),
                         fsdp_t5_loss(net, t, rows(t, ids), mask, rows(t, ids), rows(t, labels)), NULL));
    }
    fsdp_model_free(m);
    return FSDP_OK;
}

static void the_loss_of_a_t5_is_that_of_its_logits(void **state)
{
    (void)state;
    assert_true(ranks_run(2, compare_t5, NULL));
}

static fsdp_status classify(fsdp_world *w, void *context)
{
    static const float x[] = {1, 2, 3, 4, -4, -3, -2, -1};
    static const int32_t classes[] = {2, 0};
    fsdp_mlp_config c = FSDP_MLP_CONFIG_INIT;
    fsdp_module *net;
    fsdp_model *m;
    float sums[2];
    (void)context;
    c.inputs = 4, c.hidden = 8, c.outputs = 3;
    FSDP_TRY(fsdp_mlp_new(&c, &net));
    FSDP_TRY(shard(w, net, &m));
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *in = fsdp_input(t, FSDP_F32, 2, (int64_t[]){2, 4}, x);
    fsdp_tensor *of = fsdp_input(t, FSDP_I32, 1, (int64_t[]){2}, classes);
    fsdp_loss its = fsdp_classifier_loss(net, t, in, of);
    fsdp_loss by_hand = fsdp_cross_entropy(t, fsdp_call(net, t, in), of, FSDP_IGNORE);
    fsdp_output(t, its.sum), fsdp_output(t, by_hand.sum);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(its.sum, &sums[0], 1));
    FSDP_TRY(fsdp_read(by_hand.sum, &sums[1], 1));
    EXPECT(w, sums[0] > 0 && fabsf(sums[0] - sums[1]) < 1e-5f);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void the_loss_of_a_classifier_is_that_of_its_logits(void **state)
{
    (void)state;
    assert_true(ranks_run(2, classify, NULL));
}

/* ---- Adapters ---- */

typedef struct adapted {
    char folder[64];
    float logits[N_LOGITS]; /* of the trained model with its adapters */
    uint64_t parameters;
} adapted;

static fsdp_status logits_of(fsdp_model *m, float *out)
{
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *y = fsdp_output(t, fsdp_decoder_logits(fsdp_model_module(m), t, rows(t, ids)));
    FSDP_TRY(fsdp_evaluate(t));
    return fsdp_read(y, out, N_LOGITS);
}

static fsdp_status train_adapters(fsdp_world *w, void *context)
{
    static float logits[N_LOGITS];
    adapted *a = context;
    fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_optimizer *optimizer;
    fsdp_module *net;
    fsdp_model *m;
    uint64_t parameters;
    lora.rank = 3, lora.alpha = 12;
    adam.lr = 0.05f;
    FSDP_TRY(decoder(FSDP_FAMILY_LLAMA, &net));
    FSDP_TRY(fsdp_lora(net, &lora));
    EXPECT(w, fsdp_lora(net, &lora) != FSDP_OK); /* once */
    FSDP_TRY(shard(w, net, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adam, &optimizer));
    for (int step = 0; step < 3; step++) {
        fsdp_tape *t = fsdp_begin(m);
        FSDP_TRY(fsdp_backward(t, fsdp_decoder_loss(net, t, rows(t, ids), rows(t, labels)), true));
        FSDP_TRY(fsdp_step(optimizer, NULL));
    }
    FSDP_TRY(fsdp_adapter_save(m, a->folder, "the/base"));
    FSDP_TRY(fsdp_adapter_save(m, a->folder, NULL));          /* again: it replaces its own */
    EXPECT(w, fsdp_adapter_save(m, "/tmp", NULL) != FSDP_OK); /* holds other things */
    FSDP_TRY(logits_of(m, logits));
    FSDP_TRY(stack_hash_parameters(m, &parameters));
    if (fsdp_world_rank(w) == 0) {
        memcpy(a->logits, logits, sizeof logits);
        a->parameters = parameters;
    }
    EXPECT(w, fsdp_adapter_merge(m, a->folder) != FSDP_OK); /* it has adapters of its own */
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

/* Initial values follow from the seed and names: the base is the same without being saved. */
static fsdp_status use_adapters(fsdp_world *w, void *context)
{
    static float logits[N_LOGITS];
    const adapted *a = context;
    fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
    fsdp_module *net;
    fsdp_model *m;
    uint64_t parameters;
    FSDP_TRY(fsdp_adapter_config(a->folder, &lora));
    EXPECT(w, lora.rank == 3 && lora.alpha == 12 && !lora.rslora);
    for (int merged = 0; merged < 2; merged++) {
        FSDP_TRY(decoder(FSDP_FAMILY_LLAMA, &net));
        if (!merged)
            FSDP_TRY(fsdp_lora(net, &lora));
        FSDP_TRY(shard(w, net, &m));
        FSDP_TRY(logits_of(m, logits));
        float before = logits[5];
        if (merged)
            EXPECT(w, fsdp_adapter_load(m, a->folder) != FSDP_OK); /* nowhere to put it */
        FSDP_TRY(merged ? fsdp_adapter_merge(m, a->folder) : fsdp_adapter_load(m, a->folder));
        FSDP_TRY(stack_hash_parameters(m, &parameters));
        EXPECT(w, (parameters == a->parameters) == !merged);
        FSDP_TRY(logits_of(m, logits));
        EXPECT(w, logits[5] != before);
        for (int i = 0; i < N_LOGITS; i++)
            EXPECT(w, fabsf(logits[i] - a->logits[i]) < 1e-3f);
        EXPECT(w, fsdp_adapter_merge(m, "/nowhere/at/all") != FSDP_OK);
        fsdp_model_free(m);
    }
    return FSDP_OK;
}

static void adapters_are_saved_loaded_and_merged_on_any_number_of_ranks(void **state)
{
    (void)state;
    adapted *a = shared_memory(sizeof *a);
    char command[128];
    strcpy(a->folder, "/tmp/fsdp-adapter-XXXXXX");
    assert_non_null(mkdtemp(a->folder));
    assert_true(ranks_run(2, train_adapters, a));
    for (int ranks = 1; ranks <= 3; ranks++)
        assert_true(ranks_run(ranks, use_adapters, a));
    snprintf(command, sizeof command, "rm -r %s", a->folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_in_one_row_do_not_see_each_other),
        cmocka_unit_test(the_loss_of_a_t5_is_that_of_its_logits),
        cmocka_unit_test(the_loss_of_a_classifier_is_that_of_its_logits),
        cmocka_unit_test(adapters_are_saved_loaded_and_merged_on_any_number_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
