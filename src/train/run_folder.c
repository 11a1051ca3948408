/* Decides which folder a run has and what it resumes from, without writing anything. What a path means that holds no
 * checkpoint is resume_path.c's. */
#include "train/run_folder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "ckpt/save/directory.h"
#include "ckpt/save/save_task.h"
#include "settings/settings_table.h"
#include "train/paths.h"
#include "train/run.h"

static fsdp_status too_long(const char *path)
{
    return error_set(FSDP_ERR_INPUT, "%s: the path is too long", path);
}

static fsdp_status set_path(char out[PATH_MAX], const char *folder, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s%s%s", folder, name ? "/" : "", name ? name : "");
    return n < PATH_MAX ? FSDP_OK : too_long(folder);
}

/* ---- What is there ---- */

static bool has(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_MAX && file_exists(path);
}

static int count_checkpoints(const char *folder, int64_t *highest)
{
    ckpt_listing listing;
    int n = 0;
    if (ckpt_directory_list(folder, &listing) != FSDP_OK)
        return 0;
    for (int i = 0; i < listing.n_entries; i++) {
        const ckpt_entry *entry = &listing.entries[i];
        if (!entry->temporary && file_is_directory(entry->path) && n++ == 0)
            *highest = entry->step;
    }
    ckpt_listing_free(&listing);
    return n;
}

bool run_folder_holds_run(const char *path, const char *checkpoints, char *what, size_t bytes)
{
    char metrics[PATH_MAX];
    int64_t highest = 0;
    struct stat info;
    int n = count_checkpoints(checkpoints, &highest);
    bool steps = snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", path) < PATH_MAX && stat(metrics, &info) == 0 &&
                 info.st_size > 0;
    if (n > 0)
        snprintf(what, bytes, "%d checkpoint%s, up to step %" PRId64, n, n == 1 ? "" : "s", highest);
    else
        snprintf(what, bytes, "%s", "metrics.jsonl");
    return n > 0 || steps;
}

/* A text of the folder's run.json; "" when there is none. */
static void read_run_file(const char *folder, const char *key, char *out, size_t bytes)
{
    char path[PATH_MAX];
    out[0] = '\0';
    if (snprintf(path, sizeof path, "%s/%s", folder, RUN_FILE) >= PATH_MAX || !file_exists(path))
        return;
    json_t *root = json_load_file(path, 0, NULL);
    const char *text = json_string_value(json_object_get(root, key));
    if (text && strlen(text) < bytes)
        strcpy(out, text);
    json_decref(root);
}

int64_t run_folder_first_commit(const char *folder)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, RUN_FILE) >= PATH_MAX || !file_exists(path))
        return 0;
    json_t *root = json_load_file(path, 0, NULL);
    int64_t commit = json_integer_value(json_object_get(root, "first_commit"));
    json_decref(root);
    return commit;
}

/* A link may point elsewhere tomorrow, and `latest` will: a run stays in the folder that it leads to now. */
static fsdp_status set_folder(char out[PATH_MAX], const char *path)
{
    struct stat info;
    bool link = lstat(path, &info) == 0 && S_ISLNK(info.st_mode) && file_is_directory(path);
    if (!link)
        return set_path(out, path, NULL);
    return realpath(path, out) ? FSDP_OK : error_set_errno(FSDP_ERR_INPUT, "%s: where does this link lead?", path);
}

/* The folder of the run that `path` is, or lies in: RUN, RUN/checkpoints or RUN/checkpoints/step-N. */
static bool find_run_of(const char *path, char out[PATH_MAX])
{
    if (!realpath(path, out))
        return false;
    for (int up = 0; up < 3; up++) {
        if (has(out, RUN_FILE)) /* as the user wrote it, where that is the folder itself */
            return up > 0 || set_folder(out, path) == FSDP_OK;
        char *slash = strrchr(out, '/');
        if (!slash || slash == out)
            return false;
        *slash = '\0';
    }
    return false;
}

/* ---- Names ---- */

static fsdp_status draw_name(char out[40])
{
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return error_set_errno(FSDP_ERR_IO, "no random numbers for the name of a run");
    snprintf(out, 40, "%016" PRIx64, number);
    return FSDP_OK;
}

