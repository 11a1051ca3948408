/* When checkpoints are written and what they say about the job; resuming; the final export. What they hold is state's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "ckpt/load/source.h"
#include "ckpt/save/save_task.h"
#include "observe/units.h"
#include "format/hub/hub.h"
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
    bool writes = run->model_config.type == MODEL_DECODER || run->model_config.type == MODEL_T5;
    if (!model || run->source.json || !run->tokenizer || !writes)
        return model;
    bool done = set_id(model, "bos_token_id", fsdp_tokenizer_bos(run->tokenizer)) &&
                set_id(model, "eos_token_id", fsdp_tokenizer_eos(run->tokenizer));
    if (done && run->model_config.type == MODEL_DECODER)
        done = set_id(model, "pad_token_id", fsdp_tokenizer_pad(run->tokenizer));
    if (done)
        return model;
    json_decref(model);
    return NULL;
}

/* A value as a flag would have it. */
static char *flag_text(const json_t *value)
{
    if (!value || json_is_null(value))
        return strdup("none");
    return json_is_string(value) ? strdup(json_string_value(value))
                                 : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
}

/* Flags may change when a run is resumed: a line for each that did, for a reader who wonders about the losses. */
static void name_changed_flags(train_run *run, const json_t *extra)
{
    static const char *const places[] = {"resume_from_checkpoint", "output_dir", "checkpoint_dir"};
    json_t *before = json_object_get(extra, "flags"), *flags = before ? describe_flags(run) : NULL;
    for (const fsdp_flag *flag = fsdp_settings_flags(); flags && flag->name; flag++) {
        const json_t *old = json_object_get(before, flag->name), *value = json_object_get(flags, flag->name);
        bool is_place = false;
        for (size_t i = 0; i < sizeof places / sizeof *places; i++)
            is_place |= strcmp(flag->name, places[i]) == 0;
        /* Lists that nobody gave are not written down; another flag that is not there is newer than the checkpoint. */
        bool comparable = (old && value) || json_array_size(old) + json_array_size(value) > 0;
        if (is_place || !comparable || json_equal(value, old))
            continue;
        char *was = flag_text(old), *is = flag_text(value);
        if (was && is)
            run_say(run, FSDP_LINE_INFO, "--%s is %s, the checkpoint was written with %s", flag->name, is, was);
        free(was);
        free(is);
    }
    json_decref(flags);
}

static int64_t flag_before(const train_run *run, const char *name, int64_t otherwise)
{
    const json_t *flags = json_object_get(state_loaded_extra(run->state), "flags");
    const json_t *value = json_object_get(flags, name);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

/* Another number of ranks changes the batch of a step, or how it is made. */
static void say_batch(train_run *run)
{
    const fsdp_settings *s = run->settings;
    int64_t ranks = state_loaded_ranks(run->state), accumulated = s->gradient_accumulation_steps;
    int64_t per_rank_before = flag_before(run, "train_batch_size", s->train_batch_size);
    int64_t accumulated_before = flag_before(run, "gradient_accumulation_steps", accumulated);
    int64_t before = ranks * per_rank_before * accumulated_before, now = run->micro_samples * accumulated;
    const json_t *noted = json_object_get(state_loaded_extra(run->state), "step_samples");
    before = json_is_integer(noted) ? json_integer_value(noted) : before;
    if (ranks == 0 || ranks == run->n_ranks)
        return;
    const char *plural = run->n_ranks == 1 ? "" : "s";
    if (before != now)
        run_say(run, FSDP_LINE_INFO, "%d rank%s instead of %lld: a step has %lld samples instead of %lld", run->n_ranks,
                plural, (long long)ranks, (long long)now, (long long)before);
    else
        run_say(run, FSDP_LINE_INFO,
                "%d rank%s instead of %lld: a step still has %lld samples, in %lld micro-batch%s of %lld per rank "
                "instead of %lld of %lld",
                run->n_ranks, plural, (long long)ranks, (long long)now, (long long)accumulated,
                accumulated == 1 ? "" : "es", (long long)s->train_batch_size, (long long)accumulated_before,
                (long long)per_rank_before);
}

/* A run that goes on keeps its name; one that begins from another's checkpoint remembers which. */
static fsdp_status note_lineage(train_run *run)
{
    const char *before = state_loaded_run(run->state);
    const json_t *lineage = json_object_get(state_loaded_extra(run->state), "lineage");
    if (run->folder.goes_on && !run->folder.began_elsewhere && before[0]) {
        snprintf(run->folder.run, sizeof run->folder.run, "%s", before);
        run->lineage = lineage ? json_deep_copy(lineage) : NULL;
        return FSDP_OK;
    }
    run->lineage = json_pack("{s:s, s:I, s:s}", "run", before, "step", (json_int_t)run->step, "checkpoint",
                             fsdp_state_path(run->state));
    return run->lineage ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "resuming: out of host memory");
}

