/* Generation over a cache: the same logits and tokens as a model that reads the whole text anew for every token; the
 * choice of tokens; text given out in whole characters. Models and shapes come from the golden folders. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/generate.h>

#include "base/file.h"
#include "generate/generate.h"
#include "state/weights.h"

typedef struct rig {
    model_config config;
    fsdp_world *world;
    fsdp_model *model;
    int64_t vocabulary;
    float *cached, *anew;
} rig;

static const char *golden_root(void)
{
    const char *root = getenv("FSDP_GOLDEN_DIR");
    return root ? root : FSDP_GOLDEN_DEFAULT;
}

/* False when the golden data has no such folder. */
static bool rig_open(rig *r, const char *folder, fsdp_dtype dtype)
{
    char *path = file_join(golden_root(), folder);
    fsdp_config sharding = FSDP_CONFIG_INIT;
    fsdp_world_config world = FSDP_WORLD_CONFIG_INIT;
    fsdp_module *net;
    if (!file_exists(path)) {
        free(path);
        return false;
    }
    world.device = "cpu";
    world.threads = 2;
    sharding.param_dtype = dtype;
    assert_int_equal(model_config_read(path, &r->config), FSDP_OK);
    assert_int_equal(fsdp_world_open(&world, &r->world), FSDP_OK);
    assert_int_equal(model_create(&r->config, &net), FSDP_OK);
    assert_int_equal(fsdp_shard(r->world, net, &sharding, &r->model), FSDP_OK);
    assert_int_equal(fsdp_weights_load(r->model, path, NULL, NULL), FSDP_OK);
    r->vocabulary = r->config.type == MODEL_T5 ? r->config.t5.vocabulary : r->config.decoder.vocabulary;
    r->cached = malloc((size_t)r->vocabulary * sizeof(float));
    r->anew = malloc((size_t)r->vocabulary * sizeof(float));
    free(path);
    return true;
}

static void rig_close(rig *r)
{
    fsdp_model_free(r->model);
    fsdp_world_close(r->world);
    free(r->cached);
    free(r->anew);
}

/* Logits behind the last of the ids, by reading all of them. Source counts for T5 only. */
static void read_anew(rig *r, const int32_t *source, int64_t n_source, const int32_t *ids, int64_t n)
{
    int64_t shape[] = {1, n}, source_shape[] = {1, n_source}, numel = n * r->vocabulary;
    fsdp_module *net = fsdp_model_module(r->model);
    fsdp_tape *t = fsdp_begin_evaluation(r->model);
    fsdp_tensor *in = fsdp_input(t, FSDP_I32, 2, shape, ids);
    fsdp_tensor *out = r->config.type == MODEL_DECODER
                           ? fsdp_llama_logits(net, t, in)
                           : fsdp_t5_logits(net, t, fsdp_input(t, FSDP_I32, 2, source_shape, source), NULL, in);
    float *all = malloc((size_t)numel * sizeof *all);
    fsdp_output(t, out);
    assert_int_equal(fsdp_evaluate(t), FSDP_OK);
    assert_int_equal(fsdp_read(out, all, numel), FSDP_OK);
    memcpy(r->anew, all + (n - 1) * r->vocabulary, (size_t)r->vocabulary * sizeof *all);
    free(all);
}

static void assert_close(const rig *r, double tolerance, int64_t at)
{
    double most = 0, difference = 0;
    for (int64_t i = 0; i < r->vocabulary; i++) {
        most = fmax(most, fabs(r->anew[i]));
        difference = fmax(difference, fabs((double)r->anew[i] - r->cached[i]));
    }
    if (!(difference <= tolerance * most))
        fail_msg("token %lld: logits up to %g differ by %g", (long long)at, most, difference);
}

static int32_t greedy(const float *logits, int64_t n)
{
    choice_options options = {.temperature = 0, .top_p = 1};
    return choice_make(&options, logits, n, 0, NULL);
}

/* Writes n tokens behind a prompt. Every seventh token is not the likeliest, so that the text does not fall into a
 * loop. */
