/* `fsdp generate` as a call: finds model and tokenizer, loads the weights, writes until an end token or the limit. */
#include <fsdp/generate.h>

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sized.h"
#include "ckpt/load/load.h"
#include "ckpt/commands/report.h"
#include "format/hub.h"
#include "tokenizer/text/utf8.h"
#include "generate/generate.h"
#include "state/model_state.h"
#include "state/weights.h"

enum { MAX_ENDS = 16 };

typedef struct generation {
    const fsdp_generate_config *config;
    char *path; /* of the model */
    model_config model_config;
    fsdp_tokenizer *tokenizer;
    int32_t ends[MAX_ENDS];
    int n_ends;

    int32_t *ids; /* the prompt, followed by the new tokens */
    int64_t n_prompt, n;

    fsdp_world *world;
    fsdp_model *model;
    generator *generator;
    float *logits;
    void *scratch;
    text_buffer shown;
} generation;

/* The file `name` in the model's folder; NULL when it is not there. malloc'd. */
static char *beside(const generation *g, const char *name)
{
    char *path = file_is_directory(g->path) ? file_join(g->path, name) : NULL;
    if (path && !file_exists(path)) {
        free(path);
        path = NULL;
    }
    return path;
}

/* A checkpoint that training wrote with a tokenizer, and that has none of its files, is not one of bytes. Where they
 * were is only shown, not followed: a manifest may come from anyone. */
static fsdp_status check_bytes_suffice(const char *path)
{
    manifest *m;
    fsdp_status status = FSDP_OK;
    if (!file_is_directory(path) || manifest_read(path, &m) != FSDP_OK)
        return FSDP_OK;
    if (m->tokenizer[0])
        status = error_set(FSDP_ERR_INPUT,
                           "%s: its tokenizer is not in it; training had it in %s: if you trust that, add --tokenizer "
                           "%s",
                           path, m->tokenizer, m->tokenizer);
    manifest_free(m);
    return status;
}

static fsdp_status open_tokenizer(generation *g)
{
    char *path = NULL;
    if (g->config->tokenizer)
        FSDP_TRY(hub_find(HUB_MODEL, g->config->tokenizer, NULL, &path));
    else if (!(path = beside(g, "tokenizer.json")))
        FSDP_TRY(check_bytes_suffice(g->path));
    fsdp_status status = path ? fsdp_tokenizer_load(path, &g->tokenizer) : fsdp_tokenizer_byte(&g->tokenizer);
    free(path);
    return status;
}

static void add_end(generation *g, int64_t id)
{
    for (int i = 0; i < g->n_ends; i++) {
        if (g->ends[i] == id)
            return;
    }
    if (id >= 0 && id <= INT32_MAX && g->n_ends < MAX_ENDS)
        g->ends[g->n_ends++] = (int32_t)id;
}

/* End tokens that a configuration file names: a number or a list. */
static fsdp_status read_ends(generation *g, const char *name)
{
    char *path = beside(g, name);
    json_t *object = NULL;
    fsdp_status status = path ? json_read_file(path, &object) : FSDP_OK;
    const json_t *ends = json_object_get(object, "eos_token_id");
    if (json_is_integer(ends))
        add_end(g, json_integer_value(ends));
    for (size_t i = 0; i < json_array_size(ends); i++)
        add_end(g, json_integer_value(json_array_get(ends, i)));
    json_decref(object);
    free(path);
    return status;
}

static fsdp_status find_ends(generation *g)
{
    add_end(g, fsdp_tokenizer_eos(g->tokenizer));
    /* Bytes are the tokenizer only where the model brought none: then its configuration's ids are of another. */
    char *own = beside(g, "tokenizer.json");
    bool own_ids = own != NULL;
    free(own);
    if (!own_ids)
        return FSDP_OK;
    FSDP_TRY(read_ends(g, "config.json"));
    return read_ends(g, "generation_config.json");
}

static bool is_end(const generation *g, int32_t id)
{
    for (int i = 0; i < g->n_ends; i++) {
        if (g->ends[i] == id)
            return g->config->stop_at_eos;
    }
    return false;
}

/* T5 was trained on sources that end with the end token; a LLaMA continues, so its prompt has no end, but a beginning.
 */
