/* One text from an open model: the prompt as tokens, then token after token until an end or the limit, given out as
 * whole characters. Where the model comes from is generate.c's, or the caller's of fsdp_generate_with. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sized.h"
#include "generate/generate.h"
#include "tokenizer/tokenizer_internal.h"

bool text_writer_answers(const text_writer *w)
{
    return !w->config->logits && w->model_config->type == MODEL_T5;
}

fsdp_status text_writer_check(const text_writer *w)
{
    const fsdp_generate_config *c = w->config;
    if ((!c->prompt && c->n_prompts == 0) || c->max_new_tokens < 1)
        return error_set(FSDP_ERR_INPUT, "generation needs a prompt and at least one new token");
    if (!(c->temperature >= 0) || !(c->top_p > 0 && c->top_p <= 1) || c->top_k < 0)
        return error_set(
            FSDP_ERR_INPUT,
            "temperature %g, top_k %lld, top_p %g: at least 0, at least 0, above 0 and at most 1 are expected",
            c->temperature, (long long)c->top_k, c->top_p);
    if (c->logits)
        return c->window > 0 ? FSDP_OK
                             : error_set(FSDP_ERR_INPUT,
                                         "%s: generation with `logits` needs the window, in tokens, "
                                         "that the model is shown",
                                         w->source);
    if (!w->model_config || model_vocabulary(w->model_config) == 0)
        return error_set(FSDP_ERR_INPUT, "%s: a %s model writes no text", w->source,
                         w->model_config ? model_type_name(w->model_config) : "program's own");
    if (c->window < 0 || (c->window > 0 && (text_writer_answers(w) || c->window < 2)))
        return error_set(FSDP_ERR_INPUT,
                         "%s: a window of %lld tokens: at least 2, and of a model that continues a text", w->source,
                         (long long)c->window);
    return FSDP_OK;
}

void text_writer_add_end(text_writer *w, int64_t id)
{
    for (int i = 0; i < w->n_ends; i++) {
        if (w->ends[i] == id)
            return;
    }
    if (id >= 0 && id <= INT32_MAX && w->n_ends < MAX_ENDS)
        w->ends[w->n_ends++] = (int32_t)id;
}

bool text_writer_is_end(const text_writer *w, int32_t id)
{
    for (int i = 0; i < w->n_ends; i++) {
        if (w->ends[i] == id)
            return w->config->stop_at_eos;
    }
    return false;
}

fsdp_status text_writer_check_vocabulary(const text_writer *w)
{
    int64_t rows = w->vocabulary;
    for (int64_t i = 0; i < w->n_prompt; i++) {
        if (w->ids[i] >= rows)
            return error_set(FSDP_ERR_INPUT,
                             "%s: the prompt has token %d, the model's vocabulary %lld: give it its own tokenizer "
                             "(--tokenizer)",
                             w->source, w->ids[i], (long long)rows);
    }
    return FSDP_OK;
}

fsdp_status text_writer_open_chat(const text_writer *w, const char *model, chat_template **out)
{
    const char *named = w->config->chat_template, *folder = w->tokenizer->tables->folder;
    folder = folder ? folder : model; /* bytes have no folder */
    *out = NULL;
    if (!named)
        return FSDP_OK;
    bool is_file = *named && !file_is_directory(named);
    if (*named && !is_file)
        folder = named;
    FSDP_TRY(chat_template_load(folder, is_file ? named : NULL, out));
    return *out ? FSDP_OK
                : error_set(FSDP_ERR_INPUT, "%s: there is no chat template there; name one, or give plain prompts",
                            folder ? folder : w->source);
}

/* The prompt as a user's message, up to where the assistant begins. */
static fsdp_status render_prompt(const text_writer *w, text_buffer *out)
{
    const fsdp_generate_config *c = w->config;
    json_t *messages = json_pack("[{s:s, s:s%}]", "role", "user", "content", c->prompt, c->prompt_bytes);
    if (!messages)
        return error_set(FSDP_ERR_INPUT, "a prompt that is no UTF-8 cannot be a message");
    fsdp_status status =
        chat_template_render(w->chat, &(chat){.messages = messages, .add_generation_prompt = true}, out, NULL);
    json_decref(messages);
    return status;
}

