/* `fsdp generate` as a call: finds model and tokenizer, loads the weights, writes until an end token or the limit. */
#include <fsdp/generate.h>
#include <fsdp/lora.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sized.h"
#include "ckpt/load/load.h"
#include "ckpt/commands/report.h"
#include "format/hub/hub.h"
#include "generate/generate.h"
#include "state/weights.h"

typedef struct generation {
    const fsdp_generate_config *config;
    char *path; /* of the model */
    model_config model_config;
    fsdp_tokenizer *tokenizer;
    char *tokenizer_path; /* NULL: none */
    chat_template *chat;
    fsdp_world *world;
    fsdp_model *model;
    text_writer writer;
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
    g->tokenizer_path = path;
    return path ? fsdp_tokenizer_load(path, &g->tokenizer) : fsdp_tokenizer_byte(&g->tokenizer);
}

/* End tokens that a configuration file names: a number or a list. */
static fsdp_status read_ends(generation *g, const char *name)
{
    char *path = beside(g, name);
    json_t *object = NULL;
    fsdp_status status = path ? json_read_file(path, &object) : FSDP_OK;
    const json_t *ends = json_object_get(object, "eos_token_id");
    if (json_is_integer(ends))
        text_writer_add_end(&g->writer, json_integer_value(ends));
    for (size_t i = 0; i < json_array_size(ends); i++)
        text_writer_add_end(&g->writer, json_integer_value(json_array_get(ends, i)));
    json_decref(object);
    free(path);
    return status;
}

static fsdp_status find_ends(generation *g)
{
    text_writer_add_end(&g->writer, fsdp_tokenizer_eos(g->tokenizer));
    /* Bytes are the tokenizer only where the model brought none: then its configuration's ids are of another. */
    char *own = beside(g, "tokenizer.json");
    bool own_ids = own != NULL;
    free(own);
    if (!own_ids)
        return FSDP_OK;
    FSDP_TRY(read_ends(g, "config.json"));
    return read_ends(g, "generation_config.json");
}

/* Added to the weights, several are as fast as none. */
static fsdp_status add_adapters(generation *g)
{
    char *copy = g->config->adapters ? strdup(g->config->adapters) : NULL, *rest = copy;
    fsdp_status status = FSDP_OK;
    if (g->config->adapters && !copy)
        return error_set(FSDP_ERR_MEMORY, "generation: out of host memory");
    for (char *folder; status == FSDP_OK && (folder = strsep(&rest, ","));)
        status = fsdp_adapter_merge(g->model, folder);
    free(copy);
    return status;
}

/* Nothing is trained: every parameter is frozen, so that no gradient has memory. */
static fsdp_status open_model(generation *g)
{
    static const char *const all[] = {"*"};
    fsdp_config sharding = FSDP_CONFIG_INIT;
    fsdp_module *net;
    sharding.strategy = fsdp_world_size(g->world) > 1 ? FSDP_FULL : FSDP_NO_SHARD;
    if (model_block_type(&g->model_config))
        sharding.wrap = fsdp_wrap_by_type(model_block_type(&g->model_config));
    sharding.param_dtype = g->config->dtype;
    sharding.freeze = all;
    sharding.n_freeze = 1;
    FSDP_TRY(model_create(&g->model_config, &net));
    fsdp_status status = fsdp_shard(g->world, net, &sharding, &g->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    fsdp_weights_config weights = FSDP_WEIGHTS_CONFIG_INIT;
    weights.base = g->config->base;
    FSDP_TRY(fsdp_weights_load(g->model, g->path, &weights, NULL));
    return add_adapters(g);
}

/* The rotary tables of a LLaMA are made no longer than the text. */
static fsdp_status fit_positions(generation *g)
{
    model_config *c = &g->model_config;
    int64_t capacity;
    if (c->type != MODEL_DECODER)
        return FSDP_OK;
    if (g->config->n_prompts > 0)
        FSDP_TRY(many_capacity(&g->writer, &capacity));
    else
        capacity = text_writer_capacity(&g->writer);
    decoder_limit_positions(&c->decoder, capacity);
    return FSDP_OK;
}

static fsdp_status open_all(generation *g)
{
    const fsdp_generate_config *c = g->config;
    char *found;
    if (!c->model)
        return error_set(FSDP_ERR_INPUT, "generation needs a model");
    if (c->logits)
        return error_set(FSDP_ERR_INPUT,
                         "generation from a folder knows the model; `logits` is for fsdp_generate_with");
    FSDP_TRY(hub_find(HUB_MODEL, c->model, NULL, &found));
    fsdp_status status = report_resolve(found, &g->path);
    free(found);
    FSDP_TRY(status);
    FSDP_TRY(model_config_read(g->path, &g->model_config));
    FSDP_TRY(weights_settle_head(g->path, &g->model_config));
    g->writer = (text_writer){.config = c, .model_config = &g->model_config, .source = g->path};
    FSDP_TRY(text_writer_check(&g->writer));
    FSDP_TRY(open_tokenizer(g));
    g->writer.tokenizer = g->tokenizer;
    FSDP_TRY(find_ends(g));
    FSDP_TRY(text_writer_open_chat(&g->writer, g->path, &g->chat));
    g->writer.chat = g->chat;
    if (c->n_prompts == 0)
        FSDP_TRY(text_writer_read_prompt(&g->writer));
    fsdp_world_config world = FSDP_WORLD_CONFIG_INIT;
    if (c->device)
        world.device = c->device;
    world.threads = c->threads;
    FSDP_TRY(fsdp_world_open(&world, &g->world));
    FSDP_TRY(fit_positions(g));
    return open_model(g);
}

static void close_all(generation *g)
{
    text_writer_free(&g->writer);
    fsdp_model_free(g->model);
    fsdp_world_close(g->world);
    fsdp_tokenizer_free(g->tokenizer);
    chat_template_free(g->chat);
    free(g->tokenizer_path);
    free(g->path);
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
        status =
            full.n_prompts > 0 ? write_many(&g.writer, g.model, &done) : text_writer_write(&g.writer, g.model, &done);
    if (status != FSDP_OK && g.world)
        fsdp_world_abort(g.world);
    close_all(&g);
    sized_write(result, &done, sizeof done);
    return status;
}