static fsdp_status encode_prompt(generation *g)
{
    const int32_t *ids;
    size_t n;
    int32_t eos = fsdp_tokenizer_eos(g->tokenizer), bos = fsdp_tokenizer_bos(g->tokenizer);
    bool t5 = g->model_config.type == MODEL_T5;
    FSDP_TRY(fsdp_tokenizer_encode(g->tokenizer, g->config->prompt, g->config->prompt_bytes, true, &ids, &n));
    if (!t5 && n > 0 && ids[n - 1] == eos)
        n--;
    g->ids = calloc(n + 2 + (size_t)g->config->max_new_tokens, sizeof *g->ids);
    if (!g->ids)
        return error_set(FSDP_ERR_MEMORY, "a text of %lld tokens: out of host memory",
                         (long long)g->config->max_new_tokens);
    memcpy(g->ids, ids, n * sizeof *ids);
    if ((t5 && eos >= 0 && (n == 0 || ids[n - 1] != eos)) || n == 0)
        g->ids[n++] = t5 || bos < 0 ? eos : bos;
    if (g->ids[0] < 0)
        return error_set(FSDP_ERR_INPUT, "an empty prompt, and the tokenizer has no token that begins or ends a text");
    g->n_prompt = g->n = (int64_t)n;
    return FSDP_OK;
}

static fsdp_status check_vocabulary(const generation *g)
{
    int64_t rows = g->model_config.type == MODEL_T5 ? g->model_config.t5.vocabulary : g->model_config.llama.vocabulary;
    for (int64_t i = 0; i < g->n_prompt; i++) {
        if (g->ids[i] >= rows)
            return error_set(
                FSDP_ERR_INPUT,
                "%s: the prompt has token %d, the model's vocabulary %lld: name its tokenizer with --tokenizer",
                g->path, g->ids[i], (long long)rows);
    }
    return FSDP_OK;
}

