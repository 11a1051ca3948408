/* fsdp_checkpoint_verify: reads every byte and says what is not as it was written. */
#include <fsdp/checkpoint.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "ckpt/save/folder_files.h"
#include "ckpt/load/pieces.h"
#include "ckpt/commands/report.h"

static void verify_tensors(const ckpt_source *source, json_t *report)
{
    piece_list list = {0};
    int64_t bytes = 0, n_checksums = 0;
    json_t *problems = json_object_get(report, "problems");
    fsdp_status status = piece_list_add_all(&list, source);
    if (status == FSDP_OK)
        status = piece_list_run(&list, &(piece_config){.verify = true, .to_the_end = true});
    for (int i = 0; i < list.n_transfers; i++) {
        const piece_transfer *transfer = &list.transfers[i];
        bytes += source_piece_bytes(transfer->piece);
        n_checksums += transfer->piece->has_checksum;
        if (transfer->message)
            json_array_append_new(problems, json_string(transfer->message));
    }
    if (status != FSDP_OK && json_array_size(problems) == 0)
        json_array_append_new(problems, json_string(fsdp_last_error()));
    if (folder_check_beside(source) != FSDP_OK)
        json_array_append_new(problems, json_string(fsdp_last_error()));
    json_object_set_new(report, "tensors", json_integer(source_count(source)));
    json_object_set_new(report, "checksums", json_integer(n_checksums));
    json_object_set_new(report, "bytes", json_integer(bytes));
    piece_list_free(&list);
}

/* `committed`: found in a directory of checkpoints, under the name of one. */
static json_t *verify_one(const char *path, bool committed)
{
    ckpt_source *source;
    json_t *report = json_pack("{s:s, s:[]}", "path", path, "problems");
    if (!report)
        return NULL;
    if (source_open(path, &source) == FSDP_OK) {
        verify_tensors(source, report);
        if (committed && !source_manifest(source))
            json_array_append_new(json_object_get(report, "problems"),
                                  json_string(MANIFEST_NAME " and " MARKER_NAME " are missing"));
        source_close(source);
    } else {
        json_array_append_new(json_object_get(report, "problems"), json_string(fsdp_last_error()));
    }
    return report;
}

static void print_report(FILE *out, const json_t *report)
{
    const json_t *entry, *problem;
    size_t i, k;
    char size[32];
    json_array_foreach(json_object_get(report, "checkpoints"), i, entry)
    {
        const json_t *problems = json_object_get(entry, "problems");
        if (json_array_size(problems) == 0)
            fprintf(out, "%s: good (%" PRId64 " tensors, %" PRId64 " checksums, %s)\n", report_string(entry, "path"),
                    report_int(entry, "tensors"), report_int(entry, "checksums"),
                    report_size(report_int(entry, "bytes"), size, sizeof size));
        else
            fprintf(out, "%s: %zu problem%s\n", report_string(entry, "path"), json_array_size(problems),
                    json_array_size(problems) == 1 ? "" : "s");
        json_array_foreach((json_t *)(uintptr_t)problems, k, problem)
            fprintf(out, "  %s\n", json_string_value(problem));
    }
}

static fsdp_status verify_listed(const char *path, json_t *reports)
{
    ckpt_listing listing;
    FSDP_TRY(report_list(path, &listing));
    for (int i = 0; i < listing.n_entries; i++)
        if (!listing.entries[i].temporary) /* an unfinished save promises nothing */
            json_array_append_new(reports, verify_one(listing.entries[i].path, true));
    fsdp_status status = FSDP_OK;
    if (listing.n_entries == 0)
        status = error_set(FSDP_ERR_INPUT, "%s: no checkpoint there", path);
    ckpt_listing_free(&listing);
    return status;
}

fsdp_status fsdp_checkpoint_verify(const char *path, bool json, char **text)
{
    json_t *report = json_pack("{s:[]}", "checkpoints"), *reports = json_object_get(report, "checkpoints"), *entry;
    fsdp_status status = FSDP_OK;
    size_t i, n_problems = 0;
    *text = NULL;
    if (!file_exists(path)) {
        json_decref(report);
        return error_set(FSDP_ERR_INPUT, "%s: there is no such checkpoint", path);
    }
    if (report_is_directory_of_checkpoints(path))
        status = verify_listed(path, reports);
    else
        json_array_append_new(reports, verify_one(path, ckpt_directory_is_name(path)));
    if (status != FSDP_OK) {
        json_decref(report);
        return status;
    }
    json_array_foreach(reports, i, entry) n_problems += json_array_size(json_object_get(entry, "problems"));
    json_object_set_new(report, "good", json_boolean(n_problems == 0));
    FSDP_TRY(report_text(report, json, print_report, text));
    if (n_problems == 0)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s: %zu problem%s: see the report", path, n_problems, n_problems == 1 ? "" : "s");
}
