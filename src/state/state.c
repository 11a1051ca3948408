/* A state's life: what it consists of, the caller's own values, and what the command asks about it. Saving is save.c's,
 * loading load.c's. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/data.h>

#include "base/error.h"
#include "base/sized.h"
#include "models/config.h"
#include "state/state_internal.h"

static fsdp_status copy_text(const char *text, char **out)
{
    *out = text ? strdup(text) : NULL;
    return text && !*out ? error_set(FSDP_ERR_MEMORY, "opening a state: out of host memory") : FSDP_OK;
}

static fsdp_status check_config(const fsdp_state_config *c)
{
    if (!c->model)
        return error_set(FSDP_ERR_INPUT, "a state needs a model");
    if (c->optimizer && c->optimizer->model != c->model)
        return error_set(FSDP_ERR_INPUT, "the optimizer of a state must be its model's");
    if ((unsigned)c->kind > FSDP_CKPT_LOCAL)
        return error_set(FSDP_ERR_INPUT, "%d is no kind of checkpoint", (int)c->kind);
    if (c->keep < 0 || c->keep_every < 0)
        return error_set(FSDP_ERR_INPUT, "a state keeps %d checkpoints, and those of every %lld steps: below 0",
                         c->keep, (long long)c->keep_every);
    if (c->loader && c->position.get)
        return error_set(FSDP_ERR_INPUT, "a state follows a loader or a position of the caller's own, not both");
    if ((c->position.get == NULL) != (c->position.set == NULL))
        return error_set(FSDP_ERR_INPUT, "the data's position needs both get and set");
    return FSDP_OK;
}

static int64_t position_of_loader(void *loader)
{
    return fsdp_loader_position(loader);
}

/* Instead of this, a load calls loader_restore, which is told more. */
static fsdp_status seek_loader(void *loader, int64_t position)
{
    return fsdp_loader_seek(loader, position);
}

/* config.json: what the caller gives, or what a ready-made model knows of itself. */
static fsdp_status describe_model(fsdp_state *s, const char *given)
{
    const model_config *known = model_config_of(fsdp_model_module(s->model));
    if (given)
        return json_parse("model_json of a state", given, strlen(given), &s->model_json);
    s->model_json = known ? model_config_json(known) : NULL;
    return known && !s->model_json ? error_set(FSDP_ERR_MEMORY, "opening a state: out of host memory") : FSDP_OK;
}

static fsdp_status leave_base_out(fsdp_state *s, const char *name)
{
    if (!model_state_has_base(s->model))
        return error_set(FSDP_ERR_INPUT, "`base` of a state is for models of which adapters alone are trained");
    if (!s->model->base_known)
        return error_set(FSDP_ERR_INPUT, "`base` of a state: its weights must be a file's (fsdp_weights_load), and "
                                         "nothing else written into them");
    FSDP_TRY(copy_text(name, &s->base));
    return model_state_create(s->model, s->optimizer, &(model_view){.without_base = true}, &s->adapters);
}

static fsdp_status fill(fsdp_state *s, const fsdp_state_config *c)
{
    s->model = c->model;
    s->optimizer = c->optimizer;
    s->world = comm_world(c->model->world->comm);
    s->position = c->loader ? (fsdp_data_position){position_of_loader, seek_loader, c->loader} : c->position;
    s->kind = c->kind;
    s->keep = c->keep;
    s->keep_every = c->keep_every;
    s->max_file_bytes = c->max_file_bytes;
    FSDP_TRY(copy_text(c->directory, &s->directory));
    FSDP_TRY(copy_text(c->tokenizer, &s->tokenizer));
    FSDP_TRY(describe_model(s, c->model_json));
    s->loader = c->loader;
    s->notes = (state_notes){.loader = c->loader, .model = s->model_json, .tokenizer = s->tokenizer};
    FSDP_TRY(model_state_create(s->model, s->optimizer, NULL, &s->tensors));
    return c->base ? leave_base_out(s, c->base) : FSDP_OK;
}

fsdp_status fsdp_state_open(const fsdp_state_config *config, fsdp_state **out)
{
    SIZED_READ(fsdp_state_config, FSDP_STATE_CONFIG_INIT, full, config);
    FSDP_TRY(check_config(&full));
    fsdp_state *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "opening a state: out of host memory");
    fsdp_status status = fill(s, &full);
    if (status != FSDP_OK) {
        fsdp_state_close(s);
        return status;
    }
    *out = s;
    return FSDP_OK;
}

void fsdp_state_close(fsdp_state *s)
{
    if (!s)
        return;
    ckpt_saver_free(s->saver);
    ckpt_saver_free(s->hot_saver);
    ckpt_hot_free(s->hot);
    model_state_free(s->tensors);
    model_state_free(s->adapters);
    free(s->base);
    value_list_free(&s->values);
    json_decref(s->loaded);
    json_decref(s->model_json);
    free(s->directory);
    free(s->tokenizer);
    free(s);
}

fsdp_status fsdp_state_number(fsdp_state *s, const char *name, double *value)
{
    return value_list_add(&s->values, name, VALUE_NUMBER, value, sizeof *value);
}

fsdp_status fsdp_state_integer(fsdp_state *s, const char *name, int64_t *value)
{
    return value_list_add(&s->values, name, VALUE_INTEGER, value, sizeof *value);
}

fsdp_status fsdp_state_blob(fsdp_state *s, const char *name, void *data, size_t bytes)
{
    return value_list_add(&s->values, name, VALUE_BLOB, data, bytes);
}

const char *fsdp_state_path(const fsdp_state *s)
{
    return s->path;
}

/* ---- For the command ---- */

void state_describe(fsdp_state *s, const state_notes *notes)
{
    s->notes = *notes;
}

const json_t *state_loaded_extra(const fsdp_state *s)
{
    return s->loaded;
}

const char *state_loaded_run(const fsdp_state *s)
{
    return s->loaded_run;
}

int state_loaded_ranks(const fsdp_state *s)
{
    return s->loaded_ranks;
}

bool state_is_saving(const fsdp_state *s)
{
    return s->saver && ckpt_saver_active(s->saver);
}

size_t state_snapshot_bytes(const fsdp_state *s)
{
    return s->saver ? ckpt_saver_bytes(s->saver) : 0;
}

bool state_has_snapshots(const fsdp_state *s)
{
    return s->hot_saver != NULL;
}

fsdp_status state_settle(fsdp_state *s)
{
    return model_state_settle(s->tensors);
}

const ckpt_state *state_tensors(const fsdp_state *s)
{
    return model_state_describe(s->tensors);
}

state_scalars state_scalars_of(const fsdp_state *s)
{
    const fsdp_model *m = s->model;
    const fsdp_optimizer *o = s->optimizer;
    return (state_scalars){.optimizer_steps = o ? o->steps : 0,
                           .good_steps = o ? o->good_steps : 0,
                           .micro_batches = (int64_t)m->micro_total,
                           .loss_scale = m->loss_scale,
                           .expected_count = m->expected_count,
                           .lr = o ? o->lr : 0};
}

int state_replica(const fsdp_state *s)
{
    return model_state_replica(s->tensors);
}

bool state_is_replicated(const fsdp_state *s, const ckpt_slice *slice)
{
    return model_state_is_replicated(s->tensors, slice);
}

bool state_is_offloaded(const fsdp_state *s)
{
    return s->model->offload != NULL;
}