/* Nothing is trained: every parameter is frozen, so that no gradient has memory. */
static fsdp_status open_model(generation *g)
{
    static const char *const all[] = {"*"};
    fsdp_config sharding = FSDP_CONFIG_INIT;
    fsdp_module *net;
    sharding.strategy = fsdp_world_size(g->world) > 1 ? FSDP_FULL : FSDP_NO_SHARD;
    if (model_block_type(g->model_config.type))
        sharding.wrap = fsdp_wrap_by_type(model_block_type(g->model_config.type));
    sharding.param_dtype = g->config->dtype;
    sharding.freeze = all;
    sharding.n_freeze = 1;
    FSDP_TRY(model_create(&g->model_config, &net));
    fsdp_status status = fsdp_shard(g->world, net, &sharding, &g->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    return fsdp_weights_load(g->model, g->path, NULL, NULL);
}

static fsdp_status open_generator(generation *g)
{
    model_config *c = &g->model_config;
    int64_t wanted = g->config->max_new_tokens + 1, vocabulary = c->t5.vocabulary;
    if (c->type == MODEL_LLAMA) {
        wanted = max_i64(2, min_i64(g->n_prompt + wanted, c->llama.positions));
        c->llama.positions = wanted; /* rotary tables no longer than the text */
        vocabulary = c->llama.vocabulary;
        fsdp_status window = llama_window_check(&c->llama);
        if (window != FSDP_OK)
            return error_prefix(window, "%s: a prompt of %lld tokens and %lld new ones: ", g->path,
                                (long long)g->n_prompt, (long long)g->config->max_new_tokens);
    }
    FSDP_TRY(open_model(g));
    g->logits = malloc((size_t)vocabulary * sizeof *g->logits);
    g->scratch = malloc(choice_scratch_bytes(vocabulary));
    if (!g->logits || !g->scratch)
        return error_set(FSDP_ERR_MEMORY, "logits of %lld tokens: out of host memory", (long long)vocabulary);
    return generator_create(g->model, c, wanted, g->n_prompt, &g->generator);
}

static fsdp_status open_all(generation *g)
{
    const fsdp_generate_config *c = g->config;
    char *found;
    if (!c->model || !c->prompt || c->max_new_tokens < 1)
        return error_set(FSDP_ERR_INPUT, "generation needs a model, a prompt and at least one new token");
    if (!(c->temperature >= 0) || !(c->top_p > 0 && c->top_p <= 1) || c->top_k < 0)
        return error_set(
            FSDP_ERR_INPUT,
            "temperature %g, top_k %lld, top_p %g: at least 0, at least 0, above 0 and at most 1 are expected",
            c->temperature, (long long)c->top_k, c->top_p);
    FSDP_TRY(hub_find(HUB_MODEL, c->model, NULL, &found));
    fsdp_status status = report_resolve(found, &g->path);
    free(found);
    FSDP_TRY(status);
    FSDP_TRY(model_config_read(g->path, &g->model_config));
    FSDP_TRY(weights_settle_head(g->path, &g->model_config));
    if (g->model_config.type != MODEL_LLAMA && g->model_config.type != MODEL_T5)
        return error_set(FSDP_ERR_INPUT, "%s: a %s model writes no text", g->path,
                         model_type_name(g->model_config.type));
    FSDP_TRY(open_tokenizer(g));
    FSDP_TRY(find_ends(g));
    FSDP_TRY(encode_prompt(g));
    FSDP_TRY(check_vocabulary(g));
    fsdp_world_config world = FSDP_WORLD_CONFIG_INIT;
    if (c->device)
        world.device = c->device;
    world.threads = c->threads;
    FSDP_TRY(fsdp_world_open(&world, &g->world));
    return open_generator(g);
}

static void close_all(generation *g)
{
    generator_free(g->generator);
    fsdp_model_free(g->model);
    fsdp_world_close(g->world);
    fsdp_tokenizer_free(g->tokenizer);
    text_free(&g->shown);
    free(g->logits);
    free(g->scratch);
    free(g->ids);
    free(g->path);
}

static fsdp_status give_out(generation *g, text_stream *output, const int32_t *ids, int64_t n, bool last)
{
    const char *text;
    size_t bytes;
    if (!g->config->text || fsdp_world_rank(g->world) != 0)
        return FSDP_OK;
    FSDP_TRY(text_stream_add(output, ids, (size_t)n, last, &text, &bytes));
    g->shown.bytes = 0;
    FSDP_TRY(utf8_repair(text, bytes, &g->shown)); /* a byte model may write what is no character at all */
    if (bytes > 0)
        g->config->text(g->config->context, g->shown.data, g->shown.bytes);
    return FSDP_OK;
}

static fsdp_status write_tokens(generation *g, fsdp_generate_result *result)
{
    const fsdp_generate_config *c = g->config;
    bool t5 = g->model_config.type == MODEL_T5;
    /* T5 answers: its text begins with the first new token. */
    const int32_t *shown = t5 ? g->ids + g->n_prompt : g->ids;
    int64_t n_hidden = t5 ? g->n_prompt : 0;
    int64_t vocabulary = t5 ? g->model_config.t5.vocabulary : g->model_config.llama.vocabulary;
    text_stream output = text_stream_begin(g->tokenizer, (size_t)(g->n_prompt - n_hidden));
    choice_options options = {.temperature = c->temperature, .top_p = c->top_p, .top_k = c->top_k, .seed = c->seed};
    result->rank = fsdp_world_rank(g->world);
    if (c->echo && c->text && result->rank == 0)
        c->text(c->context, c->prompt, c->prompt_bytes);
    double begun = clock_seconds();
    FSDP_TRY(generator_start(g->generator, g->ids, g->n_prompt, g->logits));
    result->prompt_seconds = clock_seconds() - begun;
    for (;;) {
        int64_t written = g->n - g->n_prompt;
        int32_t token = choice_make(&options, g->logits, vocabulary, (uint64_t)written, g->scratch);
        result->ended = is_end(g, token);
        if (result->ended)
            break;
        g->ids[g->n++] = token;
        FSDP_TRY(give_out(g, &output, shown, g->n - n_hidden, false));
        if (written + 1 == c->max_new_tokens)
            break;
        FSDP_TRY(generator_next(g->generator, token, g->logits));
    }
    result->seconds = clock_seconds() - begun - result->prompt_seconds;
    return give_out(g, &output, shown, g->n - n_hidden, true);
}

fsdp_status fsdp_generate(const fsdp_generate_config *config, fsdp_generate_result *result)
{
    SIZED_READ(fsdp_generate_config, FSDP_GENERATE_CONFIG_INIT, full, config);
    SIZED_CHECK(fsdp_generate_result, FSDP_GENERATE_RESULT_INIT, result);
    generation g = {.config = &full};
    fsdp_generate_result done = FSDP_GENERATE_RESULT_INIT;
    double begun = clock_seconds();
    fsdp_status status = open_all(&g);
    done.load_seconds = clock_seconds() - begun;
    if (status == FSDP_OK)
        status = write_tokens(&g, &done);
    done.prompt_tokens = g.n_prompt;
    done.new_tokens = g.n - g.n_prompt;
    if (status != FSDP_OK && g.world)
        fsdp_world_abort(g.world);
    close_all(&g);
    sized_write(result, &done, sizeof done);
    return status;
}