static void check_folder(const char *folder, int64_t n_prompt, int64_t n, fsdp_dtype dtype, double tolerance)
{
    rig r;
    generator *g;
    if (!rig_open(&r, folder, dtype))
        return;
    bool t5 = r.config.type == MODEL_T5;
    int32_t *prompt = calloc((size_t)n_prompt, sizeof *prompt), *ids = calloc((size_t)(n_prompt + n + 1), sizeof *ids);
    for (int64_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((i * 37 + 11) % r.vocabulary);
    int64_t n_ids = t5 ? 1 : n_prompt;
    if (t5)
        ids[0] = r.config.t5.decoder_start_id;
    else
        memcpy(ids, prompt, (size_t)n_prompt * sizeof *ids);
    assert_int_equal(generator_create(r.model, &r.config, t5 ? n + 1 : n_prompt + n, n_prompt, &g), FSDP_OK);
    assert_int_equal(generator_start(g, prompt, n_prompt, r.cached), FSDP_OK);
    for (int64_t i = 0; i < n; i++) {
        read_anew(&r, prompt, n_prompt, ids, n_ids);
        assert_close(&r, tolerance, i);
        if (dtype == FSDP_F32)
            assert_int_equal(greedy(r.cached, r.vocabulary), greedy(r.anew, r.vocabulary));
        int32_t token = i % 7 == 6 ? (int32_t)((i * 29 + 3) % r.vocabulary) : greedy(r.cached, r.vocabulary);
        ids[n_ids++] = token;
        if (i + 1 < n)
            assert_int_equal(generator_next(g, token, r.cached), FSDP_OK);
    }
    generator_free(g);
    free(prompt);
    free(ids);
    rig_close(&r);
}

static void cached_llama_equals_reading_anew(void **state)
{
    (void)state;
    check_folder("llama_gqa", 5, 70, FSDP_F32, 1e-5); /* over the first size of the cache, 64 */
    check_folder("llama_gqa", 1, 4, FSDP_F32, 1e-5);
    check_folder("llama_gqa", 33, 6, FSDP_F32, 1e-5);
    check_folder("llama3_rope_tied", 17, 24, FSDP_F32, 1e-5);
}

static void cached_families_equal_reading_anew(void **state)
{
    (void)state;
    check_folder("qwen2", 5, 12, FSDP_F32, 1e-5);
    check_folder("qwen3", 17, 12, FSDP_F32, 1e-5);
    check_folder("llama_yarn", 40, 8, FSDP_F32, 1e-5);
    check_folder("mistral_window", 5, 30, FSDP_F32, 1e-5); /* past its window of 16 */
    check_folder("mistral_window", 40, 8, FSDP_F32, 1e-5);
    check_folder("gemma3", 3, 70, FSDP_F32, 1e-5);
    check_folder("gpt2", 20, 50, FSDP_F32, 1e-5);
}

/* Three texts side by side, of prompts of other lengths; the second ends early, and a fourth place stays empty. */
static void check_side_by_side(const char *folder, int64_t n)
{
    enum { TEXTS = 4, PROMPTS = 3, MOST = 128 };
    static const int64_t n_prompts[PROMPTS] = {5, 21, 1};
    rig r;
    generator *g;
    int32_t ids[PROMPTS][MOST], tokens[TEXTS] = {0, 0, 0, -1};
    int64_t lengths[PROMPTS];
    if (!rig_open(&r, folder, FSDP_F32))
        return;
    float *logits = malloc((size_t)(TEXTS * r.vocabulary) * sizeof *logits);
    assert_int_equal(generator_create_texts(r.model, &r.config, 21 + n, TEXTS, &g), FSDP_OK);
    assert_int_equal(generator_clear(g), FSDP_OK);
    for (int k = 0; k < PROMPTS; k++) {
        lengths[k] = n_prompts[k];
        for (int64_t i = 0; i < lengths[k]; i++)
            ids[k][i] = (int32_t)((i * 37 + 11 + 5 * k) % r.vocabulary);
        assert_int_equal(generator_read(g, k, ids[k], lengths[k], r.cached), FSDP_OK);
        read_anew(&r, NULL, 0, ids[k], lengths[k]);
        assert_close(&r, 1e-5, 0);
        tokens[k] = ids[k][lengths[k]++] = greedy(r.cached, r.vocabulary);
    }
    for (int64_t i = 1; i < n; i++) {
        assert_int_equal(generator_step(g, tokens, logits), FSDP_OK);
        for (int k = 0; k < PROMPTS; k++) {
            if (tokens[k] < 0)
                continue;
            memcpy(r.cached, logits + k * r.vocabulary, (size_t)r.vocabulary * sizeof *logits);
            read_anew(&r, NULL, 0, ids[k], lengths[k]);
            assert_close(&r, 1e-5, i);
            tokens[k] = i % 7 == 6 ? (int32_t)((i * 29 + 3) % r.vocabulary) : greedy(r.cached, r.vocabulary);
            ids[k][lengths[k]++] = tokens[k];
            if (k == 1 && i == 4)
                tokens[k] = -1;
        }
    }
    generator_free(g);
    free(logits);
    rig_close(&r);
}

static void texts_side_by_side_equal_reading_each_anew(void **state)
{
    (void)state;
    check_side_by_side("llama_gqa", 60); /* over the first size of what is seen, 64 */
    check_side_by_side("mistral_window", 30);
    check_side_by_side("gemma3", 12);
    check_side_by_side("qwen3", 12);
    check_side_by_side("gpt2", 12);
}

static void cached_t5_equals_reading_anew(void **state)
{
    (void)state;
    check_folder("t5_relu_tied", 9, 70, FSDP_F32, 1e-5);
    check_folder("t5_v11_gated_gelu", 16, 20, FSDP_F32, 1e-5);
    check_folder("t5_v11_untied", 21, 20, FSDP_F32, 1e-5);
}

static void cached_bf16_stays_near_reading_anew(void **state)
{
    (void)state;
    check_folder("llama_gqa", 12, 24, FSDP_BF16, 0.03);
    check_folder("t5_v11_gated_gelu", 12, 24, FSDP_BF16, 0.03);
}

static void a_full_cache_goes_on_with_its_newer_half(void **state)
{
    (void)state;
    rig r;
    generator *g;
    int32_t ids[64];
    int64_t n = 1, capacity = 16;
    if (!rig_open(&r, "llama_gqa", FSDP_F32))
        return;
    ids[0] = 7;
    assert_int_equal(generator_create(r.model, &r.config, capacity, 0, &g), FSDP_OK);
    assert_int_equal(generator_start(g, ids, 1, r.cached), FSDP_OK);
    for (; n < 40; n++) {
        ids[n] = (int32_t)((n * 13 + 5) % r.vocabulary);
        assert_int_equal(generator_next(g, ids[n], r.cached), FSDP_OK);
    }
    /* Full at 16, then again and again after 8 more: 40 tokens leave the last 16. */
    read_anew(&r, NULL, 0, ids + 24, 16);
    assert_close(&r, 1e-5, n);
    generator_free(g);
    rig_close(&r);
}

static void a_prompt_longer_than_the_cache_keeps_its_end(void **state)
{
    (void)state;
    rig r;
    generator *g;
    int32_t ids[50];
    if (!rig_open(&r, "llama_gqa", FSDP_F32))
        return;
    for (int i = 0; i < 50; i++)
        ids[i] = i * 5 % (int)r.vocabulary;
    assert_int_equal(generator_create(r.model, &r.config, 20, 0, &g), FSDP_OK);
    assert_int_equal(generator_start(g, ids, 50, r.cached), FSDP_OK);
    read_anew(&r, NULL, 0, ids + 30, 20);
    assert_close(&r, 1e-5, 0);
    assert_int_equal(generator_start(g, ids, 0, r.cached), FSDP_ERR_INPUT);
    generator_free(g);
    assert_int_equal(generator_create(r.model, &r.config, r.config.decoder.positions + 1, 0, &g), FSDP_ERR_INPUT);
    rig_close(&r);
}

/* Choices. */

static void counts_of(const choice_options *o, const float *logits, int n, int *counts, int draws)
{
    char scratch[1024];
    assert_true(choice_scratch_bytes(n) <= sizeof scratch);
    memset(counts, 0, (size_t)n * sizeof *counts);
    for (int i = 0; i < draws; i++)
        counts[choice_make(o, logits, n, (uint64_t)i, scratch)]++;
}

static const float logits[] = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f, 1.5f};

