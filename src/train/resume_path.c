/* Looks at a path that was to be resumed and is no checkpoint: a mistyped name must not become a new run. */
#include "train/resume_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "ckpt/commands/report.h"
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

/* Of kind local: the newest step of which this rank has its part, or -1. */
static int64_t newest_part(const ckpt_listing *listing, int rank)
{
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *e = &listing->entries[i];
        if (!e->temporary && e->rank == rank)
            return e->step;
    }
    return -1;
}

/* Whether this rank has its part of the step, named or as it wrote it, and none of another step. */
static bool has_only(const ckpt_listing *listing, int rank, int64_t step, bool *named)
{
    bool has = false;
    *named = false;
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *e = &listing->entries[i];
        if (e->rank == rank && !e->temporary && e->step != step)
            return false;
        *named |= e->rank == rank && !e->temporary;
        has |= e->rank == rank && e->step == step && (!e->temporary || e->unfinished);
    }
    return has;
}

/* Ranks give their parts of a local save their names one by one. Where that was cut off, some have theirs under its
 * name, and the others as they wrote it. If it was the first save, there is nothing before it. Parts that all have
 * their name are of different saves: no cut-off save leaves them. */
static fsdp_status find_cut_off(const char *folder, comm_group *world, bool *cut_off)
{
    ckpt_listing listing = {.n_entries = 0};
    int rank = comm_group_rank(world);
    if (ckpt_directory_list(folder, &listing) != FSDP_OK)
        listing.n_entries = 0;
    int64_t newest = newest_part(&listing, rank);
    fsdp_status status = comm_all_reduce_i64(world, "a save that was cut off", 0, FSDP_REDUCE_MAX, &newest, 1);
    bool named = false, alike = newest >= 0 && has_only(&listing, rank, newest, &named);
    int64_t least[] = {alike, alike && named};
    if (status == FSDP_OK)
        status = comm_all_reduce_i64(world, "a save that was cut off", 0, FSDP_REDUCE_MIN, least, 2);
    ckpt_listing_free(&listing);
    *cut_off = least[0] && !least[1];
    return status;
}

fsdp_status resume_path_judge(const char *from, const char *own, comm_group *world)
{
    bool cut_off;
    FSDP_TRY(find_cut_off(from, world, &cut_off));
    if (cut_off && paths_are_same(from, own))
        return FSDP_OK;
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
    return error_set(FSDP_ERR_INPUT, "--resume_from_checkpoint %s: no checkpoint there", from);
}

/* ---- Another model ---- */

/* Flags that tensors have their shapes from. */
static const char *const shapes[] = {
    "model_type",        "vocab_size",          "hidden_width",    "num_layers",          "num_decoder_layers",
    "num_heads",         "num_key_value_heads", "head_dim",        "attention_bias",      "mlp_bias",
    "intermediate_size", "feed_forward",        "image_channels",  "image_height",        "image_width",
    "conv1_channels",    "conv2_channels",      "branch_channels", "tie_word_embeddings", "num_classes",
};

static void print_value(FILE *out, const json_t *value)
{
    if (json_is_string(value))
        fputs(json_string_value(value), out);
    else
        json_dumpf(value, out, JSON_ENCODE_ANY);
}

static fsdp_status compare_shapes(const char *path, const json_t *now, const json_t *before)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return error_set(FSDP_ERR_MEMORY, "%s: out of host memory", path);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const json_t *old = json_object_get(before, shapes[i]), *new = json_object_get(now, shapes[i]);
        if (!old || !new || json_equal(old, new))
            continue;
        fprintf(out, "%s--%s is ", ftell(out) > 0 ? ", " : "", shapes[i]);
        print_value(out, new);
        fputs(" and was ", out);
        print_value(out, old);
    }
    fclose(out);
    fsdp_status status = FSDP_OK;
    if (bytes > 0)
        status = error_set(FSDP_ERR_INPUT, "%s is a checkpoint of another model: %s", path, text);
    free(text);
    return status;
}

/* Adam and AdamW keep the same moments; the state of other optimizers is each of its own kind. */
static bool has_state_of(const char *optimizer, const char *other)
{
    return strcmp(optimizer, other) == 0 || (strncmp(optimizer, "adam", 4) == 0 && strncmp(other, "adam", 4) == 0);
}

static fsdp_status compare_optimizers(const char *path, const json_t *now, const json_t *before)
{
    const char *new = json_string_value(json_object_get(now, "optimizer"));
    const char *old = json_string_value(json_object_get(before, "optimizer"));
    if (!new || !old || has_state_of(new, old))
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "%s holds the state of --optimizer %s, which %s cannot go on from; --init_from starts a new run "
                     "from its weights",
                     path, old, new);
}

fsdp_status resume_path_check_model(const char *from, const json_t *flags)
{
    char *path = NULL;
    manifest *m = NULL;
    if (report_resolve(from, &path) != FSDP_OK)
        return FSDP_OK; /* whether that is an error is not decided here */
    fsdp_status status = FSDP_OK;
    if (manifest_read(path, &m) == FSDP_OK) {
        const json_t *before = json_object_get(m->extra, "flags");
        status = compare_shapes(path, flags, before);
        if (status == FSDP_OK)
            status = compare_optimizers(path, flags, before);
    }
    manifest_free(m);
    free(path);
    return status;
}
