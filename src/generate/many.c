/* Several prompts with one model: groups of them are written side by side, a token of each in a step, so that the
 * weights are read once for all. A text does not depend on its neighbours: it is the one that its prompt alone would
 * give, up to rounding. Prompts that no group takes (a T5's, and those that reach the model's last position) are
 * written alone. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "generate/generate.h"

enum { USUAL_BATCH = 8 };

/* A prompt and its text. */
typedef struct one_text {
    fsdp_generate_config config; /* the shared one, with this prompt */
    text_writer writer;
    text_buffer text;
    bool ended, done;
    fsdp_status kept; /* of the text: there was memory for all of it */
} one_text;

static void keep_text(void *context, const char *text, size_t bytes)
{
    one_text *one = context;
    if (one->kept == FSDP_OK)
        one->kept = text_append(&one->text, text, bytes);
}

static fsdp_status open_one(const text_writer *model, int64_t index, one_text *one)
{
    const fsdp_generate_config *c = model->config;
    one->config = *c;
    one->config.prompt = c->prompts[index].text;
    one->config.prompt_bytes = c->prompts[index].bytes;
    one->config.text = keep_text;
    one->config.context = one;
    one->writer = *model;
    one->writer.config = &one->config;
    fsdp_status status = text_writer_read_prompt(&one->writer);
    if (status != FSDP_OK)
        return error_prefix(status, "prompt %lld: ", (long long)index + 1);
    return FSDP_OK;
}

static void close_one(one_text *one)
{
    text_writer_free(&one->writer);
    text_free(&one->text);
}

/* All that it may become fits into a cache. */
static bool fits(const one_text *one)
{
    const fsdp_generate_config *c = &one->config;
    return !text_writer_answers(&one->writer) && c->window == 0 &&
           one->writer.n_prompt + c->max_new_tokens + 1 <= one->writer.model_config->decoder.positions;
}

/* Takes the next token of a text; false: it has ended. */
static bool take_token(one_text *one, const float *logits, void *scratch)
{
    const fsdp_generate_config *c = &one->config;
    text_writer *w = &one->writer;
    choice_options options = {.temperature = c->temperature, .top_p = c->top_p, .top_k = c->top_k, .seed = c->seed};
    int64_t written = w->n - w->n_prompt;
    int32_t token = choice_make(&options, logits, w->vocabulary, c->first_draw + (uint64_t)written, scratch);
    one->ended = text_writer_is_end(w, token);
    if (!one->ended)
        w->ids[w->n++] = token;
    one->done = one->ended || written + 1 == c->max_new_tokens;
    return !one->done;
}

typedef struct group {
    one_text *texts;
    int64_t n;
    float *logits; /* (n, vocabulary) */
    int32_t *tokens;
    void *scratch;
} group;

static fsdp_status write_side_by_side(group *q, generator *g, fsdp_generate_result *result)
{
    int64_t vocabulary = q->texts[0].writer.vocabulary, active = 0;
    double begun = clock_seconds();
    FSDP_TRY(generator_clear(g));
    for (int64_t i = 0; i < q->n; i++) {
        text_writer *w = &q->texts[i].writer;
        FSDP_TRY(generator_read(g, i, w->ids, w->n_prompt, q->logits));
        active += take_token(&q->texts[i], q->logits, q->scratch);
    }
    result->prompt_seconds += clock_seconds() - begun;
    begun = clock_seconds();
    while (active > 0) {
        for (int64_t i = 0; i < q->n; i++)
            q->tokens[i] = q->texts[i].done ? -1 : q->texts[i].writer.ids[q->texts[i].writer.n - 1];
        FSDP_TRY(generator_step(g, q->tokens, q->logits));
        for (int64_t i = 0; i < q->n; i++) {
            if (q->tokens[i] >= 0 && !take_token(&q->texts[i], q->logits + i * vocabulary, q->scratch))
                active--;
        }
    }
    result->seconds += clock_seconds() - begun;
    return FSDP_OK;
}

