/* When checkpoints are written and what they remember beyond tensors; resuming; the final export. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "format/hub.h"
#include "train/resume_path.h"
#include "train/run.h"

/* The run's flags; NULL when out of memory. */
static json_t *describe_flags(const train_run *run)
{
    char *text = NULL;
    if (fsdp_settings_json(run->settings, &text) != FSDP_OK)
        return NULL;
    json_t *flags = json_loads(text, 0, NULL);
    free(text);
    return flags;
}

static bool set_id(json_t *model, const char *key, int32_t id)
{
    return json_object_set_new(model, key, id < 0 ? json_null() : json_integer(id)) == 0;
}

/* config.json of a checkpoint or an export: the file that the model came from with what has changed, or one from its
 * shape, with the tokenizer's ids. NULL when out of memory. */
static json_t *describe_model(const train_run *run)
{
    json_t *model = model_config_update(run->source.json, &run->model_config);
    bool writes = run->model_config.type == MODEL_LLAMA || run->model_config.type == MODEL_T5;
    if (!model || run->source.json || !run->tokenizer || !writes)
        return model;
    bool done = set_id(model, "bos_token_id", fsdp_tokenizer_bos(run->tokenizer)) &&
                set_id(model, "eos_token_id", fsdp_tokenizer_eos(run->tokenizer));
    if (done && run->model_config.type == MODEL_LLAMA)
        done = set_id(model, "pad_token_id", fsdp_tokenizer_pad(run->tokenizer));
    if (done)
        return model;
    json_decref(model);
    return NULL;
}

/* What a resumed run needs besides the tensors; the flags are for people. NULL when out of memory. */
static json_t *describe_position(const train_run *run)
{
    const fsdp_model *m = run->model;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:o}", "step", (json_int_t)run->step, "position",
                     (json_int_t)run->position, "optimizer_steps", (json_int_t)run->optimizer->steps, "good_steps",
                     (json_int_t)run->optimizer->good_steps, "micro_batches", (json_int_t)m->micro_total, "loss_scale",
                     m->loss_scale, "expected_count", m->expected_count, "seed", (json_int_t)run->settings->seed,
                     "flags", describe_flags(run));
}

/* Flags may change when a run is resumed; names those that did, for a reader who wonders about the losses. */
static void name_changed_flags(train_run *run, const json_t *extra)
{
    char names[512] = "";
    size_t used = 0;
    const char *key;
    json_t *value, *before = json_object_get(extra, "flags"), *flags = before ? describe_flags(run) : NULL;
    json_object_foreach(flags, key, value)
    {
        if (strcmp(key, "resume_from_checkpoint") != 0 && !json_equal(value, json_object_get(before, key)) &&
            used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, " --%s", key);
    }
    json_decref(flags);
    if (used > 0)
        run_say(run, FSDP_LINE_INFO, "the checkpoint was written with other values of%s", names);
}

static fsdp_status restore_position(train_run *run, const char *path, const json_t *extra)
{
    int64_t steps = 0, good = 0, micro = 0;
    fsdp_model *m = run->model;
    FSDP_TRY(json_get_int(path, extra, "step", &run->step));
    FSDP_TRY(json_get_int(path, extra, "position", &run->position));
    FSDP_TRY(json_get_int(path, extra, "optimizer_steps", &steps));
    FSDP_TRY(json_opt_int(path, extra, "good_steps", &good));
    FSDP_TRY(json_opt_int(path, extra, "micro_batches", &micro));
    FSDP_TRY(json_opt_number(path, extra, "loss_scale", &m->loss_scale));
    FSDP_TRY(json_opt_number(path, extra, "expected_count", &m->expected_count));
    run->optimizer->steps = steps;
    run->optimizer->good_steps = good;
    m->micro_total = (uint64_t)micro;
    m->step = run->step;
    return FSDP_OK;
}

/* A resumed run keeps the kernels that were chosen for it instead of timing them again. */
static fsdp_status take_choices(train_run *run, const ckpt_load_result *found)
{
    device *d = run->world->dev;
    if (!d->autotune_import || found->autotune_bytes == 0)
        return FSDP_OK;
    return d->autotune_import(d, found->path, found->choices, found->autotune_bytes);
}

fsdp_status run_resume(train_run *run)
{
    const char *from = run->settings->resume_from_checkpoint;
    if (!from)
        return FSDP_OK;
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result found = {.extra = NULL};
    run_show_warnings(run, true); /* names those that are skipped */
    fsdp_status status =
        ckpt_resume(from, &config, model_state_describe(run->state), comm_world(run->world->comm), &found);
    run_show_warnings(run, false);
    FSDP_TRY(status);
    if (found.step < 0) {
        FSDP_TRY(resume_path_judge(from, run->checkpoint_dir));
        run_say(run, FSDP_LINE_INFO, "no checkpoint in %s yet: starting from scratch", from);
    } else {
        status = model_state_loaded(run->state);
        if (status == FSDP_OK && found.extra)
            status = restore_position(run, found.path, found.extra);
        if (status == FSDP_OK)
            status = take_choices(run, &found);
        run->last_saved_step = run->step;
        run_say(run, FSDP_LINE_INFO, "resumed from %s at step %lld", found.path, (long long)run->step);
        name_changed_flags(run, found.extra);
    }
    ckpt_load_result_free(&found);
    return status;
}