/* T5 was trained on sources that end with the end token; a LLaMA continues, so its prompt has no end, but a beginning.
 */
fsdp_status text_writer_read_prompt(text_writer *w)
{
    const fsdp_generate_config *c = w->config;
    const int32_t *ids;
    size_t n;
    int32_t eos = fsdp_tokenizer_eos(w->tokenizer), bos = fsdp_tokenizer_bos(w->tokenizer);
    bool t5 = text_writer_answers(w);
    text_buffer rendered = {0};
    fsdp_status status = w->chat ? render_prompt(w, &rendered) : FSDP_OK;
    if (status == FSDP_OK)
        status = w->chat ? fsdp_tokenizer_encode(w->tokenizer, rendered.data, rendered.bytes, false, &ids, &n)
                         : fsdp_tokenizer_encode(w->tokenizer, c->prompt, c->prompt_bytes, !c->plain_prompt, &ids, &n);
    text_free(&rendered);
    FSDP_TRY(status);
    if (!t5 && !w->chat && n > 0 && ids[n - 1] == eos)
        n--;
    w->ids = calloc(n + 2 + (size_t)c->max_new_tokens, sizeof *w->ids);
    if (!w->ids)
        return error_set(FSDP_ERR_MEMORY, "a text of %lld tokens: out of host memory", (long long)c->max_new_tokens);
    memcpy(w->ids, ids, n * sizeof *ids);
    if ((t5 && eos >= 0 && (n == 0 || ids[n - 1] != eos)) || n == 0)
        w->ids[n++] = t5 || bos < 0 ? eos : bos;
    if (w->ids[0] < 0)
        return error_set(FSDP_ERR_INPUT, "an empty prompt, and the tokenizer has no token that begins or ends a text");
    w->n_prompt = w->n = (int64_t)n;
    if (c->logits)
        return FSDP_OK; /* known when the model has computed some */
    w->vocabulary = model_vocabulary(w->model_config);
    return text_writer_check_vocabulary(w);
}

int64_t text_writer_capacity(const text_writer *w)
{
    const fsdp_generate_config *c = w->config;
    int64_t positions = w->model_config->decoder.positions;
    if (text_writer_answers(w))
        return c->max_new_tokens + 1;
    return c->window > 0 ? min_i64(c->window, positions)
                         : max_i64(2, min_i64(w->n_prompt + c->max_new_tokens + 1, positions));
}

/* T5 answers: its text begins with the first new token. */
static int64_t n_hidden(const text_writer *w)
{
    return text_writer_answers(w) ? w->n_prompt : 0;
}

text_stream text_writer_begin(const text_writer *w)
{
    return text_stream_begin(w->tokenizer, (size_t)(w->n_prompt - n_hidden(w)));
}

fsdp_status text_writer_give(text_writer *w, text_stream *output, bool last)
{
    const char *text;
    size_t bytes;
    FSDP_TRY(text_stream_add(output, w->ids + n_hidden(w), (size_t)(w->n - n_hidden(w)), last, &text, &bytes));
    w->shown.bytes = 0;
    FSDP_TRY(utf8_repair(text, bytes, &w->shown)); /* a byte model may write what is no character at all */
    if (bytes > 0)
        w->config->text(w->config->context, w->shown.data, w->shown.bytes);
    return FSDP_OK;
}

/* Logits of the next token, after the prompt or after one more token. */
static fsdp_status read_next(text_writer *w, fsdp_model *m, generator *g)
{
    if (!g)
        return own_logits(w, m);
    return w->n == w->n_prompt ? generator_start(g, w->ids, w->n_prompt, w->logits)
                               : generator_next(g, w->ids[w->n - 1], w->logits);
}

