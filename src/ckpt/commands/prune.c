/* fsdp_checkpoint_prune: retention by hand, with the rules of training. */
#include <fsdp/checkpoint.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "ckpt/commands/report.h"

static void print_report(FILE *out, const json_t *report)
{
    const json_t *path;
    size_t i;
    bool dry = json_is_true(json_object_get(report, "dry_run"));
    json_array_foreach(json_object_get(report, "removed"), i, path)
        fprintf(out, "%s %s\n", dry ? "would remove" : "removed", json_string_value(path));
    fprintf(out, "%lld complete checkpoints stay\n", (long long)report_int(report, "kept"));
}

static int by_number(const void *left, const void *right)
{
    const int *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* The ranks whose checkpoints are there, each once, ascending; -1 stands for those of all ranks. NULL: out of memory.
 */
static int *list_ranks(const ckpt_listing *listing, int *n_ranks)
{
    int *ranks = malloc(((size_t)listing->n_entries + 1) * sizeof *ranks), n = 0;
    if (!ranks)
        return NULL;
    for (int i = 0; i < listing->n_entries; i++)
        ranks[i] = listing->entries[i].rank;
    qsort(ranks, (size_t)listing->n_entries, sizeof *ranks, by_number);
    for (int i = 0; i < listing->n_entries; i++)
        if (n == 0 || ranks[n - 1] != ranks[i])
            ranks[n++] = ranks[i];
    *n_ranks = n;
    return ranks;
}

/* Ranks that have the checkpoint `own`: of that step, and by that save. */
static int count_ranks_with(const ckpt_listing *listing, const ckpt_entry *own)
{
    int n = 0, last = -1; /* names, and so ranks, ascend within a step */
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *entry = &listing->entries[i];
        if (entry->rank < 0 || entry->rank == last || entry->step != own->step || entry->temporary ||
            entry->condition != CKPT_COMPLETE || entry->save != own->save)
            continue;
        last = entry->rank;
        n++;
    }
    return n;
}

/* Complete checkpoints of `rank` that another rank here lacks: no run resumes from those, so they do not count. `run`:
 * whose; NULL: any. */
static int n_useless(const ckpt_listing *listing, const char *run, int rank, int n_local_ranks)
{
    int n = 0;
    for (int i = 0; rank >= 0 && i < listing->n_entries; i++) {
        const ckpt_entry *entry = &listing->entries[i];
        n += entry->rank == rank && !entry->temporary && entry->condition == CKPT_COMPLETE &&
             (!run || strcmp(entry->run, run) == 0) && count_ranks_with(listing, entry) < n_local_ranks;
    }
    return n;
}

/* Kind local: every rank's checkpoints are a set of their own. */
static fsdp_status prune_ranks(const fsdp_checkpoint_prune_config *config, const char *run, const ckpt_listing *listing,
                               json_t *removed, int *n_kept)
{
    int n_ranks = 0;
    int *ranks = list_ranks(listing, &n_ranks);
    fsdp_status status =
        ranks ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory for a list of ranks", config->directory);
    int n_local_ranks = n_ranks - (n_ranks > 0 && ranks[0] < 0);
    for (int r = 0; r < n_ranks && status == FSDP_OK; r++) {
        ckpt_prune_result result;
        int keep = config->keep + n_useless(listing, run, ranks[r], n_local_ranks);
        status = ckpt_directory_prune(config->directory, keep, config->keep_every, ranks[r], run, NULL, config->dry_run,
                                      &result);
        for (int i = 0; i < result.n_removed; i++)
            json_array_append_new(removed, json_string(result.removed[i]));
        *n_kept += result.n_kept;
        ckpt_prune_result_free(&result);
    }
    free(ranks);
    return status;
}

static fsdp_status prune_all(const fsdp_checkpoint_prune_config *config, const char *run, json_t *removed, int *n_kept)
{
    ckpt_listing listing;
    FSDP_TRY(ckpt_directory_list(config->directory, &listing));
    for (int i = 0; i < listing.n_entries; i++)
        ckpt_entry_check(&listing.entries[i]);
    fsdp_status status = prune_ranks(config, run, &listing, removed, n_kept);
    ckpt_listing_free(&listing);
    return status;
}

fsdp_status fsdp_checkpoint_prune(const fsdp_checkpoint_prune_config *given, char **text)
{
    *text = NULL;
    SIZED_READ(fsdp_checkpoint_prune_config, FSDP_CHECKPOINT_PRUNE_CONFIG_INIT, full, given);
    char *directory, *run = NULL;
    if (!full.directory || !file_is_directory(full.directory))
        return error_set(FSDP_ERR_INPUT, "%s: no directory of checkpoints", full.directory ? full.directory : "(none)");
    if (full.keep < 1 || full.keep_every < 0)
        return error_set(FSDP_ERR_INPUT, "at least one checkpoint must be kept: keep is %d, keep every %lld", full.keep,
                         (long long)full.keep_every);
    FSDP_TRY(report_directory(full.directory, &directory, &run));
    full.directory = directory;
    int n_kept = 0;
    json_t *removed = json_array();
    fsdp_status status = prune_all(&full, run, removed, &n_kept);
    free(run);
    free(directory);
    if (status != FSDP_OK) {
        json_decref(removed);
        return status;
    }
    json_t *report = json_pack("{s:o, s:i, s:b}", "removed", removed, "kept", n_kept, "dry_run", full.dry_run);
    return report_text(report, full.json, print_report, text);
}
