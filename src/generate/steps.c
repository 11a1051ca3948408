/* Steps of generation over a cache. Sizes are rounded up to powers of two, so that a text of any length takes a handful
 * of programs: one a size of prompt, one a size of the part of the cache that is seen. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "models/decode.h"
#include "comm/world.h"
#include "shard/sharded.h"
#include "generate/generate.h"

struct generator {
    fsdp_model *model;
    device *dev;
    stream *compute;
    fsdp_dtype dtype; /* of parameters and cache */
    model_type type;
    int32_t start_id, pad_id; /* T5: what the answer begins with; what fills the source */
    int64_t capacity, source_capacity, vocabulary, n_layers;

    row_cache *past, *memory; /* a layer each; memory: T5's, of the source */
    uint8_t *rows;            /* device memory of all of them */
    size_t rows_bytes;

    int64_t n_texts, *lengths;                         /* side by side; tokens of each in the cache */
    int32_t *places, *lasts;                           /* of a step of theirs */
    int64_t n;                                         /* tokens in the cache */
    int64_t n_source;                                  /* T5: rows of memory that are seen, padding included */
    int32_t *text;                                     /* (capacity): the tokens in the cache */
    int64_t window;                                    /* of layers that have one */
    int32_t *ids, *positions, *mask, *window_mask;     /* (most): of a step */
    int32_t *source_ids, *source_places, *source_mask; /* (source_capacity) */
    int32_t last;
};

enum { MIN_TOKENS = 16, MIN_SEEN = 64 };

/* The power of two from `least` on that holds n, no more than `most`. */
static int64_t rounded(int64_t n, int64_t least, int64_t most)
{
    int64_t size = least;
    while (size < n)
        size *= 2;
    return min_i64(size, most);
}

static fsdp_status allocate_rows(generator *g, int64_t past_columns, int64_t memory_columns)
{
    fsdp_dtype dtype = g->dtype;
    size_t past = round_up((size_t)(g->n_texts * g->capacity * past_columns) * fsdp_dtype_size(dtype), 256);
    size_t memory = round_up((size_t)(g->source_capacity * memory_columns) * fsdp_dtype_size(dtype), 256);
    g->rows_bytes = (size_t)g->n_layers * (past + memory);
    FSDP_TRY(g->dev->allocate(g->dev, MEMORY_DEVICE, g->rows_bytes, (void **)&g->rows));
    for (int64_t i = 0; i < g->n_layers; i++) {
        uint8_t *at = g->rows + (size_t)i * (past + memory);
        g->past[i] = (row_cache){at, dtype, g->n_texts * g->capacity, past_columns};
        g->memory[i] = (row_cache){at + past, dtype, g->source_capacity, memory_columns};
    }
    return FSDP_OK;
}

static fsdp_status allocate(generator *g, const model_config *c)
{
    bool t5 = c->type == MODEL_T5;
    size_t texts = (size_t)g->n_texts, tokens = (size_t)g->capacity, source = (size_t)g->source_capacity + 1;
    size_t most = tokens > texts ? tokens : texts;
    g->past = calloc((size_t)g->n_layers, sizeof *g->past);
    g->memory = calloc((size_t)g->n_layers, sizeof *g->memory);
    g->text = calloc(tokens, sizeof *g->text);
    g->ids = calloc(most, sizeof *g->ids);
    g->positions = calloc(most, sizeof *g->positions);
    g->places = calloc(most, sizeof *g->places);
    g->lasts = calloc(texts, sizeof *g->lasts);
    g->lengths = calloc(texts, sizeof *g->lengths);
    g->mask = calloc(texts * tokens, sizeof *g->mask);
    g->window_mask = calloc(texts * tokens, sizeof *g->window_mask);
    g->source_ids = calloc(source, sizeof *g->source_ids);
    g->source_places = calloc(source, sizeof *g->source_places);
    g->source_mask = calloc(source, sizeof *g->source_mask);
    if (!g->past || !g->memory || !g->text || !g->ids || !g->positions || !g->mask || !g->window_mask ||
        !g->source_ids || !g->source_places || !g->source_mask || !g->places || !g->lasts || !g->lengths)
        return error_set(FSDP_ERR_MEMORY, "a cache of %lld tokens: out of host memory", (long long)g->capacity);
    int64_t width = 2 * (t5 ? c->t5.heads * c->t5.head_dim : c->decoder.kv_heads * c->decoder.head_dim);
    return allocate_rows(g, width, t5 ? width : 0);
}