static fsdp_status write_tokens(text_writer *w, fsdp_model *m, generator *g, bool shows, fsdp_generate_result *result)
{
    const fsdp_generate_config *c = w->config;
    text_stream output = text_writer_begin(w);
    choice_options options = {.temperature = c->temperature, .top_p = c->top_p, .top_k = c->top_k, .seed = c->seed};
    if (c->echo && shows)
        c->text(c->context, c->prompt, c->prompt_bytes);
    double begun = clock_seconds();
    FSDP_TRY(read_next(w, m, g));
    result->prompt_seconds = clock_seconds() - begun;
    for (;;) {
        int64_t written = w->n - w->n_prompt;
        int32_t token = choice_make(&options, w->logits, w->vocabulary, c->first_draw + (uint64_t)written, w->scratch);
        result->ended = text_writer_is_end(w, token);
        if (result->ended)
            break;
        w->ids[w->n++] = token;
        if (shows)
            FSDP_TRY(text_writer_give(w, &output, false));
        if (written + 1 == c->max_new_tokens)
            break;
        FSDP_TRY(read_next(w, m, g));
    }
    result->seconds = clock_seconds() - begun - result->prompt_seconds;
    return shows ? text_writer_give(w, &output, true) : FSDP_OK;
}

fsdp_status text_writer_allocate(text_writer *w, int64_t n_tokens)
{
    w->vocabulary = n_tokens;
    if (!w->logits)
        w->logits = malloc((size_t)n_tokens * sizeof *w->logits);
    if (!w->scratch)
        w->scratch = malloc(choice_scratch_bytes(n_tokens));
    return w->logits && w->scratch
               ? FSDP_OK
               : error_set(FSDP_ERR_MEMORY, "logits of %lld tokens: out of host memory", (long long)n_tokens);
}

fsdp_status text_writer_write(text_writer *w, fsdp_model *m, fsdp_generate_result *result)
{
    generator *g = NULL;
    if (!w->config->logits) {
        FSDP_TRY(text_writer_allocate(w, w->vocabulary));
        FSDP_TRY(generator_create(m, w->model_config, text_writer_capacity(w), w->n_prompt, &g));
    }
    result->rank = fsdp_world_rank(fsdp_model_world(m));
    fsdp_status status = write_tokens(w, m, g, w->config->text && result->rank == 0, result);
    generator_free(g);
    result->prompt_tokens = w->n_prompt;
    result->new_tokens = w->n - w->n_prompt;
    return status;
}

void text_writer_free(text_writer *w)
{
    text_free(&w->shown);
    free(w->logits);
    free(w->scratch);
    free(w->window);
    free(w->ids);
}

/* ---- With a model of the caller's ---- */

static fsdp_status check_open(const fsdp_model *m, const fsdp_tokenizer *tokenizer, const fsdp_generate_config *c)
{
    const fsdp_generate_config plain = FSDP_GENERATE_CONFIG_INIT;
    if (!m || !tokenizer)
        return error_set(FSDP_ERR_INPUT, "generation needs a model and a tokenizer");
    if (c->model || c->tokenizer || c->dtype != plain.dtype || c->threads != plain.threads ||
        (c->device && strcmp(c->device, plain.device) != 0))
        return error_set(FSDP_ERR_INPUT, "generation with an open model: model, tokenizer, dtype, device and threads "
                                         "are those that it has; leave them as FSDP_GENERATE_CONFIG_INIT sets them");
    return FSDP_OK;
}

fsdp_status fsdp_generate_with(fsdp_model *m, fsdp_tokenizer *tokenizer, const fsdp_generate_config *config,
                               fsdp_generate_result *result)
{
    SIZED_READ(fsdp_generate_config, FSDP_GENERATE_CONFIG_INIT, full, config);
    SIZED_CHECK(fsdp_generate_result, FSDP_GENERATE_RESULT_INIT, result);
    FSDP_TRY(check_open(m, tokenizer, &full));
    text_writer w = {.config = &full,
                     .model_config = model_config_of(fsdp_model_module(m)),
                     .tokenizer = tokenizer,
                     .source = "this model"};
    fsdp_generate_result done = FSDP_GENERATE_RESULT_INIT;
    FSDP_TRY(text_writer_check(&w));
    text_writer_add_end(&w, fsdp_tokenizer_eos(tokenizer));
    chat_template *template = NULL;
    FSDP_TRY(text_writer_open_chat(&w, NULL, &template));
    w.chat = template;
    fsdp_status status = full.n_prompts > 0 ? write_many(&w, m, &done) : text_writer_read_prompt(&w);
    if (status == FSDP_OK && full.n_prompts == 0)
        status = text_writer_write(&w, m, &done);
    text_writer_free(&w);
    chat_template_free(template);
    sized_write(result, &done, sizeof done);
    return status;
}
