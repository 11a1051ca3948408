/* Takes the folder of a run for this job: a lock that dies with the process, run.json, and `latest`. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <dirent.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "ckpt/save/directory.h"
#include "ckpt/save/save_task.h"
#include "settings/settings_table.h"
#include "train/paths.h"
#include "train/run.h"

#define LOCK_NAME ".lock"

static void now_text(char out[32])
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

/* ---- The lock ---- */

static fsdp_status say_taken(const char *folder, int fd)
{
    char who[256] = "";
    ssize_t n = pread(fd, who, sizeof who - 1, 0);
    who[n > 0 ? (size_t)n : 0] = '\0';
    who[strcspn(who, "\n")] = '\0';
    return error_set(FSDP_ERR_INPUT, "%s: another job trains in this folder (%s): wait for its end, or choose another",
                     folder, who[0] ? who : "it does not say who");
}

/* File systems without locks have none; the refusals that look at the folder's contents remain. */
static fsdp_status lock_folder(const char *folder, int *out)
{
    char host[64] = "", began[32], text[256];
    char *path = file_join(folder, LOCK_NAME);
    if (!path)
        return error_set(FSDP_ERR_MEMORY, "%s: out of host memory", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    free(path);
    if (fd < 0)
        return error_set_errno(FSDP_ERR_INPUT, "%s: cannot be locked for this run", folder);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        fsdp_status status = say_taken(folder, fd);
        close(fd);
        return status;
    }
    gethostname(host, sizeof host - 1);
    now_text(began);
    int n = snprintf(text, sizeof text, "process %d on %s since %s\n", (int)getpid(), host, began);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n) {
        close(fd);
        return error_set_errno(FSDP_ERR_IO, "%s: cannot write %s", folder, LOCK_NAME);
    }
    *out = fd;
    return FSDP_OK;
}

fsdp_status run_folder_check_free(const char *folder)
{
    char *path = file_join(folder, LOCK_NAME);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    free(path);
    if (fd < 0)
        return FSDP_OK;
    bool taken = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    fsdp_status status = taken ? say_taken(folder, fd) : FSDP_OK;
    close(fd);
    return status;
}

static fsdp_status lock_folders(train_run *run)
{
    run_folder *f = &run->folder;
    FSDP_TRY(file_make_directories(f->path));
    FSDP_TRY(lock_folder(f->path, &run->folder_locks[0]));
    if (!run->settings->checkpoint_dir || paths_are_same(f->path, f->checkpoints))
        return FSDP_OK;
    FSDP_TRY(file_make_directories(f->checkpoints));
    return lock_folder(f->checkpoints, &run->folder_locks[1]);
}

/* ---- --overwrite ---- */

static bool is_rank_log(const char *name)
{
    size_t n = strlen(name);
    return strncmp(name, "rank-", 5) == 0 && n > 9 && strcmp(name + n - 4, ".log") == 0 &&
           strspn(name + 5, "0123456789") == n - 9;
}

static fsdp_status remove_file(const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    if (!path)
        return error_set(FSDP_ERR_MEMORY, "%s: out of host memory", folder);
    int failed = unlink(path) != 0 && errno != ENOENT;
    fsdp_status status = failed ? error_set_errno(FSDP_ERR_IO, "--overwrite: %s cannot be removed", path) : FSDP_OK;
    free(path);
    return status;
}

/* What a run leaves under names of ours; everything else in the folder stays. */
static fsdp_status remove_former_run(const run_folder *f)
{
    static const char *const files[] = {"metrics.jsonl", "validation.jsonl", "settings.json", "ranks.json",
                                        "report.html",   "fp8_check.jsonl",  RUN_FILE};
    ckpt_listing listing;
    FSDP_TRY(ckpt_directory_list(f->checkpoints, &listing));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < listing.n_entries && status == FSDP_OK; i++)
        if (!listing.entries[i].unfinished)
            status = file_remove_tree(listing.entries[i].path);
    ckpt_listing_free(&listing);
    for (size_t i = 0; i < sizeof files / sizeof *files && status == FSDP_OK; i++)
        status = remove_file(f->path, files[i]);
    DIR *folder = status == FSDP_OK ? opendir(f->path) : NULL;
    for (struct dirent *item; folder && status == FSDP_OK && (item = readdir(folder));)
        if (is_rank_log(item->d_name))
            status = remove_file(f->path, item->d_name);
    if (folder)
        closedir(folder);
    return status;
}

/* ---- run.json ---- */

static json_t *describe_session(const train_run *run)
{
    char host[64] = "", began[32];
    gethostname(host, sizeof host - 1);
    now_text(began);
    return json_pack("{s:s, s:I, s:i, s:s, s:i, s:s}", "began", began, "step", (json_int_t)run->step, "ranks",
                     run->n_ranks, "host", host, "process", (int)getpid(), "resumed_from",
                     run->step > 0 ? fsdp_state_path(run->state) : "");
}