static fsdp_status create(fsdp_model *m, const model_config *c, int64_t capacity, int64_t source_capacity,
                          int64_t n_texts, generator **out)
{
    bool t5 = c->type == MODEL_T5;
    if (c->type != MODEL_DECODER && !t5)
        return error_set(FSDP_ERR_INPUT, "a %s model writes no text", model_type_name(c));
    if (capacity < 2 || (t5 && source_capacity < 1) || (!t5 && capacity > c->decoder.positions))
        return error_set(FSDP_ERR_INPUT, "a cache of %lld tokens for a %s model", (long long)capacity,
                         model_type_name(c));
    /* Blocks are decoded one after another without the casts between units that forward makes. */
    fsdp_dtype dtype;
    fsdp_status status = model_param_dtype(m, &dtype);
    if (status != FSDP_OK)
        return error_prefix(status,
                            "a model of several precisions writes no text; export it and generate from there: ");
    generator *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(FSDP_ERR_MEMORY, "a cache of %lld tokens: out of host memory", (long long)capacity);
    g->model = m;
    g->dev = fsdp_model_world(m)->dev;
    g->compute = fsdp_model_world(m)->compute;
    g->dtype = dtype;
    g->type = c->type;
    g->window = t5 ? 0 : c->decoder.window;
    g->capacity = capacity;
    g->n_texts = n_texts;
    g->source_capacity = t5 ? rounded(source_capacity, MIN_TOKENS, INT64_MAX) : 0;
    g->vocabulary = model_vocabulary(c);
    g->n_layers = t5 ? c->t5.decoder_layers : c->decoder.layers;
    g->start_id = c->t5.decoder_start_id;
    g->pad_id = c->t5.pad_id;
    status = allocate(g, c);
    if (status != FSDP_OK) {
        generator_free(g);
        return status;
    }
    *out = g;
    return FSDP_OK;
}

fsdp_status generator_create(fsdp_model *m, const model_config *c, int64_t capacity, int64_t source_capacity,
                             generator **out)
{
    return create(m, c, capacity, source_capacity, 1, out);
}

fsdp_status generator_create_texts(fsdp_model *m, const model_config *c, int64_t capacity, int64_t n_texts,
                                   generator **out)
{
    if (c->type != MODEL_DECODER || n_texts < 1)
        return error_set(FSDP_ERR_INPUT, "%lld texts side by side of a %s model", (long long)n_texts,
                         model_type_name(c));
    return create(m, c, capacity, 0, n_texts, out);
}

void generator_free(generator *g)
{
    if (!g)
        return;
    if (g->rows)
        g->dev->release(g->dev, MEMORY_DEVICE, g->rows, g->rows_bytes);
    free(g->past);
    free(g->memory);
    free(g->text);
    free(g->ids);
    free(g->positions);
    free(g->places);
    free(g->lasts);
    free(g->lengths);
    free(g->mask);
    free(g->window_mask);
    free(g->source_ids);
    free(g->source_places);
    free(g->source_mask);
    free(g);
}

static fsdp_status run(generator *g, const decode_step *step, float *logits)
{
    fsdp_module *net = fsdp_model_module(g->model);
    fsdp_tape *t = fsdp_begin_evaluation(g->model);
    fsdp_tensor *out = g->type == MODEL_DECODER
                           ? decoder_decode(net, t, step, g->past)
                           : t5_decode(net, t, step, g->past, g->n_source, g->source_mask, g->memory);
    fsdp_output(t, out);
    FSDP_TRY(fsdp_evaluate(t));
    return fsdp_read(out, logits, step->length > 0 ? g->n_texts * g->vocabulary : g->vocabulary);
}

/* All of g->text at once. */
static fsdp_status read_text(generator *g, float *logits)
{
    int64_t n = rounded(g->n, MIN_TOKENS, g->capacity);
    FSDP_TRY(g->dev->zero(g->compute, g->rows, g->rows_bytes));
    for (int64_t i = 0; i < n; i++) {
        g->ids[i] = i < g->n ? g->text[i] : 0;
        g->positions[i] = i < g->n ? (int32_t)i : -1;
    }
    g->last = (int32_t)(g->n - 1);
    decode_step step = {.n_tokens = n, .ids = g->ids, .positions = g->positions, .last = &g->last};
    return run(g, &step, logits);
}

static fsdp_status read_source(generator *g, const int32_t *ids, int64_t n)
{
    if (n > g->source_capacity)
        return error_set(FSDP_ERR_INPUT, "a source of %lld tokens; there is room for %lld", (long long)n,
                         (long long)g->source_capacity);
    g->n_source = rounded(n, MIN_TOKENS, g->source_capacity);
    for (int64_t i = 0; i < g->n_source; i++) {
        g->source_ids[i] = i < n ? ids[i] : g->pad_id;
        g->source_places[i] = i < n ? (int32_t)i : -1;
        g->source_mask[i] = i < n;
    }
    FSDP_TRY(g->dev->zero(g->compute, g->rows, g->rows_bytes));
    fsdp_tape *t = fsdp_begin_evaluation(g->model);
    t5_encode(fsdp_model_module(g->model), t, g->n_source, g->source_ids, g->source_mask, g->source_places, g->memory);
    return fsdp_evaluate(t);
}

