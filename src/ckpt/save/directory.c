/* Lists, replaces and prunes the checkpoints of a directory. Contents are manifest.c's. */
#include "ckpt/save/directory.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "ckpt/save/owner.h"

static fsdp_status out_of_memory(const char *directory)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a list of checkpoints", directory);
}

const char *ckpt_condition_name(ckpt_condition condition)
{
    static const char *const names[] = {"complete", "incomplete", "corrupt"};
    return names[condition];
}

char *ckpt_directory_path(const char *directory, int64_t step, int rank)
{
    char name[64];
    int length = snprintf(name, sizeof name, "step-%08" PRId64, step);
    if (rank >= 0)
        snprintf(name + length, sizeof name - (size_t)length, ".rank-%05d", rank);
    return file_join(directory, name);
}

/* ---- Listing ---- */

/* A number of at least `digits` digits; false when there is none or it is too large. */
static bool take_number(const char **text, int digits, int64_t *out)
{
    int64_t value = 0;
    int n = 0;
    for (; isdigit((unsigned char)**text); (*text)++, n++) {
        if (n == 18)
            return false;
        value = 10 * value + (**text - '0');
    }
    *out = value;
    return n >= digits;
}

static bool take_prefix(const char **text, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(*text, prefix, length) != 0)
        return false;
    *text += length;
    return true;
}

/* The id after ".tmp-" and the like: digits and letters to the end, as we write them. */
static bool is_id(const char *text)
{
    size_t n = 0;
    while (isalnum((unsigned char)text[n]))
        n++;
    return n > 0 && n <= 32 && text[n] == '\0';
}

/* False when it is not a name of ours. */
static bool parse_name(const char *name, ckpt_entry *entry)
{
    int64_t rank = -1;
    if (!take_prefix(&name, "step-") || !take_number(&name, 8, &entry->step))
        return false;
    if (take_prefix(&name, ".rank-") && (!take_number(&name, 5, &rank) || rank >= MANIFEST_MAX_WORLD))
        return false;
    entry->rank = (int)rank;
    entry->condition = CKPT_COMPLETE;
    if (*name == '\0')
        return true;
    if (take_prefix(&name, ".old-"))
        return is_id(name);
    entry->unfinished = take_prefix(&name, ".tmp-");
    if ((!entry->unfinished && !take_prefix(&name, ".gone-")) || !is_id(name))
        return false;
    entry->temporary = true;
    entry->condition = CKPT_INCOMPLETE;
    snprintf(entry->reason, sizeof entry->reason, "%s", "its save did not finish, or its removal did not");
    return true;
}

bool ckpt_directory_is_name(const char *path)
{
    ckpt_entry entry = {0};
    char *plain = strdup(path), *slash;
    for (size_t n = plain ? strlen(plain) : 0; n > 1 && plain[n - 1] == '/'; n--)
        plain[n - 1] = '\0';
    slash = plain ? strrchr(plain, '/') : NULL;
    bool is = plain && parse_name(slash ? slash + 1 : plain, &entry) && !entry.temporary;
    free(plain);
    return is;
}

static int highest_first(const void *left, const void *right)
{
    const ckpt_entry *a = left, *b = right;
    if (a->step != b->step)
        return a->step > b->step ? -1 : 1;
    return strcmp(a->name, b->name); /* "step-N" is before "step-N.old-..." */
}

static fsdp_status add_entry(const char *directory, const char *name, ckpt_listing *out)
{
    ckpt_entry entry = {0};
    if (!parse_name(name, &entry))
        return FSDP_OK;
    ckpt_entry *entries = realloc(out->entries, ((size_t)out->n_entries + 1) * sizeof *entries);
    if (!entries)
        return out_of_memory(directory);
    out->entries = entries;
    entry.path = file_join(directory, name);
    if (!entry.path)
        return out_of_memory(directory);
    entry.name = strrchr(entry.path, '/') + 1;
    entries[out->n_entries++] = entry;
    return FSDP_OK;
}

fsdp_status ckpt_directory_list(const char *directory, ckpt_listing *out)
{
    *out = (ckpt_listing){0};
    DIR *folder = opendir(directory);
    if (!folder && errno == ENOENT)
        return FSDP_OK;
    if (!folder)
        return error_set_errno(errno == EACCES || errno == ENOTDIR ? FSDP_ERR_INPUT : FSDP_ERR_IO,
                               "%s: cannot list checkpoints", directory);
    fsdp_status status = FSDP_OK;
    for (struct dirent *item; status == FSDP_OK && (item = readdir(folder));)
        status = add_entry(directory, item->d_name, out);
    closedir(folder);
    if (status != FSDP_OK)
        ckpt_listing_free(out);
    else if (out->n_entries > 0)
        qsort(out->entries, (size_t)out->n_entries, sizeof *out->entries, highest_first);
    return status;
}

void ckpt_listing_free(ckpt_listing *listing)
{
    for (int i = 0; i < listing->n_entries; i++)
        free(listing->entries[i].path);
    free(listing->entries);
    *listing = (ckpt_listing){0};
}