static void draws_follow_the_probabilities(void **state)
{
    (void)state;
    int counts[6];
    for (int k = 1; k <= 2; k++) {
        choice_options o = {.temperature = k, .top_p = 1, .seed = 3};
        double sum = 0;
        counts_of(&o, logits, 6, counts, 20000);
        for (int i = 0; i < 6; i++)
            sum += exp(logits[i] / o.temperature);
        for (int i = 0; i < 6; i++)
            assert_true(fabs(counts[i] / 20000.0 - exp(logits[i] / o.temperature) / sum) < 0.015);
    }
}

static void temperature_zero_takes_the_first_of_the_likeliest(void **state)
{
    (void)state;
    choice_options o = {.temperature = 0, .top_p = 1};
    assert_int_equal(choice_make(&o, logits, 6, 0, NULL), 1);
}

static void top_k_and_top_p_leave_out_the_unlikely(void **state)
{
    (void)state;
    int counts[6];
    choice_options o = {.temperature = 1, .top_p = 1, .top_k = 3, .seed = 1};
    counts_of(&o, logits, 6, counts, 2000);
    assert_true(counts[1] > 0 && counts[3] > 0 && counts[5] > 0);
    assert_int_equal(counts[0] + counts[2] + counts[4], 0);
    /* Probabilities, likeliest first: 0.310, 0.310, 0.188, 0.114, 0.042, 0.015 (of 23.8 in all). */
    o = (choice_options){.temperature = 1, .top_p = 0.6, .seed = 1};
    counts_of(&o, logits, 6, counts, 2000);
    assert_true(counts[1] > 0 && counts[3] > 0);
    assert_int_equal(counts[0] + counts[2] + counts[4] + counts[5], 0);
    o.top_p = 0.7;
    counts_of(&o, logits, 6, counts, 2000);
    assert_true(counts[5] > 0);
    assert_int_equal(counts[0] + counts[2] + counts[4], 0);
    o.top_p = 1e-9;
    counts_of(&o, logits, 6, counts, 200);
    assert_int_equal(counts[1], 200);
    o = (choice_options){.temperature = 1, .top_p = 1, .top_k = 100, .seed = 1};
    counts_of(&o, logits, 6, counts, 2000);
    assert_true(counts[4] > 0);
}