static fsdp_status write_group(group *q, fsdp_model *m, fsdp_generate_result *result)
{
    int64_t capacity = 2, vocabulary = q->texts[0].writer.vocabulary;
    generator *g = NULL;
    for (int64_t i = 0; i < q->n; i++)
        capacity = max_i64(capacity, q->texts[i].writer.n_prompt + q->texts[i].config.max_new_tokens + 1);
    q->logits = malloc((size_t)(q->n * vocabulary) * sizeof *q->logits);
    q->tokens = malloc((size_t)q->n * sizeof *q->tokens);
    q->scratch = malloc(choice_scratch_bytes(vocabulary));
    fsdp_status status =
        q->logits && q->tokens && q->scratch
            ? generator_create_texts(m, q->texts[0].writer.model_config, capacity, q->n, &g)
            : error_set(FSDP_ERR_MEMORY, "%lld texts side by side: out of host memory", (long long)q->n);
    if (status == FSDP_OK)
        status = write_side_by_side(q, g, result);
    generator_free(g);
    free(q->scratch);
    free(q->tokens);
    free(q->logits);
    return status;
}

static fsdp_status write_alone(one_text *one, fsdp_model *m, fsdp_generate_result *result)
{
    fsdp_generate_result own = FSDP_GENERATE_RESULT_INIT;
    one->config.text = NULL; /* the text is made when it is whole, as that of the others */
    FSDP_TRY(text_writer_write(&one->writer, m, &own));
    one->config.text = keep_text;
    one->ended = own.ended;
    result->prompt_seconds += own.prompt_seconds;
    result->seconds += own.seconds;
    return FSDP_OK;
}

static fsdp_status tell(one_text *one, int64_t index, fsdp_generate_result *result)
{
    text_writer *w = &one->writer;
    const fsdp_generate_config *c = &one->config;
    fsdp_written_text written = {
        .index = index, .prompt_tokens = w->n_prompt, .new_tokens = w->n - w->n_prompt, .ended = one->ended};
    result->prompt_tokens += written.prompt_tokens;
    result->new_tokens += written.new_tokens;
    if (!c->written || result->rank != 0)
        return FSDP_OK;
    if (c->echo)
        FSDP_TRY(text_append(&one->text, c->prompt, c->prompt_bytes));
    text_stream output = text_writer_begin(w);
    FSDP_TRY(text_writer_give(w, &output, true));
    FSDP_TRY(one->kept);
    written.text = one->text.data ? one->text.data : "";
    written.bytes = one->text.bytes;
    c->written(c->written_context, &written);
    return FSDP_OK;
}

static fsdp_status write_some(const text_writer *model, fsdp_model *m, int64_t first, one_text *texts, int64_t n,
                              fsdp_generate_result *result)
{
    bool together = true;
    for (int64_t i = 0; i < n; i++) {
        FSDP_TRY(open_one(model, first + i, &texts[i]));
        together = together && fits(&texts[i]);
    }
    if (together)
        FSDP_TRY(write_group(&(group){.texts = texts, .n = n}, m, result));
    for (int64_t i = 0; i < n && !together; i++)
        FSDP_TRY(write_alone(&texts[i], m, result));
    for (int64_t i = 0; i < n; i++)
        FSDP_TRY(tell(&texts[i], first + i, result));
    return FSDP_OK;
}

fsdp_status write_many(const text_writer *model, fsdp_model *m, fsdp_generate_result *result)
{
    const fsdp_generate_config *c = model->config;
    int64_t batch = c->batch > 0 ? c->batch : USUAL_BATCH;
    fsdp_status status = FSDP_OK;
    result->rank = fsdp_world_rank(fsdp_model_world(m));
    for (int64_t first = 0; first < c->n_prompts && status == FSDP_OK; first += batch) {
        int64_t n = min_i64(batch, c->n_prompts - first);
        one_text *texts = calloc((size_t)n, sizeof *texts);
        status = texts ? write_some(model, m, first, texts, n, result)
                       : error_set(FSDP_ERR_MEMORY, "%lld texts: out of host memory", (long long)n);
        for (int64_t i = 0; texts && i < n; i++)
            close_one(&texts[i]);
        free(texts);
    }
    return status;
}

fsdp_status many_capacity(const text_writer *model, int64_t *capacity)
{
    *capacity = 2;
    for (int64_t i = 0; i < model->config->n_prompts; i++) {
        one_text one = {.ended = false};
        fsdp_status status = open_one(model, i, &one);
        if (status == FSDP_OK)
            *capacity = max_i64(*capacity, text_writer_capacity(&one.writer));
        close_one(&one);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}