static fsdp_status check_model(const train_run *run, const char *from)
{
    json_t *flags = run->rank == 0 ? describe_flags(run) : NULL;
    fsdp_status status = flags ? resume_path_check_model(from, flags) : FSDP_OK;
    json_decref(flags);
    return ckpt_agree(comm_world(run->world->comm), "model", status, fsdp_last_error());
}

/* What was loaded is of this very run, by an earlier round of its launcher. */
static void go_on(train_run *run, int64_t step, const char *resumed)
{
    const json_t *lineage = json_object_get(state_loaded_extra(run->state), "lineage");
    run->step = run->snapshot_step = step;
    snprintf(run->folder.run, sizeof run->folder.run, "%s", state_loaded_run(run->state));
    run->lineage = lineage ? json_deep_copy(lineage) : NULL;
    run_compare_fingerprint(run, resumed);
}

/* A job does not begin without the room for its snapshots. One that has begun goes on without them: after the loss of a
 * node, fewer hosts hold the same state. */
static fsdp_status check_snapshots(train_run *run)
{
    fsdp_status status = state_check_snapshots(run->state);
    if (status != FSDP_ERR_INPUT || run->world->job.round == 0)
        return status;
    run->no_snapshots = true;
    run_say(run, FSDP_LINE_WARNING, "no more snapshots are kept in this round: %s", fsdp_last_error());
    return FSDP_OK;
}

/* A checkpoint that this run saved after its newest snapshot. */
static fsdp_status resume_newer_checkpoint(train_run *run, int64_t snapshot, const char *name, bool *found)
{
    int64_t step = snapshot;
    FSDP_TRY(state_resume_above(run->state, run->folder.checkpoints, name, found, &step));
    if (!*found)
        return FSDP_OK;
    go_on(run, step, "checkpoint");
    run->last_saved_step = step;
    run_say(run, FSDP_LINE_INFO, "resumed from %s at step %lld, newer than the snapshot in memory of step %lld",
            fsdp_state_path(run->state), (long long)step, (long long)snapshot);
    return FSDP_OK;
}

/* A program that the launcher runs may train several times, one after the other: what is held in the first round, or
 * under another name than that of the run in the folder, is not this run's. */
static bool is_own_snapshot(const train_run *run, const char *name)
{
    return run->world->job.round > 0 && (!run->folder.known || strcmp(name, run->folder.run) == 0);
}

/* What earlier rounds of this job left: memory that outlived the ranks, or a newer checkpoint. */
static fsdp_status resume_own_round(train_run *run, bool *found)
{
    const char *name;
    int64_t step = state_newest_snapshot(run->state, &name);
    *found = false;
    if (step < 0 || !is_own_snapshot(run, name))
        return FSDP_OK;
    if (!run->folder.went_back)
        FSDP_TRY(resume_newer_checkpoint(run, step, name, found));
    if (*found)
        return FSDP_OK;
    FSDP_TRY(state_resume_snapshot(run->state, found, &step));
    run->snapshot_lost = !*found;
    if (!*found)
        return FSDP_OK;
    go_on(run, step, "snapshot");
    run->snapshot_soon = true;
    run_say(run, FSDP_LINE_INFO, "resumed from the snapshot in memory at step %lld", (long long)step);
    return FSDP_OK;
}

static fsdp_status resume_from_memory(train_run *run, bool *found)
{
    *found = false;
    if (run->settings->snapshot_freq == 0)
        return FSDP_OK;
    FSDP_TRY(state_open_snapshots(run->state, &run->world->job));
    FSDP_TRY(check_snapshots(run));
    run_show_warnings(run, true);
    fsdp_status status = resume_own_round(run, found);
    run_show_warnings(run, false);
    return status;
}

/* The first failure is followed by another attempt at once; after that, the next one is made when it is due. */
static fsdp_status judge_snapshot(train_run *run, fsdp_status status)
{
    if (status == FSDP_ERR_PEER || status == FSDP_ERR_TIMEOUT)
        return status; /* a rank is gone */
    if (status != FSDP_OK)
        run_say(run, FSDP_LINE_WARNING, "a snapshot failed, training continues: %s", fsdp_last_error());
    run->snapshot_soon = status != FSDP_OK && !run->snapshot_failed;
    run->snapshot_failed = status != FSDP_OK;
    return FSDP_OK;
}