static void a_seed_gives_the_same_choices(void **state)
{
    (void)state;
    int first[6], second[6], other[6];
    choice_options o = {.temperature = 1, .top_p = 0.95, .top_k = 5, .seed = 8};
    counts_of(&o, logits, 6, first, 500);
    counts_of(&o, logits, 6, second, 500);
    assert_memory_equal(first, second, sizeof first);
    o.seed = 9;
    counts_of(&o, logits, 6, other, 500);
    assert_memory_not_equal(first, other, sizeof first);
}

/* Streams. */

/* What the stream gives out id by id, with | between, must be `expected`. */
static void assert_stream(fsdp_tokenizer *tokenizer, const int32_t *ids, size_t n_given, size_t n, const char *expected)
{
    char all[512] = "";
    text_stream s = text_stream_begin(tokenizer, n_given);
    for (size_t i = n_given; i < n; i++) {
        const char *text;
        size_t bytes;
        assert_int_equal(text_stream_add(&s, ids, i + 1, i + 1 == n, &text, &bytes), FSDP_OK);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%.*s|", (int)bytes, text);
    }
    assert_string_equal(all, expected);
}

static void characters_are_given_out_whole(void **state)
{
    (void)state;
    static const unsigned char text[] = "a\xC3\xA9\xF0\x9F\x98\x80z\xE2\x82";
    fsdp_tokenizer *bytes;
    int32_t ids[16];
    size_t n = sizeof text - 1;
    for (size_t i = 0; i < n; i++)
        ids[i] = text[i];
    assert_int_equal(fsdp_tokenizer_byte(&bytes), FSDP_OK);
    assert_stream(bytes, ids, 0, n, "a||\xC3\xA9||||\xF0\x9F\x98\x80|z||\xE2\x82|");
    assert_stream(bytes, ids, 3, 8, "|||\xF0\x9F\x98\x80|z|");
    fsdp_tokenizer_free(bytes);
}

static void spaces_between_words_survive(void **state)
{
    (void)state;
    static const char *const folders[] = {"tokenizer_llama2", "tokenizer_llama3", "tokenizer_t5"};
    static const char text[] = "The quick brown fox, na\xC3\xAFve caf\xC3\xA9 \xE2\x82\xAC 5.";
    for (int k = 0; k < 3; k++) {
        char *path = file_join(golden_root(), folders[k]), whole[256], streamed[256] = "";
        fsdp_tokenizer *tokenizer;
        const int32_t *found;
        int32_t ids[128];
        size_t n, bytes;
        const char *part;
        if (!file_exists(path)) {
            free(path);
            continue;
        }
        assert_int_equal(fsdp_tokenizer_load(path, &tokenizer), FSDP_OK);
        assert_int_equal(fsdp_tokenizer_encode(tokenizer, text, strlen(text), false, &found, &n), FSDP_OK);
        assert_true(n > 8 && n < 128);
        memcpy(ids, found, n * sizeof *ids);
        assert_int_equal(fsdp_tokenizer_decode(tokenizer, ids, n, true, &part, &bytes), FSDP_OK);
        snprintf(whole, sizeof whole, "%s", part);
        /* The first ids as a prompt: its text and what is streamed make the whole. */
        assert_int_equal(fsdp_tokenizer_decode(tokenizer, ids, 3, true, &part, &bytes), FSDP_OK);
        snprintf(streamed, sizeof streamed, "%s", part);
        text_stream s = text_stream_begin(tokenizer, 3);
        for (size_t i = 3; i < n; i++) {
            assert_int_equal(text_stream_add(&s, ids, i + 1, i + 1 == n, &part, &bytes), FSDP_OK);
            strncat(streamed, part, bytes);
        }
        assert_string_equal(streamed, whole);
        fsdp_tokenizer_free(tokenizer);
        free(path);
    }
}