static fsdp_status finish_save(train_run *run);

fsdp_status run_rollback(train_run *run)
{
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result found = {.extra = NULL};
    int64_t failed = run->step, position = run->position;
    FSDP_TRY(finish_save(run));
    FSDP_TRY(model_state_settle(run->state));
    FSDP_TRY(ckpt_resume(run->checkpoint_dir, &config, model_state_describe(run->state), comm_world(run->world->comm),
                         &found));
    fsdp_status status = FSDP_OK;
    if (found.step < 0) {
        status = error_set(FSDP_ERR_NUMERIC,
                           "step %lld: not finite, and no checkpoint under %s to go back to; set --checkpoint_freq",
                           (long long)failed, run->checkpoint_dir);
    } else {
        status = model_state_loaded(run->state);
        if (status == FSDP_OK && found.extra)
            status = restore_position(run, found.path, found.extra);
        run->position = position; /* the loader is there: the samples that caused it are not read again */
        run_say(run, FSDP_LINE_WARNING, "step %lld: not finite; back to %s", (long long)failed, found.path);
    }
    ckpt_load_result_free(&found);
    return status;
}

/* The path that the run's --tokenizer stands for; NULL: none, or it is not there any more. malloc'd. */
static char *tokenizer_path(const train_run *run)
{
    char *path = NULL;
    return run->settings->tokenizer && hub_find(HUB_MODEL, run->settings->tokenizer, NULL, &path) == FSDP_OK ? path
                                                                                                             : NULL;
}

static ckpt_save_config save_config(const train_run *run)
{
    static const ckpt_kind kinds[] = {
        [FSDP_CKPT_SHARDED] = CKPT_SHARDED, [FSDP_CKPT_FULL] = CKPT_FULL, [FSDP_CKPT_LOCAL] = CKPT_LOCAL};
    const fsdp_settings *s = run->settings;
    ckpt_save_config c = CKPT_SAVE_CONFIG_INIT;
    c.directory = run->checkpoint_dir;
    c.kind = kinds[s->checkpoint_kind];
    c.step = run->step;
    c.strategy = fsdp_strategy_name(run->sharding.config.strategy);
    c.tokenizer_name = s->tokenizer;
    c.keep = (int)s->keep_checkpoints;
    c.keep_every = s->keep_every;
    if (s->export_part_size > 0)
        c.max_file_bytes = s->export_part_size;
    return c;
}

/* A save has ended; a failure's message is this thread's. A failure is reported, and the step no longer counts as
 * saved, so it is saved again at the end at the latest. Returns FSDP_OK where training goes on, as it does unless the
 * user asked it to stop. */
static fsdp_status judge_save(train_run *run, fsdp_status status, const ckpt_save_result *r)
{
    run->save_status = status;
    if (status == FSDP_OK) {
        if (r->path[0])
            snprintf(run->result.checkpoint, sizeof run->result.checkpoint, "%s", r->path);
        return FSDP_OK;
    }
    snprintf(run->save_message, sizeof run->save_message, "%s", fsdp_last_error());
    run->last_saved_step = -1;
    if (run->settings->on_checkpoint_failure == FSDP_FAILURE_STOP)
        return status;
    run_say(run, FSDP_LINE_WARNING, "checkpoint failed, training continues: %s", run->save_message);
    return FSDP_OK;
}

/* The end of an asynchronous save, if one is under way. */
static fsdp_status finish_save(train_run *run)
{
    ckpt_save_result r = {.path = ""};
    if (!run->saver || !ckpt_saver_active(run->saver))
        return FSDP_OK;
    return judge_save(run, ckpt_saver_wait(run->saver, comm_world(run->world->comm), &r), &r);
}

/* Everything but the tensors that the state and the configuration of a save point to. */
typedef struct save_notes {
    json_t *extra, *model;
    char *choices, *tokenizer;
} save_notes;

static fsdp_status make_notes(const train_run *run, ckpt_state *state, ckpt_save_config *config, save_notes *notes)
{
    device *d = run->world->dev;
    *notes = (save_notes){describe_position(run), describe_model(run), NULL, tokenizer_path(run)};
    if (!notes->extra || !notes->model)
        return error_set(FSDP_ERR_MEMORY, "describing a checkpoint: out of host memory");
    state->extra = notes->extra;
    config->model = notes->model;
    config->tokenizer = notes->tokenizer;
    if (!d->autotune_export)
        return FSDP_OK;
    fsdp_status status = d->autotune_export(d, &notes->choices, &state->autotune_bytes);
    state->choices = notes->choices;
    return status;
}

