/* fsdp_checkpoint_prune: retention by hand, with the rules of training. */
#include <fsdp/checkpoint.h>

#include "base/error.h"
#include "base/file.h"
#include "ckpt/report.h"

static void print_report(FILE *out, const json_t *report)
{
    const json_t *path;
    size_t i;
    bool dry = json_is_true(json_object_get(report, "dry_run"));
    json_array_foreach(json_object_get(report, "removed"), i, path)
        fprintf(out, "%s %s\n", dry ? "would remove" : "removed", json_string_value(path));
    fprintf(out, "%lld complete checkpoints stay\n", (long long)report_int(report, "kept"));
}

static bool has_complete(const ckpt_listing *listing, int rank, int64_t step)
{
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *entry = &listing->entries[i];
        if (entry->rank == rank && entry->step == step && !entry->temporary && entry->condition == CKPT_COMPLETE)
            return true;
    }
    return false;
}

static bool has_rank(const ckpt_listing *listing, int rank)
{
    for (int i = 0; i < listing->n_entries; i++)
        if (listing->entries[i].rank == rank)
            return true;
    return false;
}

/* Complete checkpoints of `rank` whose step another rank here lacks: no run resumes from those, so they do not count.
 */
static int n_useless(const ckpt_listing *listing, int rank, int highest)
{
    int n = 0;
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *entry = &listing->entries[i];
        bool useless = false;
        for (int other = 0; other <= highest && entry->rank == rank && rank >= 0; other++)
            useless |= has_rank(listing, other) && !has_complete(listing, other, entry->step);
        n += useless && has_complete(listing, rank, entry->step);
    }
    return n;
}

/* Kind local: every rank's checkpoints are a set of their own. */
static fsdp_status prune_all(const fsdp_checkpoint_prune_config *config, json_t *removed, int *n_kept)
{
    ckpt_listing listing;
    int highest = -1;
    fsdp_status status = FSDP_OK;
    FSDP_TRY(ckpt_directory_list(config->directory, &listing));
    for (int i = 0; i < listing.n_entries; i++) {
        ckpt_entry_check(&listing.entries[i]);
        highest = listing.entries[i].rank > highest ? listing.entries[i].rank : highest;
    }
    for (int rank = -1; rank <= highest && status == FSDP_OK; rank++) {
        ckpt_prune_result result;
        status = ckpt_directory_prune(config->directory, config->keep + n_useless(&listing, rank, highest),
                                      config->keep_every, rank, NULL, config->dry_run, &result);
        for (int i = 0; i < result.n_removed; i++)
            json_array_append_new(removed, json_string(result.removed[i]));
        *n_kept += result.n_kept;
        ckpt_prune_result_free(&result);
    }
    ckpt_listing_free(&listing);
    return status;
}

fsdp_status fsdp_checkpoint_prune(const fsdp_checkpoint_prune_config *config, char **text)
{
    *text = NULL;
    if (!config->directory || !file_is_directory(config->directory))
        return error_set(FSDP_ERR_INPUT, "%s: no directory of checkpoints",
                         config->directory ? config->directory : "(none)");
    if (config->keep < 1 || config->keep_every < 0)
        return error_set(FSDP_ERR_INPUT, "at least one checkpoint is kept: keep is %d, keep every %lld", config->keep,
                         (long long)config->keep_every);
    int n_kept = 0;
    json_t *removed = json_array();
    fsdp_status status = prune_all(config, removed, &n_kept);
    if (status != FSDP_OK) {
        json_decref(removed);
        return status;
    }
    json_t *report = json_pack("{s:o, s:i, s:b}", "removed", removed, "kept", n_kept, "dry_run", config->dry_run);
    return report_text(report, config->json, print_report, text);
}
