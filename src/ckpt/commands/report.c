/* Shared by show, verify, diff, export, import, reshard and prune. */
#include "ckpt/commands/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text/printable.h"
#include "format/weights/model_folder.h"
#include "format/torch/dcp_folder.h"

static bool has_file(const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    bool there = path && file_exists(path);
    free(path);
    return there;
}

bool report_is_directory_of_checkpoints(const char *path)
{
    return file_is_directory(path) && !has_file(path, MANIFEST_NAME) && !model_folder_has_weights(path) &&
           !has_file(path, "config.json") && !dcp_folder_is(path);
}

/* Where the run of this file saves, and what it calls itself, if other runs may save there, too. NULL: in its own
 * folder.
 */
static fsdp_status read_apart(const char *file, char **out, char **name)
{
    json_t *run = file_exists(file) ? json_load_file(file, 0, NULL) : NULL;
    const char *apart = json_string_value(json_object_get(run, "checkpoints")),
               *called = json_string_value(json_object_get(run, "run"));
    fsdp_status status = FSDP_OK;
    if (apart && *apart && (!called || !*called))
        status =
            error_set(FSDP_ERR_INPUT, "%s: it does not say which of the checkpoints in %s are its own", file, apart);
    else if (apart && *apart && (!(*out = strdup(apart)) || !(*name = strdup(called))))
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", file);
    json_decref(run);
    return status;
}

/* The checkpoints of a run: where its run.json says, or beside it. */
static fsdp_status find_of_run(const char *path, char **out, char **name)
{
    char *inside = file_join(path, "checkpoints"), *file = file_join(path, "run.json");
    fsdp_status status =
        inside && file ? read_apart(file, out, name) : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    bool is_inside = status == FSDP_OK && file_is_directory(inside);
    if (status == FSDP_OK && *out && !file_is_directory(*out) && !is_inside)
        status = error_set(FSDP_ERR_INPUT, "%s: its checkpoints were in %s, which is not there any more", path, *out);
    if (status == FSDP_OK && is_inside && (!*out || !file_is_directory(*out))) {
        free(*out);
        free(*name);
        *out = inside;
        *name = inside = NULL;
    }
    free(file);
    free(inside);
    return status;
}

fsdp_status report_directory(const char *path, char **out, char **run)
{
    ckpt_listing listing;
    *out = *run = NULL;
    FSDP_TRY(ckpt_directory_list(path, &listing));
    fsdp_status status = listing.n_entries == 0 ? find_of_run(path, out, run) : FSDP_OK;
    ckpt_listing_free(&listing);
    if (status == FSDP_OK && !*out && !(*out = strdup(path)))
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    if (status != FSDP_OK) {
        free(*out);
        free(*run);
        *out = *run = NULL;
    }
    return status;
}

/* Leaves out what other runs wrote. Who wrote a damaged one may not be known. */
static void keep_own(ckpt_listing *listing, const char *run)
{
    int kept = 0;
    for (int i = 0; i < listing->n_entries; i++) {
        ckpt_entry entry = listing->entries[i];
        ckpt_entry_check(&entry);
        if (entry.run[0] && strcmp(entry.run, run) != 0)
            free(entry.path);
        else
            listing->entries[kept++] = entry;
    }
    listing->n_entries = kept;
}

fsdp_status report_list(const char *path, ckpt_listing *listing)
{
    char *directory, *run;
    FSDP_TRY(report_directory(path, &directory, &run));
    fsdp_status status = ckpt_directory_list(directory, listing);
    if (status == FSDP_OK && run)
        keep_own(listing, run);
    free(run);
    free(directory);
    return status;
}

/* Those of later steps than the one that is taken instead. */
static void tell_damaged(const ckpt_listing *listing, int64_t step)
{
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *entry = &listing->entries[i];
        if (entry->condition == CKPT_CORRUPT && entry->step > step)
            log_write(FSDP_LOG_WARNING, "checkpoint %s is damaged and was passed over: %s", entry->path, entry->reason);
    }
}

fsdp_status report_resolve(const char *path, char **out)
{
    ckpt_listing listing;
    *out = NULL;
    if (!file_exists(path))
        return error_set(FSDP_ERR_INPUT, "%s: there is no such checkpoint", path);
    if (!report_is_directory_of_checkpoints(path)) {
        *out = strdup(path);
        return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    }
    FSDP_TRY(report_list(path, &listing));
    ckpt_listing_by_commit(&listing, NULL);
    fsdp_status status = FSDP_ERR_INPUT;
    for (int i = 0; i < listing.n_entries && status == FSDP_ERR_INPUT; i++) {
        if (listing.entries[i].condition != CKPT_COMPLETE)
            continue;
        tell_damaged(&listing, listing.entries[i].step);
        *out = strdup(listing.entries[i].path);
        status = *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    }
    if (status == FSDP_ERR_INPUT) /* looking inside set other messages */
        error_set(status,
                  "%s: neither a checkpoint, nor a model folder, nor a directory with a complete checkpoint (%d "
                  "unfinished or damaged ones)",
                  path, listing.n_entries);
    ckpt_listing_free(&listing);
    return status;
}

/* A copy whose strings and keys a terminal can be shown. NULL: out of memory. */
static json_t *printable_json(const json_t *value)
{
    json_t *copy = json_is_object(value) ? json_object() : json_is_array(value) ? json_array() : NULL, *child;
    const char *key;
    size_t i;
    char *text;
    if (json_is_string(value)) {
        text = printable_copy(json_string_value(value), false);
        copy = text ? json_string(text) : NULL;
        free(text);
        return copy;
    }
    if (!copy)
        return json_incref((json_t *)(uintptr_t)value);
    json_array_foreach((json_t *)(uintptr_t)value, i, child) json_array_append_new(copy, printable_json(child));
    json_object_foreach((json_t *)(uintptr_t)value, key, child)
    {
        text = printable_copy(key, false);
        if (text)
            json_object_set_new(copy, text, printable_json(child));
        free(text);
    }
    return copy;
}

fsdp_status report_text(json_t *report, bool json, report_printer print, char **text)
{
    *text = NULL;
    size_t bytes;
    json_t *shown = report && !json ? printable_json(report) : json_incref(report);
    json_decref(report);
    report = shown;
    FILE *out = report ? open_memstream(text, &bytes) : NULL;
    if (out && json) {
        json_dumpf(report, out, JSON_INDENT(2) | JSON_REAL_PRECISION(17) | JSON_ENSURE_ASCII);
        fputc('\n', out);
    } else if (out) {
        print(out, report);
    }
    bool written = out && fclose(out) == 0;
    json_decref(report);
    if (written)
        return FSDP_OK;
    free(*text);
    *text = NULL;
    return error_set(FSDP_ERR_MEMORY, "out of memory for a report");
}

const char *report_string(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

int64_t report_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

const char *report_size(int64_t bytes, char *text, size_t room)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(text, room, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}
