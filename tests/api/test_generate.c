/* Text from a model that is open: what its logits say, the same however it is sharded, and without a trace in its
 * training. */
#include "api/support_stack.h"

#include <fsdp/generate.h>
#include <fsdp/models.h>
#include <fsdp/tokenizer.h>

enum { VOCABULARY = 300, LENGTH = 8, STEPS = 4, NEW = 40, TEXT = 1024 };

typedef struct job {
    fsdp_strategy strategy;
    fsdp_dtype dtype;
    bool t5, held, offload, generates;
    /* Out: */
    char first[TEXT], last[TEXT]; /* drawn before the first step and after the last */
    uint64_t parameters;
} job;

static const fsdp_llama_config llama = {.size = sizeof llama,
                                        .vocabulary = VOCABULARY,
                                        .hidden = 32,
                                        .intermediate = 48,
                                        .layers = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 8,
                                        .positions = 24, /* fewer than a text has: the older half is forgotten */
                                        .rope_base = 10000,
                                        .rope_factor = 1,
                                        .norm_eps = 1e-5f,
                                        .init_deviation = 0.2f};

static fsdp_status build(bool t5, fsdp_module **out)
{
    fsdp_t5_config c = FSDP_T5_CONFIG_INIT;
    c.vocabulary = VOCABULARY, c.hidden = 32, c.intermediate = 48, c.layers = c.decoder_layers = 2;
    c.heads = 4, c.head_dim = 8;
    return t5 ? fsdp_t5_new(&c, out) : fsdp_llama_new(&llama, out);
}

static fsdp_status train_step(fsdp_world *w, fsdp_model *m, const job *j, int step, bool last)
{
    static int32_t ids[LENGTH], labels[LENGTH];
    const int64_t shape[] = {1, LENGTH};
    for (int i = 0; i < LENGTH; i++) {
        ids[i] = (i * 31 + step * 7 + fsdp_world_rank(w) * 3) % 256;
        labels[i] = (ids[i] * 5 + 1) % 256;
    }
    fsdp_module *net = fsdp_model_module(m);
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *x = fsdp_input(t, FSDP_I32, 2, shape, ids), *y = fsdp_input(t, FSDP_I32, 2, shape, labels);
    return fsdp_backward(t, j->t5 ? fsdp_t5_loss(net, t, x, NULL, x, y) : fsdp_llama_loss(net, t, x, y), last);
}

static void append(void *context, const char *text, size_t bytes)
{
    size_t n = strlen(context);
    if (n + bytes < TEXT) {
        memcpy((char *)context + n, text, bytes);
        ((char *)context)[n + bytes] = 0;
    }
}

static fsdp_generate_config drawn(char *text)
{
    fsdp_generate_config c = FSDP_GENERATE_CONFIG_INIT;
    c.prompt = "Once upon";
    c.prompt_bytes = strlen(c.prompt);
    c.max_new_tokens = NEW;
    c.temperature = 0.8;
    c.seed = 5;
    c.stop_at_eos = false;
    c.text = append;
    c.context = text;
    text[0] = 0;
    return c;
}

static fsdp_status write_text(fsdp_world *w, fsdp_model *m, fsdp_tokenizer *tokenizer, char *text)
{
    char own[TEXT];
    fsdp_generate_config c = drawn(own);
    fsdp_generate_result r = FSDP_GENERATE_RESULT_INIT;
    FSDP_TRY(fsdp_generate_with(m, tokenizer, &c, &r));
    EXPECT(w, r.new_tokens == NEW && r.prompt_tokens >= 9 && !r.ended && r.rank == fsdp_world_rank(w));
    EXPECT(w, (r.rank == 0) == (own[0] != 0));
    if (r.rank == 0)
        memcpy(text, own, TEXT);
    return FSDP_OK;
}