/* "fsdp_runs/20261115-2344-tiny-8307": the last digits are the run's own, so that two runs of one minute do not meet,
 * whatever the clock does. It is made when everything else is ready. */
static fsdp_status name_folder(const fsdp_settings *s, run_folder *f)
{
    char date[32];
    time_t now = time(NULL);
    struct tm local;
    bool preset = s->preset != FSDP_PRESET_NONE;
    char *model = fsdp_flags_value(fsdp_flags_find(settings_table, preset ? "preset" : "model_type"), s);
    if (!model)
        return error_set(FSDP_ERR_MEMORY, "naming a run's folder: out of host memory");
    strftime(date, sizeof date, "%Y%m%d-%H%M", localtime_r(&now, &local));
    snprintf(f->path, sizeof f->path, "%s/%s-%.64s-%.4s", RUN_FOLDERS, date, model, f->run);
    f->named = true;
    free(model);
    return FSDP_OK;
}

/* ---- The decision ---- */

static bool is_automatic(const fsdp_settings *s)
{
    return s->resume_from_checkpoint && strcmp(s->resume_from_checkpoint, "auto") == 0;
}

/* The newest folder of ours, where a former round of this job made it. */
static bool find_former_round(const train_run *run, char out[PATH_MAX])
{
    char its[128];
    const char *mine = run->world->job.rendezvous_id;
    read_run_file(RUN_FOLDERS "/latest", "job", its, sizeof its);
    return mine[0] && strcmp(its, mine) == 0 && realpath(RUN_FOLDERS "/latest", out);
}

static fsdp_status choose_path(const train_run *run, run_folder *f)
{
    const fsdp_settings *s = run->settings;
    const char *from = s->resume_from_checkpoint;
    if (s->output_dir)
        return set_folder(f->path, s->output_dir);
    if (from && !is_automatic(s) && find_run_of(from, f->path))
        return FSDP_OK;
    if (run->world->job.round > 0 && find_former_round(run, f->path))
        return FSDP_OK;
    if (is_automatic(s) && !s->checkpoint_dir)
        return error_set(FSDP_ERR_INPUT,
                         "--resume auto needs --output_dir: a folder that has the same name when the job starts again");
    return name_folder(s, f);
}

static fsdp_status choose_checkpoints(const fsdp_settings *s, run_folder *f)
{
    if (s->checkpoint_dir)
        return set_path(f->checkpoints, s->checkpoint_dir, NULL);
    read_run_file(f->path, "checkpoints", f->checkpoints, sizeof f->checkpoints);
    bool elsewhere = f->checkpoints[0] && !s->output_dir && file_exists(f->checkpoints);
    return elsewhere ? FSDP_OK : set_path(f->checkpoints, f->path, "checkpoints");
}

/* A run's folder stands for its checkpoints. */
static fsdp_status choose_source(const fsdp_settings *s, run_folder *f)
{
    const char *from = s->resume_from_checkpoint;
    int64_t step;
    if (is_automatic(s) || (!from && f->restarted))
        return set_path(f->resume, f->checkpoints, NULL);
    if (!from)
        return FSDP_OK;
    bool is_run = count_checkpoints(from, &step) == 0 && (has(from, RUN_FILE) || has(from, "checkpoints"));
    char elsewhere[PATH_MAX] = "";
    if (is_run)
        read_run_file(from, "checkpoints", elsewhere, sizeof elsewhere);
    if (is_run && elsewhere[0] && file_exists(elsewhere))
        return set_path(f->resume, elsewhere, NULL);
    return set_path(f->resume, from, is_run ? "checkpoints" : NULL);
}

/* The source is where this run saves, or one checkpoint in it. */
static bool is_own(const run_folder *f)
{
    char parent[PATH_MAX + 4];
    if (!f->resume[0] || paths_are_same(f->resume, f->checkpoints))
        return f->resume[0] != '\0';
    snprintf(parent, sizeof parent, "%s/..", f->resume);
    return file_exists(f->resume) && paths_are_same(parent, f->checkpoints);
}

/* An earlier round of this job made what lies in the folder: it would have been refused there if it were another's.
 * With
 * --overwrite it may be another's that this job has not come to remove yet; only a name that others do not have tells.
 */
