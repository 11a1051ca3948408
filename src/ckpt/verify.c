/* fsdp_checkpoint_verify: reads every byte and says what is not as it was written. */
#include <fsdp/checkpoint.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ckpt/report.h"

/* Adds this thread's last message to the problems of `report`. */
static void add_problem(json_t *report)
{
    json_array_append_new(json_object_get(report, "problems"), json_string(fsdp_last_error()));
}

static void verify_tensors(const ckpt_source *source, json_t *report)
{
    int64_t pieces = 0, bytes = 0;
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        for (int k = 0; k < tensor->n_pieces; k++) {
            size_t piece_bytes;
            source_piece_data(&tensor->pieces[k], &piece_bytes);
            pieces += tensor->pieces[k].has_checksum;
            bytes += (int64_t)piece_bytes;
            if (source_piece_verify(tensor, &tensor->pieces[k]) != FSDP_OK)
                add_problem(report);
        }
    }
    json_object_set_new(report, "tensors", json_integer(source_count(source)));
    json_object_set_new(report, "checksums", json_integer(pieces));
    json_object_set_new(report, "bytes", json_integer(bytes));
}

static json_t *verify_one(const char *path)
{
    ckpt_source *source;
    json_t *report = json_pack("{s:s, s:[]}", "path", path, "problems");
    if (!report)
        return NULL;
    if (source_open(path, &source) == FSDP_OK) {
        verify_tensors(source, report);
        source_close(source);
    } else {
        add_problem(report);
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
            fprintf(out, "%s: %zu problems\n", report_string(entry, "path"), json_array_size(problems));
        json_array_foreach((json_t *)(uintptr_t)problems, k, problem)
            fprintf(out, "  %s\n", json_string_value(problem));
    }
}

static fsdp_status verify_listed(const char *path, json_t *reports)
{
    ckpt_listing listing;
    FSDP_TRY(ckpt_directory_list(path, &listing));
    for (int i = 0; i < listing.n_entries; i++)
        if (!listing.entries[i].temporary) /* an unfinished save promises nothing */
            json_array_append_new(reports, verify_one(listing.entries[i].path));
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
    if (report_is_directory_of_checkpoints(path))
        status = verify_listed(path, reports);
    else
        json_array_append_new(reports, verify_one(path));
    if (status != FSDP_OK) {
        json_decref(report);
        return status;
    }
    json_array_foreach(reports, i, entry) n_problems += json_array_size(json_object_get(entry, "problems"));
    json_object_set_new(report, "good", json_boolean(n_problems == 0));
    FSDP_TRY(report_text(report, json, print_report, text));
    if (n_problems == 0)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s: %zu problems: see the report", path, n_problems);
}