static void free_notes(ckpt_state *state, save_notes *notes)
{
    state->extra = NULL;
    state->choices = NULL;
    state->autotune_bytes = 0;
    json_decref(notes->extra);
    json_decref(notes->model);
    free(notes->choices);
    free(notes->tokenizer);
}

/* Starts a save, asynchronous or not. A synchronous one has ended when this returns. */
static fsdp_status start_save(train_run *run)
{
    ckpt_save_config config = save_config(run);
    ckpt_state *state = model_state_describe(run->state);
    comm_group *world = comm_world(run->world->comm);
    save_notes notes;
    ckpt_save_result r = {.path = ""};
    fsdp_status status = make_notes(run, state, &config, &notes);
    if (status == FSDP_OK && run->settings->async_checkpoint && !run->saver)
        status = ckpt_saver_create(state, config.kind == CKPT_LOCAL, &run->saver);
    if (status == FSDP_OK && run->saver)
        status = ckpt_saver_start(run->saver, &config, state, world);
    else if (status == FSDP_OK)
        status = ckpt_save(&config, state, world, &r);
    free_notes(state, &notes);
    run->last_save = clock_seconds();
    run->last_saved_step = run->step;
    return status == FSDP_OK && run->saver ? FSDP_OK : judge_save(run, status, &r);
}

/* An earlier save that failed in the background is reported here and does not keep this one from being made, not even
 * where the failure ends the run: then this is the last chance to. */
static fsdp_status save(train_run *run)
{
    char message[sizeof run->save_message];
    FSDP_TRY(model_state_settle(run->state));
    fsdp_status before = finish_save(run);
    if (before == FSDP_OK)
        return start_save(run);
    memcpy(message, run->save_message, sizeof message);
    fsdp_status now = start_save(run);
    if (now == FSDP_OK)
        now = finish_save(run);
    return error_set(before, "an earlier checkpoint was not saved%s: %s", now == FSDP_OK ? ", this one is" : "",
                     message);
}

/* By time: rank 0's clock decides for all. */
static fsdp_status minutes_passed(train_run *run, bool *out)
{
    int64_t due = run->settings->checkpoint_minutes > 0 &&
                  clock_seconds() - run->last_save >= run->settings->checkpoint_minutes * 60;
    if (run->settings->checkpoint_minutes > 0) {
        due = run->rank == 0 ? due : 0;
        FSDP_TRY(comm_all_reduce_i64(comm_world(run->world->comm), "checkpoint time", run->step, COMM_MAX, &due, 1));
    }
    *out = due != 0;
    return FSDP_OK;
}

/* The last step reached the end of another `n` epochs. */
static bool epochs_ended(const train_run *run, int64_t n)
{
    int64_t n_samples = run->info.n_samples;
    return run->position / n_samples / n > run->previous_position / n_samples / n;
}

fsdp_status run_checkpoint(train_run *run, bool at_end)
{
    const fsdp_settings *s = run->settings;
    bool due = s->checkpoint_freq > 0 && run->step % s->checkpoint_freq == 0, timed = false;
    due |= s->checkpoint_epochs > 0 && epochs_ended(run, s->checkpoint_epochs);
    FSDP_TRY(minutes_passed(run, &timed));
    if (at_end && run->last_saved_step == run->step)
        FSDP_TRY(finish_save(run)); /* when it failed, it is made again */
    due |= timed || (at_end && (s->checkpoint_at_end || run->stopping));
    if (!due || run->last_saved_step == run->step)
        return FSDP_OK;
    return save(run);
}

static fsdp_status export_model(train_run *run)
{
    const fsdp_settings *s = run->settings;
    ckpt_save_config config = save_config(run);
    json_t *model = describe_model(run);
    char *tokenizer = tokenizer_path(run);
    config.directory = s->export_dir;
    config.model = model;
    config.tokenizer = tokenizer;
    fsdp_status status = model_state_settle(run->state);
    if (status == FSDP_OK)
        status = ckpt_export(&config, model_state_describe(run->state), FSDP_F32, comm_world(run->world->comm));
    json_decref(model);
    free(tokenizer);
    if (status == FSDP_OK)
        run_say(run, FSDP_LINE_INFO, "exported the model to %s", s->export_dir);
    return status;
}

fsdp_status run_finish_checkpoints(train_run *run)
{
    fsdp_status status = finish_save(run);
    if (run->settings->export_dir && !run->stopping)
        FSDP_TRY(export_model(run));
    if (run->save_status == FSDP_OK)
        return status;
    /* Training that went on over failed saves ends without what it was for. */
    status = run->save_status == FSDP_ERR_INPUT ? FSDP_ERR_IO : run->save_status;
    return error_set(status, "training has ended at step %lld, but the last checkpoint was not saved: %s",
                     (long long)run->step, run->save_message);
}