static fsdp_status start_snapshot(train_run *run)
{
    const state_notes notes = {
        .loader = run->loader, .run = run->folder.run, .fingerprint = run->fingerprint, .lineage = run->lineage};
    FSDP_TRY(state_settle(run->state));
    run->snapshot_soon = false;
    run->snapshot_step = run->step;
    state_describe(run->state, &notes);
    fsdp_status status = state_snapshot(run->state, run->step);
    state_describe(run->state, &(state_notes){.model = NULL});
    return status == FSDP_OK ? FSDP_OK : judge_snapshot(run, status);
}

/* With N = --snapshot_freq, a snapshot is started every N - N/4 steps and is whole N/4 steps later at the latest:
 * training waits for one that is not. So the newest that is whole is never more than N steps old. */
fsdp_status run_keep_snapshot(train_run *run)
{
    int64_t n = run->settings->snapshot_freq, time = n / 4;
    if (n == 0 || run->no_snapshots || run->step >= run->n_steps)
        return FSDP_OK;
    bool back = run->step < run->snapshot_step; /* to an earlier checkpoint */
    if (back || run->step - run->snapshot_step >= n - time || run->snapshot_soon)
        FSDP_TRY(start_snapshot(run));
    if (!state_is_snapshotting(run->state) || run->step - run->snapshot_step < time)
        return FSDP_OK;
    return judge_snapshot(run, state_finish_snapshot(run->state));
}

/* What was tried may have been loaded on some ranks: only another load, of everything, makes up for it. */
static fsdp_status check_untouched(const train_run *run)
{
    return !run->snapshot_lost ? FSDP_OK
                               : error_set(FSDP_ERR_IO, "the snapshots in memory cannot be loaded, and there is no "
                                                        "checkpoint to go on from: start the job anew");
}

fsdp_status run_resume(train_run *run)
{
    const char *from = run->folder.resume;
    bool found;
    int64_t step;
    FSDP_TRY(resume_from_memory(run, &found));
    if (!from[0] || found)
        return check_untouched(run);
    FSDP_TRY(check_model(run, from));
    run_show_warnings(run, true); /* names those that are skipped */
    bool own = run->folder.goes_on && !run->folder.began_elsewhere;
    fsdp_status status = state_resume_from(run->state, from, own ? run->folder.run : NULL, &found, &step);
    run_show_warnings(run, false);
    FSDP_TRY(status);
    if (!found) {
        FSDP_TRY(check_untouched(run));
        FSDP_TRY(resume_path_judge(from, run->folder.checkpoints, comm_world(run->world->comm)));
        run_say(run, FSDP_LINE_INFO, "no checkpoint in %s yet: starting from scratch", from);
        return FSDP_OK;
    }
    run->step = run->last_saved_step = run->snapshot_step = step;
    run_say(run, FSDP_LINE_INFO, "resumed from %s at step %lld", fsdp_state_path(run->state), (long long)step);
    name_changed_flags(run, state_loaded_extra(run->state));
    say_batch(run);
    run_compare_fingerprint(run, "checkpoint");
    return note_lineage(run);
}

static fsdp_status finish_save(train_run *run);

fsdp_status run_rollback(train_run *run)
{
    int64_t failed = run->step, position = run->position, step;
    bool found;
    FSDP_TRY(finish_save(run));
    FSDP_TRY(state_resume_from(run->state, run->folder.checkpoints, run->folder.run, &found, &step));
    run->position = position; /* the loader is there: the samples that caused it are not read again */
    if (!found)
        return error_set(FSDP_ERR_NUMERIC,
                         "step %lld: not finite, and no checkpoint under %s to go back to; set --checkpoint_freq",
                         (long long)failed, run->folder.checkpoints);
    run->step = step;
    run_say(run, FSDP_LINE_WARNING, "step %lld: not finite; back to %s", (long long)failed,
            fsdp_state_path(run->state));
    return FSDP_OK;
}

/* The path that the run's --tokenizer stands for; NULL: none, or it is not there any more. malloc'd. */
static char *tokenizer_path(const train_run *run)
{
    char *path = NULL;
    return run->settings->tokenizer && hub_find(HUB_MODEL, run->settings->tokenizer, NULL, &path) == FSDP_OK ? path
                                                                                                             : NULL;
}

/* A save has ended; a failure's message is this thread's. A failure is reported, and the step no longer counts as
 * saved, so it is saved again at the end at the latest. Returns FSDP_OK where training goes on, as it does unless the
 * user asked it to stop. */