void ckpt_entry_check(ckpt_entry *entry)
{
    manifest *m = NULL;
    if (entry->temporary)
        return;
    fsdp_status status = manifest_read(entry->path, &m);
    entry->condition = CKPT_COMPLETE;
    entry->save = m ? m->save : 0;
    entry->world_size = m ? m->world_size : 0;
    entry->commit = m ? m->commit : 0;
    snprintf(entry->run, sizeof entry->run, "%s", m ? m->run : "");
    if (status == FSDP_OK && m->step != entry->step)
        status = error_set(FSDP_ERR_INPUT, "its manifest says step %" PRId64, m->step);
    if (status != FSDP_OK) {
        /* Only a rename makes this name, and it comes after the marker: what is not whole was so once. */
        entry->condition = CKPT_CORRUPT;
        snprintf(entry->reason, sizeof entry->reason, "%s", fsdp_last_error());
    }
    manifest_free(m);
}

static int newest_first(const void *left, const void *right)
{
    const ckpt_entry *a = left, *b = right;
    if (a->commit != b->commit)
        return a->commit > b->commit ? -1 : 1;
    return highest_first(left, right);
}

void ckpt_listing_by_commit(ckpt_listing *listing, const char *run)
{
    for (int i = 0; i < listing->n_entries; i++) {
        ckpt_entry *entry = &listing->entries[i];
        ckpt_entry_check(entry);
        if (run && *run && strcmp(entry->run, run) == 0)
            entry->commit += MANIFEST_MAX_COUNT;
    }
    if (listing->n_entries > 0)
        qsort(listing->entries, (size_t)listing->n_entries, sizeof *listing->entries, newest_first);
}

fsdp_status ckpt_directory_next_commit(const char *directory, int64_t *out)
{
    ckpt_listing listing;
    FSDP_TRY(ckpt_directory_list(directory, &listing));
    ckpt_listing_by_commit(&listing, NULL);
    *out = 1 + (listing.n_entries > 0 ? listing.entries[0].commit : 0);
    ckpt_listing_free(&listing);
    return FSDP_OK;
}

/* ---- Replacing ---- */

static char *old_name(const char *final, const char *id)
{
    char *old;
    return asprintf(&old, "%s.old-%s", final, id) < 0 ? NULL : old;
}

void ckpt_directory_forget(const char *final, const char *id)
{
    char *old = old_name(final, id);
    if (old)
        (void)file_remove_tree(old);
    free(old);
}

/* For file systems that cannot exchange two names: the old one keeps a name under which it is found. */
static fsdp_status replace_in_two_steps(const char *temporary, const char *final, const char *old, bool keep_old)
{
    if (rename(final, old) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot rename to %s", final, old);
    if (rename(temporary, final) != 0) {
        fsdp_status status = error_set_errno(FSDP_ERR_IO, "%s: cannot rename to %s", temporary, final);
        (void)rename(old, final);
        return status;
    }
    FSDP_TRY(file_sync_parent(final));
    return keep_old ? FSDP_OK : file_remove_tree(old);
}

static fsdp_status replace_existing(const char *temporary, const char *final, const char *old, bool keep_old)
{
    if (keep_old || renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) != 0) {
        if (!keep_old && errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot take the place of %s", temporary, final);
        return replace_in_two_steps(temporary, final, old, keep_old);
    }
    FSDP_TRY(file_sync_parent(final));
    return file_remove_tree(temporary);
}

fsdp_status ckpt_directory_replace(const char *temporary, const char *final, const char *id, bool keep_old)
{
    if (rename(temporary, final) == 0)
        return file_sync_parent(final);
    if (errno != ENOTEMPTY && errno != EEXIST)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot rename to %s", temporary, final);
    char *old = old_name(final, id);
    if (!old)
        return out_of_memory(final);
    fsdp_status status = replace_existing(temporary, final, old, keep_old);
    free(old);
    return status;
}

/* ---- Pruning ---- */

void ckpt_prune_result_free(ckpt_prune_result *result)
{
    for (int i = 0; i < result->n_removed; i++)
        free(result->removed[i]);
    free(result->removed);
    *result = (ckpt_prune_result){0};
}

static fsdp_status record_removal(const ckpt_entry *entry, ckpt_prune_result *result)
{
    if (!result)
        return FSDP_OK;
    char **removed = realloc(result->removed, ((size_t)result->n_removed + 1) * sizeof *removed);
    if (!removed)
        return out_of_memory(entry->path);
    result->removed = removed;
    removed[result->n_removed] = strdup(entry->path);
    if (!removed[result->n_removed])
        return out_of_memory(entry->path);
    result->n_removed++;
    return FSDP_OK;
}

static fsdp_status remove_entry(const ckpt_entry *entry)
{
    if (entry->temporary)
        return file_remove_tree(entry->path);
    char *gone;
    if (asprintf(&gone, "%s.gone-0", entry->path) < 0)
        return out_of_memory(entry->path);
    fsdp_status status = file_remove_tree(gone); /* of a removal that was interrupted */
    if (status == FSDP_OK && rename(entry->path, gone) != 0 && errno != ENOENT)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot rename to remove it", entry->path);
    if (status == FSDP_OK)
        status = file_remove_tree(gone);
    free(gone);
    return status;
}

/* The run that wrote `written`; NULL: entries of all runs count. */
static const char *run_of(const ckpt_listing *listing, const char *written)
{
    for (int i = 0; written && i < listing->n_entries; i++)
        if (strcmp(listing->entries[i].path, written) == 0)
            return listing->entries[i].run;
    return NULL;
}

/* ".old-" of one that is there, which comes before it. */
static bool is_superseded(const ckpt_listing *listing, int at)
{
    const ckpt_entry *entry = &listing->entries[at];
    for (int i = 0; i < at; i++) {
        const ckpt_entry *other = &listing->entries[i];
        if (other->rank == entry->rank && other->step == entry->step && other->condition == CKPT_COMPLETE)
            return true;
    }
    return false;
}

/* Complete ones of later steps: the commit of a damaged one may be unknown, its name is not. */
static int count_higher(const ckpt_listing *listing, const ckpt_entry *entry)
{
    int n = 0;
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *other = &listing->entries[i];
        n += other->rank == entry->rank && other->step > entry->step && other->condition == CKPT_COMPLETE;
    }
    return n;
}