/* The sessions of a run that goes on, and this one. */
static json_t *list_sessions(const train_run *run, const char *path)
{
    json_t *before = run->folder.goes_on ? json_load_file(path, 0, NULL) : NULL;
    json_t *sessions = json_object_get(before, "sessions"), *all = json_is_array(sessions) ? sessions : NULL;
    all = all ? json_incref(all) : json_array();
    json_decref(before);
    if (all && json_array_append_new(all, describe_session(run)) == 0)
        return all;
    json_decref(all);
    return NULL;
}

/* Where each setting that is not a default comes from. */
static json_t *list_origins(const fsdp_settings *s)
{
    static const char *const words[] = {"default", "other settings", "the model",   "size and memory",
                                        "preset",  "file",           "command line"};
    json_t *origins = json_object();
    for (int i = 0; settings_table[i].name; i++) {
        int origin = s->state.origin[i];
        if (origin > FSDP_FROM_DEFAULT && origin <= FSDP_FROM_COMMAND)
            json_object_set_new(origins, settings_table[i].name, json_string(words[origin]));
    }
    return origins;
}

/* Later rounds of a job leave what its first has noted. */
static int64_t first_commit(const train_run *run)
{
    int64_t commit = run->world->job.round > 0 ? run_folder_first_commit(run->folder.path) : 0;
    if (commit > 0)
        return commit;
    return ckpt_directory_next_commit(run->folder.checkpoints, &commit) == FSDP_OK ? commit : 0;
}

static fsdp_status write_run_file(const train_run *run)
{
    const run_folder *f = &run->folder;
    char *path = file_join(f->path, RUN_FILE), *text = NULL, absolute[PATH_MAX];
    json_t *sessions = path ? list_sessions(run, path) : NULL;
    if (!realpath(f->checkpoints, absolute))
        snprintf(absolute, sizeof absolute, "%s", f->checkpoints);
    const char *apart = run->settings->checkpoint_dir ? absolute : "";
    json_t *all = sessions ? json_pack("{s:s, s:s, s:s, s:s, s:I, s:o}", "format", "fsdp-run", "run", f->run, "job",
                                       run->world->job.rendezvous_id, "checkpoints", apart, "first_commit",
                                       (json_int_t)first_commit(run), "sessions", sessions)
                           : NULL;
    if (all)
        json_object_set_new(all, "origins", list_origins(run->settings));
    if (all && run->lineage)
        json_object_set(all, "lineage", run->lineage);
    text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    fsdp_status status = text ? file_write_atomic(path, text, strlen(text))
                              : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", f->path);
    free(text);
    json_decref(all);
    free(path);
    return status;
}

void run_folder_end(const train_run *run, const char *how, const char *reason)
{
    char ended[32], *path = file_join(run->folder.path, RUN_FILE);
    json_t *all = path ? json_load_file(path, 0, NULL) : NULL, *sessions = json_object_get(all, "sessions");
    json_t *last = json_array_get(sessions, json_array_size(sessions) - 1);
    now_text(ended);
    json_t *end = json_pack("{s:s, s:s, s:I, s:s}", "time", ended, "how", how, "last_step", (json_int_t)run->step,
                            "reason", reason);
    bool noted = end && json_object_set_new(last, "ended", end) == 0;
    if (!noted || json_write_file(path, all) != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "%s does not say how the run ended: %s cannot be written", run->folder.path,
                  RUN_FILE);
    json_decref(all);
    free(path);
}

/* ---- latest ---- */

/* A link is put in the place of an older link; anything else that has the name is the user's. */
static void point_latest(train_run *run)
{
    const char *link = RUN_FOLDERS "/latest", *name = strrchr(run->folder.path, '/') + 1;
    char temporary[64];
    struct stat info;
    if (lstat(link, &info) == 0 && !S_ISLNK(info.st_mode)) {
        run_say(run, FSDP_LINE_INFO, "%s is no link, so it is left alone: this run is in %s", link, run->folder.path);
        return;
    }
    snprintf(temporary, sizeof temporary, "%s.tmp.%d", link, (int)getpid());
    if (symlink(name, temporary) != 0 || rename(temporary, link) != 0) {
        log_write(FSDP_LOG_WARNING, "%s cannot point at %s: %s", link, name, strerror(errno));
        (void)unlink(temporary);
    }
}

/* ---- Both ends ---- */

static fsdp_status claim(train_run *run)
{
    const run_folder *f = &run->folder;
    char what[128];
    FSDP_TRY(lock_folders(run));
    if (run->settings->overwrite && !f->goes_on)
        FSDP_TRY(remove_former_run(f));
    else if (!f->goes_on && run_folder_holds_run(f->path, f->checkpoints, what, sizeof what))
        return error_set(FSDP_ERR_INPUT, "%s: another job has trained here meanwhile (%s): choose another folder",
                         f->path, what);
    FSDP_TRY(write_run_file(run));
    if (f->named)
        point_latest(run);
    return FSDP_OK;
}

fsdp_status run_folder_claim(train_run *run)
{
    fsdp_status status = run->rank == 0 ? claim(run) : FSDP_OK;
    return ckpt_agree(comm_world(run->world->comm), "run folder", status, fsdp_last_error());
}

void run_folder_leave(train_run *run)
{
    for (int i = 0; i < 2; i++)
        if (run->folder_locks[i] >= 0)
            close(run->folder_locks[i]);
}