static fsdp_status train(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_tokenizer *tokenizer;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *optimizer;
    char between[TEXT];
    config.strategy = j->strategy;
    config.shard_group_size = 1;
    config.param_dtype = j->dtype;
    config.cpu_offload = j->offload;
    config.sync_each_micro_batch = !j->held;
    config.wrap = fsdp_wrap_by_type("llama_block,t5_block");
    adam.lr = 0.01f;
    FSDP_TRY(fsdp_tokenizer_byte(&tokenizer));
    FSDP_TRY(build(j->t5, &net));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adam, &optimizer));
    if (j->generates)
        FSDP_TRY(write_text(w, m, tokenizer, j->first));
    int steps = ranks_are_on_gpu() ? 1 : STEPS; /* there, ranks that share a GPU take turns in every collective */
    for (int step = 0; step < steps; step++) {
        FSDP_TRY(train_step(w, m, j, 2 * step, false));
        if (j->generates)
            FSDP_TRY(write_text(w, m, tokenizer, between)); /* gradients of a micro-batch are waiting */
        FSDP_TRY(train_step(w, m, j, 2 * step + 1, true));
        FSDP_TRY(fsdp_step(optimizer, NULL));
        if (j->generates)
            FSDP_TRY(write_text(w, m, tokenizer, j->last));
    }
    float value[16];
    const char *name = j->t5 ? "shared.weight" : "model.embed_tokens.weight";
    FSDP_TRY(fsdp_parameter_read(m, name, 17, 16, value));
    if (fsdp_world_rank(w) == 0)
        j->parameters = stack_hash(1, value, sizeof value);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    fsdp_tokenizer_free(tokenizer);
    return FSDP_OK;
}

/* One rank that holds everything. */
static job run_alone(bool t5)
{
    job *j = shared_memory(sizeof *j);
    *j = (job){.strategy = FSDP_NO_SHARD, .t5 = t5, .generates = true};
    assert_true(ranks_run(1, train, j));
    return *j;
}

/* Every strategy twice: without a word, and writing. */
static void compare_strategies(const job *alone, int ranks)
{
    job *jobs = shared_memory(2 * FSDP_STRATEGY_COUNT * sizeof *jobs);
    for (int i = 0; i < 2 * FSDP_STRATEGY_COUNT; i++) {
        int strategy = i / 2;
        jobs[i] = (job){.strategy = (fsdp_strategy)strategy, .t5 = alone->t5, .held = ranks == 2};
        jobs[i].offload = strategy % 2;
        jobs[i].generates = i % 2;
    }
    assert_true(ranks_run_each(ranks, train, jobs, 2 * FSDP_STRATEGY_COUNT, sizeof *jobs));
    for (int strategy = 0; strategy < FSDP_STRATEGY_COUNT; strategy++) {
        const job *silent = &jobs[2 * strategy], *now = silent + 1;
        if (strcmp(now->first, alone->first) != 0 || now->parameters != silent->parameters)
            fail_msg("t5 %d, %d ranks, strategy %d: %s", alone->t5, ranks, strategy, now->first);
        if (strategy < FSDP_HYBRID && !ranks_are_on_gpu())
            assert_string_equal(now->last, jobs[1].last);
    }
}

static void every_strategy_writes_the_same_text_and_trains_as_if_it_had_not(void **state)
{
    (void)state;
    for (int t5 = 0; t5 < 2; t5++) {
        job alone = run_alone(t5);
        assert_true(strlen(alone.first) > NEW / 2);
        assert_true(strcmp(alone.first, alone.last) != 0); /* it has learned something */
        for (int ranks = 1; ranks <= 3; ranks = ranks_next_variant(ranks - 1, 3) + 1)
            compare_strategies(&alone, ranks);
    }
}

/* ---- What the logits say ---- */

/* The likeliest token after `n` ids, with the whole text read anew. */
static fsdp_status likeliest(fsdp_model *m, const int32_t *ids, int64_t n, int32_t *out)
{
    static float logits[32 * VOCABULARY];
    const int64_t shape[] = {1, n};
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *y = fsdp_llama_logits(fsdp_model_module(m), t, fsdp_input(t, FSDP_I32, 2, shape, ids));
    fsdp_output(t, y);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(y, logits, n * VOCABULARY));
    const float *row = logits + (n - 1) * VOCABULARY;
    *out = 0;
    for (int32_t i = 1; i < VOCABULARY; i++)
        *out = row[i] > row[*out] ? i : *out;
    return FSDP_OK;
}