static fsdp_status prune_listed(ckpt_listing *listing, int keep, int64_t keep_every, int rank, const char *run,
                                const char *written, bool dry_run, ckpt_prune_result *result)
{
    int n_complete = 0;
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *entry = &listing->entries[i];
        char who[300];
        if (entry->rank != rank || (entry->unfinished && !owner_is_gone(entry->path, who, sizeof who)))
            continue;
        if (run && !entry->temporary && strcmp(entry->run, run) != 0)
            continue;
        bool complete = entry->condition == CKPT_COMPLETE;
        bool superseded = complete && is_superseded(listing, i);
        bool kept = complete && !superseded && (keep == 0 || n_complete < keep);
        kept |= complete && !superseded && keep_every > 0 && entry->step % keep_every == 0;
        kept |= written && strcmp(entry->path, written) == 0;
        /* Damaged ones are for people to look at; they count for nothing and are removed only when old. */
        kept |= entry->condition == CKPT_CORRUPT && (keep == 0 || count_higher(listing, entry) < keep);
        n_complete += complete && kept;
        if (kept)
            continue;
        FSDP_TRY(record_removal(entry, result));
        if (!dry_run)
            FSDP_TRY(remove_entry(entry));
    }
    if (result)
        result->n_kept = n_complete;
    return FSDP_OK;
}

static bool any_complete(const ckpt_listing *listing, int rank)
{
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *entry = &listing->entries[i];
        if (entry->rank == rank && !entry->temporary && entry->condition == CKPT_COMPLETE)
            return true;
    }
    return false;
}

fsdp_status ckpt_directory_prune(const char *directory, int keep, int64_t keep_every, int rank, const char *run,
                                 const char *written, bool dry_run, ckpt_prune_result *result)
{
    ckpt_listing listing;
    if (result)
        *result = (ckpt_prune_result){0};
    FSDP_TRY(ckpt_directory_list(directory, &listing));
    ckpt_listing_by_commit(&listing, NULL);
    fsdp_status status = FSDP_OK;
    if (any_complete(&listing, rank))
        status = prune_listed(&listing, keep, keep_every, rank, run ? run : run_of(&listing, written), written, dry_run,
                              result);
    ckpt_listing_free(&listing);
    return status;
}

/* What this rank keeps: the step of its oldest checkpoint, and whether it has one of `step` from another save. */
static bool is_replaced(const ckpt_listing *listing, int rank, const ckpt_entry *part, int64_t *oldest)
{
    bool replaced = false;
    *oldest = INT64_MAX;
    for (int i = 0; i < listing->n_entries; i++) {
        const ckpt_entry *own = &listing->entries[i];
        if (own->rank != rank || own->condition != CKPT_COMPLETE)
            continue;
        *oldest = own->step < *oldest ? own->step : *oldest;
        replaced |= own->step == part->step && own->save != part->save;
    }
    return replaced;
}

fsdp_status ckpt_directory_prune_departed(const char *directory, int keep, int64_t keep_every, int rank, int world_size)
{
    ckpt_listing listing;
    fsdp_status status = FSDP_OK;
    FSDP_TRY(ckpt_directory_list(directory, &listing));
    for (int i = 0; i < listing.n_entries; i++)
        ckpt_entry_check(&listing.entries[i]);
    for (int i = 0; i < listing.n_entries && status == FSDP_OK; i++) {
        ckpt_entry *part = &listing.entries[i];
        int64_t oldest;
        if (part->rank < world_size || part->rank % world_size != rank || part->temporary)
            continue;
        bool replaced = is_replaced(&listing, rank, part, &oldest);
        bool kept = keep == 0 || part->step >= oldest || (keep_every > 0 && part->step % keep_every == 0);
        if (replaced || !kept)
            status = remove_entry(part);
    }
    ckpt_listing_free(&listing);
    return status;
}
