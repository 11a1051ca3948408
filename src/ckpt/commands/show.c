/* fsdp_checkpoint_show: what a checkpoint, or a directory of them, holds. */
#include <fsdp/checkpoint.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ckpt/commands/report.h"

enum { MANY = 8 }; /* more entries of an object than a line for people has */

/* ---- A directory of checkpoints ---- */

static json_t *entry_json(ckpt_entry *entry)
{
    ckpt_entry_check(entry);
    json_t *value = json_pack("{s:s, s:I, s:s}", "name", entry->name, "step", (json_int_t)entry->step, "condition",
                              ckpt_condition_name(entry->condition));
    if (entry->condition != CKPT_COMPLETE)
        json_object_set_new(value, "reason", json_string(entry->reason));
    return value;
}

static fsdp_status list_json(const char *path, json_t **out)
{
    ckpt_listing listing;
    char *directory, *run;
    FSDP_TRY(report_directory(path, &directory, &run));
    fsdp_status status = report_list(path, &listing);
    json_t *array = json_array();
    for (int i = 0; status == FSDP_OK && i < listing.n_entries; i++)
        json_array_append_new(array, entry_json(&listing.entries[i]));
    if (status == FSDP_OK)
        ckpt_listing_free(&listing);
    *out = json_pack("{s:s, s:o}", "directory", directory, "checkpoints", array);
    free(run);
    free(directory);
    return status != FSDP_OK || *out ? status : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
}

static void print_list(FILE *out, const json_t *report)
{
    const json_t *entries = json_object_get(report, "checkpoints"), *entry;
    size_t i;
    fprintf(out, "%s: %zu checkpoints, newest first\n", report_string(report, "directory"), json_array_size(entries));
    json_array_foreach((json_t *)(uintptr_t)entries, i, entry)
    {
        fprintf(out, "  %-40s %s", report_string(entry, "name"), report_string(entry, "condition"));
        if (json_object_get(entry, "reason"))
            fprintf(out, " (%s)", report_string(entry, "reason"));
        fputc('\n', out);
    }
}

/* ---- One ---- */

static json_t *tensor_json(const source_tensor *tensor, int64_t *bytes)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->n_dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    for (int i = 0; i < tensor->n_pieces; i++)
        *bytes += source_piece_bytes(&tensor->pieces[i]);
    return json_pack("{s:s, s:s, s:s, s:o, s:i}", "name", tensor->name, "role", ckpt_role_name(tensor->role), "dtype",
                     tensor->n_pieces ? tensor->pieces[0].stored->dtype_name : "F32", "shape", shape, "pieces",
                     tensor->n_pieces);
}

static json_t *files_json(const manifest *m)
{
    json_t *files = json_array();
    for (int i = 0; i < m->n_files; i++)
        json_array_append_new(
            files, json_pack("{s:s, s:I}", "name", m->files[i].name, "bytes", (json_int_t)m->files[i].bytes));
    return files;
}

static json_t *source_json(const ckpt_source *source)
{
    const manifest *m = source_manifest(source);
    json_t *tensors = json_array();
    int64_t bytes = 0, parameters = 0;
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        json_array_append_new(tensors, tensor_json(tensor, &bytes));
        parameters += tensor->role == CKPT_PARAMETER ? tensor->numel : 0;
    }
    json_t *report = json_pack("{s:s, s:s, s:I, s:I}", "path", source_path(source), "kind", source_form(source),
                               "parameters", (json_int_t)parameters, "bytes", (json_int_t)bytes);
    if (m) {
        json_t *head = json_pack("{s:I, s:i, s:s, s:s, s:s, s:i, s:o, s:O}", "step", (json_int_t)m->step, "world_size",
                                 m->world_size, "strategy", m->strategy, "created", m->created, "tokenizer",
                                 m->tokenizer, "version", MANIFEST_VERSION, "files", files_json(m), "extra", m->extra);
        json_object_update(report, head);
        json_decref(head);
        if (m->autotune_bytes > 0)
            json_object_set_new(report, "autotune_bytes", json_integer((json_int_t)m->autotune_bytes));
    }
    json_object_set_new(report, "tensors", tensors);
    return report;
}

static void print_source(FILE *out, const json_t *report)
{
    char size[32];
    const json_t *value, *extra = json_object_get(report, "extra");
    const char *key;
    size_t i;
    fprintf(out, "%s\n  kind         %s\n", report_string(report, "path"), report_string(report, "kind"));
    if (json_object_get(report, "step")) {
        fprintf(out, "  step         %" PRId64 "\n  world size   %" PRId64 "\n", report_int(report, "step"),
                report_int(report, "world_size"));
        fprintf(out, "  strategy     %s\n  created      %s\n", report_string(report, "strategy"),
                report_string(report, "created"));
    }
    fprintf(out, "  parameters   %" PRId64 "\n", report_int(report, "parameters"));
    fprintf(out, "  tensors      %zu, %s\n", json_array_size(json_object_get(report, "tensors")),
            report_size(report_int(report, "bytes"), size, sizeof size));
    json_array_foreach(json_object_get(report, "files"), i, value)
        fprintf(out, "  file         %s, %s\n", report_string(value, "name"),
                report_size(report_int(value, "bytes"), size, sizeof size));
    if (json_object_get(report, "autotune_bytes"))
        fprintf(out, "  autotune     %s\n", report_size(report_int(report, "autotune_bytes"), size, sizeof size));
    json_object_foreach((json_t *)(uintptr_t)extra, key, value)
    {
        fprintf(out, "  %-12s ", key);
        if (json_object_size(value) > MANY)
            fprintf(out, "%zu, see --json", json_object_size(value));
        else
            json_dumpf(value, out, JSON_ENCODE_ANY | JSON_COMPACT);
        fputc('\n', out);
    }
    json_array_foreach(json_object_get(report, "tensors"), i, value)
    {
        fprintf(out, "  %-10s %-5s ", report_string(value, "role"), report_string(value, "dtype"));
        json_dumpf(json_object_get(value, "shape"), out, 0);
        fprintf(out, " %s\n", report_string(value, "name"));
    }
}

fsdp_status fsdp_checkpoint_show(const char *path, bool json, char **text)
{
    ckpt_source *source;
    json_t *report = NULL;
    *text = NULL;
    if (report_is_directory_of_checkpoints(path)) {
        fsdp_status status = list_json(path, &report);
        if (status == FSDP_OK)
            return report_text(report, json, print_list, text);
        json_decref(report);
        return status;
    }
    FSDP_TRY(source_open(path, &source));
    report = source_json(source);
    source_close(source);
    return report_text(report, json, print_source, text);
}