/* The call. */

typedef struct collected {
    char text[4096];
    size_t bytes;
    int calls;
} collected;

static void collect(void *context, const char *text, size_t bytes)
{
    collected *c = context;
    assert_true(c->bytes + bytes < sizeof c->text);
    memcpy(c->text + c->bytes, text, bytes);
    c->bytes += bytes;
    c->calls++;
}

static void the_call_writes_what_the_steps_write(void **state)
{
    (void)state;
    rig r;
    generator *g;
    int32_t ids[] = {72, 101, 108, 108, 111};
    collected seen = {.bytes = 0};
    char *path = file_join(golden_root(), "llama_gqa");
    if (!rig_open(&r, "llama_gqa", FSDP_F32)) {
        free(path);
        return;
    }
    fsdp_generate_config config = FSDP_GENERATE_CONFIG_INIT;
    fsdp_generate_result result = FSDP_GENERATE_RESULT_INIT;
    config.model = path;
    config.prompt = "Hello";
    config.prompt_bytes = 5;
    config.max_new_tokens = 12;
    config.stop_at_eos = false;
    config.device = "cpu";
    config.text = collect;
    config.context = &seen;
    assert_int_equal(fsdp_generate(&config, &result), FSDP_OK);
    assert_int_equal(result.prompt_tokens, 5);
    assert_int_equal(result.new_tokens, 12);
    assert_false(result.ended);
    assert_int_equal(generator_create(r.model, &r.config, 32, 0, &g), FSDP_OK);
    assert_int_equal(generator_start(g, ids, 5, r.cached), FSDP_OK);
    size_t at = 0;
    for (int i = 0; i < 12; i++) {
        int32_t token = greedy(r.cached, r.vocabulary);
        if (token > 0 && token < 128) { /* bytes that are characters by themselves come through as they are */
            const char *found = memchr(seen.text + at, token, seen.bytes - at);
            assert_non_null(found);
            at = (size_t)(found - seen.text) + 1;
        }
        assert_int_equal(generator_next(g, token, r.cached), FSDP_OK);
    }
    assert_true(seen.calls > 1);
    generator_free(g);
    rig_close(&r);
    free(path);
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    char *path = file_join(golden_root(), "llama_gqa");
    model_config cnn = model_config_default(MODEL_CNN);
    generator *g;
    fsdp_generate_config config = FSDP_GENERATE_CONFIG_INIT;
    config.prompt = "x";
    config.prompt_bytes = 1;
    assert_int_equal(fsdp_generate(&config, NULL), FSDP_ERR_INPUT);
    config.model = path;
    config.top_p = 0;
    assert_int_equal(fsdp_generate(&config, NULL), FSDP_ERR_INPUT);
    config.top_p = 1;
    config.model = "no/such-model";
    assert_int_not_equal(fsdp_generate(&config, NULL), FSDP_OK);
    assert_int_equal(generator_create(NULL, &cnn, 16, 16, &g), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "writes no text"));
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_llama_equals_reading_anew),
        cmocka_unit_test(cached_families_equal_reading_anew),
        cmocka_unit_test(texts_side_by_side_equal_reading_each_anew),
        cmocka_unit_test(cached_t5_equals_reading_anew),
        cmocka_unit_test(cached_bf16_stays_near_reading_anew),
        cmocka_unit_test(a_full_cache_goes_on_with_its_newer_half),
        cmocka_unit_test(a_prompt_longer_than_the_cache_keeps_its_end),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(temperature_zero_takes_the_first_of_the_likeliest),
        cmocka_unit_test(top_k_and_top_p_leave_out_the_unlikely),
        cmocka_unit_test(a_seed_gives_the_same_choices),
        cmocka_unit_test(characters_are_given_out_whole),
        cmocka_unit_test(spaces_between_words_survive),
        cmocka_unit_test(the_call_writes_what_the_steps_write),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