static bool is_former_round(const train_run *run, const run_folder *f)
{
    char its[128], what[128];
    const char *mine = run->world->job.rendezvous_id;
    if (run->world->job.round == 0 || !run_folder_holds_run(f->path, f->checkpoints, what, sizeof what))
        return false;
    read_run_file(f->path, "job", its, sizeof its);
    return !run->settings->overwrite || (mine[0] && strcmp(mine, "none") != 0 && strcmp(its, mine) == 0);
}

/* The job has committed a checkpoint in this folder since its first round began. */
static bool has_saved(const run_folder *f)
{
    int64_t next, first = run_folder_first_commit(f->path);
    return first > 0 && ckpt_directory_next_commit(f->checkpoints, &next) == FSDP_OK && next > first;
}

/* What was said about the beginning (--resume_from_checkpoint of another run or of an earlier step, --overwrite) holds
 * for the first round. */
static fsdp_status go_on_after_restart(const train_run *run, run_folder *f)
{
    int64_t step;
    if (!is_former_round(run, f))
        return FSDP_OK;
    if (f->went_back && has_saved(f)) {
        f->went_back = false;
        return set_path(f->resume, f->checkpoints, NULL);
    }
    if (f->goes_on)
        return FSDP_OK;
    f->goes_on = true;
    if (count_checkpoints(f->checkpoints, &step) > 0)
        return set_path(f->resume, f->checkpoints, NULL);
    f->began_elsewhere = f->resume[0] != '\0';
    return FSDP_OK;
}

static fsdp_status refuse_other_run(const train_run *run, const run_folder *f)
{
    char what[128];
    const fsdp_settings *s = run->settings;
    if (f->goes_on || s->overwrite || s->dry_run || !run_folder_holds_run(f->path, f->checkpoints, what, sizeof what))
        return FSDP_OK;
    bool apart = s->checkpoint_dir && !run_folder_holds_run(f->path, f->path, (char[128]){0}, 128);
    return error_set(FSDP_ERR_INPUT,
                     "--%s=%s holds another run (%s): go on with it (--resume auto), replace it (--overwrite), or "
                     "choose another name",
                     apart ? "checkpoint_dir" : "output_dir", apart ? f->checkpoints : f->path, what);
}

/* The run in the folder keeps the name that it has. */
static void take_name(run_folder *f)
{
    char before[sizeof f->run];
    read_run_file(f->path, "run", before, sizeof before);
    f->known = before[0] != '\0';
    if (f->known)
        strcpy(f->run, before);
}

static fsdp_status decide(const train_run *run, run_folder *f)
{
    const fsdp_settings *s = run->settings;
    f->restarted = run->world->job.round > 0 && !s->resume_from_checkpoint && !s->overwrite;
    FSDP_TRY(draw_name(f->run));
    FSDP_TRY(choose_path(run, f));
    FSDP_TRY(choose_checkpoints(s, f));
    FSDP_TRY(choose_source(s, f));
    f->goes_on = is_own(f);
    f->went_back = f->goes_on && !paths_are_same(f->resume, f->checkpoints);
    FSDP_TRY(go_on_after_restart(run, f));
    if (f->goes_on)
        take_name(f);
    if (!s->dry_run) { /* reading much first, only to be refused at the end, would be a pity */
        FSDP_TRY(run_folder_check_free(f->path));
        FSDP_TRY(run_folder_check_free(f->checkpoints));
    }
    return refuse_other_run(run, f);
}

fsdp_status run_folder_choose(train_run *run)
{
    size_t n = (size_t)run->n_ranks;
    comm_group *world = comm_world(run->world->comm);
    run_folder *all = malloc(n * sizeof *all);
    size_t *bytes = malloc(n * sizeof *bytes);
    memset(&run->folder, 0, sizeof run->folder);
    fsdp_status status = all && bytes ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "opening a job: out of host memory");
    if (status == FSDP_OK && run->rank == 0)
        status = decide(run, &run->folder);
    status = ckpt_agree(world, "run folder", status, fsdp_last_error());
    if (status == FSDP_OK && n > 1)
        status = comm_exchange(world, "run folder", &run->folder, sizeof run->folder, sizeof run->folder, all, bytes);
    if (status == FSDP_OK && run->rank != 0)
        run->folder = all[0];
    free(bytes);
    free(all);
    run->used.output_dir = run->folder.path;
    return status;
}
