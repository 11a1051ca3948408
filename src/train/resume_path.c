/* Looks at a path that was to be resumed and is no checkpoint: a mistyped name must not become a new run. */
#include "train/resume_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "ckpt/save/directory.h"
#include "format/weights/model_folder.h"
#include "train/paths.h"

static bool has_file(const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    bool there = path && file_exists(path);
    free(path);
    return there;
}

static bool is_model_folder(const char *path)
{
    return has_file(path, "config.json") || model_folder_has_weights(path);
}

/* Checkpoints in a folder, without what unfinished saves left; those of one step of kind local when `step` is given. */
static int count_checkpoints(const char *folder, const char *step)
{
    ckpt_listing listing;
    int n = 0;
    if (ckpt_directory_list(folder, &listing) != FSDP_OK)
        return 0;
    for (int i = 0; i < listing.n_entries; i++) {
        const ckpt_entry *e = &listing.entries[i];
        bool of_step = !step || (e->rank >= 0 && strncmp(e->name, step, strlen(step)) == 0);
        n += !e->temporary && of_step;
    }
    ckpt_listing_free(&listing);
    return n;
}

static fsdp_status explain_missing(const char *from, const char *own)
{
    char *parent = strdup(from), *slash = parent ? strrchr(parent, '/') : NULL;
    fsdp_status status = FSDP_OK;
    if (slash && slash > parent) {
        *slash = '\0';
        if (slash[1] && count_checkpoints(parent, slash + 1) > 0)
            status = error_set(FSDP_ERR_INPUT,
                               "--resume_from_checkpoint %s: checkpoints of kind local are a folder per rank; name the "
                               "folder that holds them, %s",
                               from, parent);
    }
    free(parent);
    if (status != FSDP_OK)
        return status;
    return error_set(FSDP_ERR_INPUT,
                     "--resume_from_checkpoint %s: there is no such folder; only this run's own checkpoint folder, %s, "
                     "may be missing",
                     from, own);
}

fsdp_status resume_path_judge(const char *from, const char *own)
{
    if (!file_exists(from))
        return paths_are_same(from, own) ? FSDP_OK : explain_missing(from, own);
    if (is_model_folder(from))
        return error_set(FSDP_ERR_INPUT,
                         "--resume_from_checkpoint %s: a model folder has no optimizer state to resume from; "
                         "--init_from starts a new run from its weights",
                         from);
    int n = count_checkpoints(from, NULL);
    if (n > 0)
        return error_set(FSDP_ERR_INPUT,
                         "--resume_from_checkpoint %s: none of the %d checkpoints there is on every rank; resume with "
                         "the ranks that wrote them, or name one step",
                         from, n);
    if (paths_are_same(from, own))
        return FSDP_OK;
    char *inside = file_join(from, "checkpoints");
    bool there = inside && count_checkpoints(inside, NULL) > 0;
    fsdp_status status = error_set(FSDP_ERR_INPUT, "--resume_from_checkpoint %s: no checkpoint there%s%s%s", from,
                                   there ? "; did you mean " : "", there ? inside : "", there ? "?" : "");
    free(inside);
    return status;
}