static void greedy_text_is_what_the_logits_say(void **state)
{
    (void)state;
    enum { PROMPT = 5, FIT = 12 };
    char text[TEXT] = "", expected[TEXT] = "";
    int32_t ids[PROMPT + FIT] = {'T', 'h', 'e', ' ', 'c'};
    fsdp_world_config world = FSDP_WORLD_CONFIG_INIT;
    fsdp_config config = ranks_config();
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_tokenizer *tokenizer;
    const char *decoded;
    world.device = "cpu";
    assert_int_equal(fsdp_world_open(&world, &w), FSDP_OK);
    assert_int_equal(build(false, &net), FSDP_OK);
    assert_int_equal(fsdp_shard(w, net, &config, &m), FSDP_OK);
    assert_int_equal(fsdp_tokenizer_byte(&tokenizer), FSDP_OK);
    for (int n = PROMPT; n < PROMPT + FIT; n++) {
        assert_int_equal(likeliest(m, ids, n, &ids[n]), FSDP_OK);
        ids[n] = ids[n] < 128 ? ids[n] : '?'; /* compared as far as it is plain text */
        if (ids[n] == '?')
            break;
        assert_int_equal(fsdp_tokenizer_decode(tokenizer, ids, (size_t)n + 1, true, &decoded, NULL), FSDP_OK);
        snprintf(expected, sizeof expected, "%s", decoded);
    }
    fsdp_generate_config c = drawn(text);
    c.prompt = "The c";
    c.prompt_bytes = PROMPT;
    c.plain_prompt = c.echo = true;
    c.max_new_tokens = FIT;
    c.temperature = 0;
    assert_int_equal(fsdp_generate_with(m, tokenizer, &c, NULL), FSDP_OK);
    assert_true(strlen(expected) > PROMPT);
    assert_memory_equal(text, expected, strlen(expected));
    /* Draws: another first number, another text; the same one, the same. */
    char one[TEXT], two[TEXT], three[TEXT];
    char *const texts[] = {one, two, three};
    for (int i = 0; i < 3; i++) {
        c = drawn(texts[i]);
        c.first_draw = i == 1 ? 1000 : 0;
        c.window = 12;
        assert_int_equal(fsdp_generate_with(m, tokenizer, &c, NULL), FSDP_OK);
    }
    assert_string_equal(one, three);
    assert_true(strcmp(one, two) != 0);
    fsdp_tokenizer_free(tokenizer);
    fsdp_model_free(m);
    fsdp_world_close(w);
}

/* ---- Models of a program's own ---- */

typedef struct own_job {
    fsdp_strategy strategy;
    char text[TEXT], known[TEXT], slid[TEXT]; /* through `logits`; as the library's own; longer than the window */
} own_job;

/* To the library a model it does not know: what it writes from the logits alone is what it writes with its cache. */
static fsdp_status write_own(fsdp_world *w, void *context)
{
    own_job *j = context;
    fsdp_config config = ranks_config();
    fsdp_generate_result r = FSDP_GENERATE_RESULT_INIT;
    fsdp_tokenizer *tokenizer;
    fsdp_module *net;
    fsdp_model *m;
    char none[3][TEXT];
    bool prints = fsdp_world_rank(w) == 0;
    fsdp_generate_config own = drawn(prints ? j->text : none[0]), known = drawn(prints ? j->known : none[1]),
                         slid = drawn(prints ? j->slid : none[2]);
    config.strategy = j->strategy;
    config.wrap = fsdp_wrap_by_type("llama_block");
    FSDP_TRY(fsdp_tokenizer_byte(&tokenizer));
    FSDP_TRY(build(false, &net));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    own.logits = slid.logits = fsdp_llama_logits;
    own.window = (int64_t)own.prompt_bytes + 10;
    own.max_new_tokens = known.max_new_tokens = 10;
    slid.window = 4;
    FSDP_TRY(fsdp_generate_with(m, tokenizer, &own, &r));
    EXPECT(w, r.new_tokens == 10 && r.prompt_tokens == 9);
    FSDP_TRY(fsdp_generate_with(m, tokenizer, &known, NULL));
    FSDP_TRY(fsdp_generate_with(m, tokenizer, &slid, &r));
    EXPECT(w, r.new_tokens == NEW);
    fsdp_model_free(m);
    fsdp_tokenizer_free(tokenizer);
    return FSDP_OK;
}

static void models_of_ones_own_write_what_their_logits_say(void **state)
{
    (void)state;
    char first[2][TEXT];
    for (int ranks = 1; ranks <= 3; ranks++) {
        own_job *j = shared_memory(sizeof *j);
        j->strategy = ranks == 1 ? FSDP_NO_SHARD : ranks == 2 ? FSDP_FULL : FSDP_SHARD_GRAD_OP;
        assert_true(ranks_run(ranks, write_own, j));
        assert_true(j->text[0] != 0);
        assert_string_equal(j->text, j->known);
        if (ranks == 1) {
            memcpy(first[0], j->text, TEXT);
            memcpy(first[1], j->slid, TEXT);
        }
        assert_string_equal(j->text, first[0]);
        assert_string_equal(j->slid, first[1]);
    }
}