fsdp_status generator_start(generator *g, const int32_t *ids, int64_t n, float *logits)
{
    if (n < 1)
        return error_set(FSDP_ERR_INPUT, "an empty prompt: at least one token is needed");
    g->n = 0;
    if (g->type == MODEL_T5) {
        FSDP_TRY(read_source(g, ids, n));
        return generator_next(g, g->start_id, logits);
    }
    g->n = min_i64(n, g->capacity);
    memcpy(g->text, ids + n - g->n, (size_t)g->n * sizeof *ids);
    return read_text(g, logits);
}

/* The newer half of the text, read anew: positions begin at 0 again. */
static fsdp_status forget_half(generator *g, int32_t token, float *logits)
{
    int64_t kept = g->capacity / 2;
    if (g->type == MODEL_T5)
        return error_set(FSDP_ERR_INPUT, "there is no room for an answer of more than %lld tokens",
                         (long long)g->capacity);
    memmove(g->text, g->text + g->capacity - kept, (size_t)kept * sizeof *g->text);
    g->text[kept] = token;
    g->n = kept + 1;
    return read_text(g, logits);
}

fsdp_status generator_next(generator *g, int32_t token, float *logits)
{
    if (g->n == g->capacity)
        return forget_half(g, token, logits);
    int64_t length = rounded(g->n + 1, MIN_SEEN, g->capacity);
    g->text[g->n] = g->ids[0] = token;
    g->positions[0] = (int32_t)g->n;
    g->last = 0;
    for (int64_t i = 0; i < length; i++) {
        g->mask[i] = i <= g->n;
        g->window_mask[i] = i <= g->n && (g->window == 0 || i > g->n - g->window);
    }
    g->n++;
    decode_step step = {.n_tokens = 1,
                        .ids = g->ids,
                        .positions = g->positions,
                        .last = &g->last,
                        .length = length,
                        .mask = g->mask,
                        .window_mask = g->window_mask};
    return run(g, &step, logits);
}

/* ---- Texts side by side ---- */

fsdp_status generator_clear(generator *g)
{
    memset(g->lengths, 0, (size_t)g->n_texts * sizeof *g->lengths);
    return g->dev->zero(g->compute, g->rows, g->rows_bytes);
}

fsdp_status generator_read(generator *g, int64_t text, const int32_t *ids, int64_t n, float *logits)
{
    if (n < 1 || n > g->capacity)
        return error_set(FSDP_ERR_INPUT, "a prompt of %lld tokens; 1 to %lld are expected", (long long)n,
                         (long long)g->capacity);
    int64_t size = rounded(n, MIN_TOKENS, g->capacity);
    for (int64_t i = 0; i < size; i++) {
        g->ids[i] = i < n ? ids[i] : 0;
        g->positions[i] = i < n ? (int32_t)i : -1;
        g->places[i] = i < n ? (int32_t)(text * g->capacity + i) : -1;
    }
    g->last = (int32_t)(n - 1);
    g->lengths[text] = n;
    decode_step step = {.n_tokens = size,
                        .ids = g->ids,
                        .positions = g->positions,
                        .places = g->places,
                        .last = &g->last,
                        .n_texts = g->n_texts};
    return run(g, &step, logits);
}

/* One that has ended goes on seeing what it has: what comes of that is nobody's. */
fsdp_status generator_step(generator *g, const int32_t *tokens, float *logits)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < g->n_texts; i++) {
        bool writes = tokens[i] >= 0;
        if (writes && g->lengths[i] == g->capacity)
            return error_set(FSDP_ERR_STATE, "text %lld has no room for another token", (long long)i);
        g->ids[i] = writes ? tokens[i] : 0;
        g->positions[i] = writes ? (int32_t)g->lengths[i] : 0;
        g->places[i] = writes ? (int32_t)(i * g->capacity + g->lengths[i]) : -1;
        g->lasts[i] = (int32_t)i;
        g->lengths[i] += writes;
        longest = max_i64(longest, g->lengths[i]);
    }
    int64_t length = rounded(longest, MIN_SEEN, g->capacity);
    for (int64_t i = 0; i < g->n_texts; i++) {
        int64_t n = max_i64(1, g->lengths[i]);
        for (int64_t k = 0; k < length; k++) {
            g->mask[i * length + k] = k < n;
            g->window_mask[i * length + k] = k < n && (g->window == 0 || k >= n - g->window);
        }
    }
    decode_step step = {.n_tokens = g->n_texts,
                        .ids = g->ids,
                        .positions = g->positions,
                        .places = g->places,
                        .last = g->lasts,
                        .length = length,
                        .mask = g->mask,
                        .window_mask = g->window_mask,
                        .n_texts = g->n_texts};
    return run(g, &step, logits);
}