static fsdp_status judge_save(train_run *run, fsdp_status status)
{
    run->save_status = status;
    if (status == FSDP_OK) {
        snprintf(run->result.checkpoint, sizeof run->result.checkpoint, "%s", fsdp_state_path(run->state));
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
    return state_is_saving(run->state) ? judge_save(run, fsdp_save_wait(run->state)) : FSDP_OK;
}

/* What a save or an export says about the model and the job. */
typedef struct save_notes {
    json_t *model, *flags;
    char *tokenizer;
} save_notes;

static fsdp_status make_notes(train_run *run, save_notes *notes)
{
    *notes = (save_notes){describe_model(run), describe_flags(run), tokenizer_path(run)};
    if (!notes->model || !notes->flags)
        return error_set(FSDP_ERR_MEMORY, "describing a checkpoint: out of host memory");
    const state_notes described = {.loader = run->loader,
                                   .model = notes->model,
                                   .flags = notes->flags,
                                   .tokenizer = notes->tokenizer,
                                   .tokenizer_name = run->settings->tokenizer,
                                   .run = run->folder.run,
                                   .step_samples = run->micro_samples * run->settings->gradient_accumulation_steps,
                                   .fingerprint = run->fingerprint,
                                   .lineage = run->lineage};
    state_describe(run->state, &described);
    return FSDP_OK;
}

static void free_notes(train_run *run, save_notes *notes)
{
    state_describe(run->state, &(state_notes){.model = NULL});
    json_decref(notes->model);
    json_decref(notes->flags);
    free(notes->tokenizer);
}

/* Starts a save, asynchronous or not. A synchronous one has ended when this returns. */
static fsdp_status start_save(train_run *run)
{
    save_notes notes;
    bool background = run->settings->async_checkpoint;
    fsdp_status status = make_notes(run, &notes);
    if (status == FSDP_OK)
        status = background ? fsdp_save_async(run->state, run->step) : fsdp_save(run->state, run->step);
    free_notes(run, &notes);
    run->last_save = clock_seconds();
    run->last_saved_step = run->step;
    return status == FSDP_OK && background ? FSDP_OK : judge_save(run, status);
}

/* An earlier save that failed in the background is reported here and does not keep this one from being made, not even
 * where the failure ends the run: then this is the last chance to. */
static fsdp_status save(train_run *run)
{
    char message[sizeof run->save_message];
    FSDP_TRY(state_settle(run->state)); /* an update that failed is no failed save */
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
        FSDP_TRY(
            comm_all_reduce_i64(comm_world(run->world->comm), "checkpoint time", run->step, FSDP_REDUCE_MAX, &due, 1));
    }
    *out = due != 0;
    return FSDP_OK;
}

/* The last step reached the end of another `n` epochs. */
static bool epochs_ended(const train_run *run, int64_t n)
{
    int64_t n_samples = run->info.n_samples; /* known: a stream's epochs are not saved at */
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

/* What lies in the folder now: adapters that were merged are no tensors of it. */
static void say_exported(train_run *run)
{
    const char *folder = run->settings->export_dir;
    ckpt_source *written;
    char size[UNITS_TEXT];
    int64_t bytes = 0;
    if (run->rank != 0 || source_open(folder, &written) != FSDP_OK)
        return;
    for (int i = 0; i < source_count(written); i++)
        for (int k = 0; k < source_at(written, i)->n_pieces; k++)
            bytes += source_piece_bytes(&source_at(written, i)->pieces[k]);
    run_say(run, FSDP_LINE_INFO, "exported the model to %s: %d tensors, %s in fp32", folder, source_count(written),
            units_bytes(size, bytes));
    source_close(written);
}

static fsdp_status export_model(train_run *run)
{
    save_notes notes;
    fsdp_status status = make_notes(run, &notes);
    if (status == FSDP_OK)
        status = fsdp_export(run->state, run->settings->export_dir);
    free_notes(run, &notes);
    if (status == FSDP_OK)
        say_exported(run);
    return status;
}

static fsdp_status export_adapter(train_run *run)
{
    const fsdp_settings *s = run->settings;
    FSDP_TRY(fsdp_adapter_save(run->model, s->export_adapter, run->hub_model));
    run_say(run, FSDP_LINE_INFO, "wrote the adapter to %s", s->export_adapter);
    return FSDP_OK;
}

fsdp_status run_finish_checkpoints(train_run *run)
{
    if (state_finish_snapshot(run->state) != FSDP_OK)
        run_say(run, FSDP_LINE_WARNING, "the last snapshot failed: %s", fsdp_last_error());
    fsdp_status status = finish_save(run);
    if (run->settings->export_dir && !run->stopping)
        FSDP_TRY(export_model(run));
    if (run->settings->export_adapter && !run->stopping)
        FSDP_TRY(export_adapter(run));
    if (run->save_status == FSDP_OK)
        return status;
    /* Training that went on over failed saves ends without what it was for. */
    status = run->save_status == FSDP_ERR_INPUT ? FSDP_ERR_IO : run->save_status;
    return error_set(status, "training has ended at step %lld, but the last checkpoint was not saved: %s",
                     (long long)run->step, run->save_message);
}