static fsdp_tensor *flat_logits(fsdp_module *net, fsdp_tape *t, fsdp_tensor *ids)
{
    return fsdp_reshape(t, fsdp_llama_logits(net, t, ids), 2, (int64_t[]){-1, VOCABULARY});
}

static fsdp_tensor *few_logits(fsdp_module *net, fsdp_tape *t, fsdp_tensor *ids)
{
    return fsdp_slice(t, fsdp_llama_logits(net, t, ids), 2, 0, 64);
}

/* ---- What is refused ---- */

static void differ(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    (void)name, (void)context;
    p->param_dtype = m->parent ? FSDP_BF16 : FSDP_F32;
}

typedef struct refusal {
    const char *says;
    int what;
} refusal;

enum {
    OWN_MODEL,
    ADDED_TO,
    MIXED,
    NAMES_MODEL,
    NAMES_DEVICE,
    NO_PROMPT,
    WINDOW,
    NO_TOKENIZER,
    NO_WINDOW,
    FLAT_LOGITS,
    FEW_LOGITS,
    N_REFUSALS
};

static fsdp_status refuse(fsdp_world *w, void *context)
{
    const refusal *r = context;
    fsdp_config config = ranks_config();
    fsdp_module *net;
    fsdp_model *m;
    fsdp_tokenizer *tokenizer;
    char text[TEXT];
    fsdp_generate_config c = drawn(text);
    config.wrap = fsdp_wrap_by_size(1000);
    config.cast_inputs = r->what == MIXED;
    config.policy = r->what == MIXED ? differ : NULL;
    FSDP_TRY(fsdp_tokenizer_byte(&tokenizer));
    if (r->what == OWN_MODEL)
        net = stack_new();
    else
        FSDP_TRY(build(false, &net));
    if (r->what == ADDED_TO)
        fsdp_module_add(net->children[0], "more", fsdp_linear_new(2, 2, false));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    EXPECT(w, fsdp_model_world(m) == w);
    c.model = r->what == NAMES_MODEL ? "model" : NULL;
    c.device = r->what == NAMES_DEVICE ? "cpu" : c.device;
    c.prompt = r->what == NO_PROMPT ? NULL : c.prompt;
    c.window = r->what == WINDOW ? 1 : r->what == FLAT_LOGITS || r->what == FEW_LOGITS ? 8 : 0;
    c.logits = r->what == FLAT_LOGITS ? flat_logits : r->what == FEW_LOGITS ? few_logits : NULL;
    c.logits = r->what == NO_WINDOW ? fsdp_llama_logits : c.logits;
    fsdp_status status = fsdp_generate_with(m, r->what == NO_TOKENIZER ? NULL : tokenizer, &c, NULL);
    if (status == FSDP_OK || !strstr(fsdp_last_error(), r->says))
        fprintf(stderr, "%s\n", fsdp_last_error());
    EXPECT(w, status != FSDP_OK && strstr(fsdp_last_error(), r->says));
    fsdp_model_free(m);
    fsdp_tokenizer_free(tokenizer);
    return FSDP_OK;
}

static void what_cannot_be_written_is_refused(void **state)
{
    (void)state;
    static const char *const says[N_REFUSALS] = {[OWN_MODEL] = "own model writes no text",
                                                 [ADDED_TO] = "own model writes no text",
                                                 [MIXED] = "units compute in",
                                                 [NAMES_MODEL] = "leave them",
                                                 [NAMES_DEVICE] = "leave them",
                                                 [NO_PROMPT] = "needs a prompt",
                                                 [WINDOW] = "a window of 1",
                                                 [NO_TOKENIZER] = "a tokenizer",
                                                 [NO_WINDOW] = "needs the window",
                                                 [FLAT_LOGITS] = "must have the shape (1, 8, vocabulary)",
                                                 [FEW_LOGITS] = "the model's vocabulary 64"};
    for (int i = 0; i < N_REFUSALS; i++) {
        refusal r = {says[i], i};
        assert_true(ranks_run(2, refuse, &r));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_writes_the_same_text_and_trains_as_if_it_had_not),
        cmocka_unit_test(greedy_text_is_what_the_logits_say),
        cmocka_unit_test(models_of_ones_own_write_what_their_logits_say),
        cmocka_unit_test(what_cannot_be_written_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
