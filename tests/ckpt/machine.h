/* The model that test_machine.c holds checkpoints against: which must exist and what each holds, and the comparison of
 * that with the folder. */
#ifndef TESTS_CKPT_MACHINE_H
#define TESTS_CKPT_MACHINE_H

#include "ckpt/fixture.h"

#include <inttypes.h>

#include "ckpt/save/owner.h"
#include "support/draw.h"

enum { MAX_KEPT = 128, N_OPERATIONS = 25, MAX_RANKS = 3 };

/* ---- Chance, and what to say when it strikes ---- */

typedef struct machine {
    uint64_t seed, random;
    bool verbose;
    char directory[600], exported[600];
    int n_kept;
    struct kept {
        int64_t step, tag;
    } kept[MAX_KEPT];     /* what must be there, newest commit first */
    int64_t step;         /* where training stands */
    int64_t last_tag;     /* contents so far: each save has its own */
    int64_t exported_tag; /* -1: nothing is exported */
    bool notes;           /* the user put a file of their own beside it */
    double save_seconds;
    char history[N_OPERATIONS * 8][160];
    int n_history;
    int second; /* 1: a second job stands in the middle of a save */
    ranks second_ranks;
} machine;

static machine *current;

static inline uint64_t draw(machine *m, uint64_t below)
{
    return draw_mixed(&m->random) % below;
}

static inline void __attribute__((format(printf, 2, 3))) note(machine *m, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *line = m->history[m->n_history++ % (N_OPERATIONS * 8)];
    vsnprintf(line, sizeof m->history[0], format, arguments);
    va_end(arguments);
    if (m->verbose)
        printf("  %s\n", line);
}

static inline void __attribute__((format(printf, 1, 2), noreturn)) wrong(const char *format, ...)
{
    va_list arguments;
    machine *m = current;
    printf("seed %" PRIu64 " fails: ", m->seed);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\nlast error: %s\nwhat was done:\n", fsdp_last_error());
    for (int i = 0; i < m->n_history; i++)
        printf("  %s\n", m->history[i]);
    printf("what must be there:");
    for (int i = 0; i < m->n_kept; i++)
        printf(" %" PRId64 " (%" PRId64 ")", m->kept[i].step, m->kept[i].tag);
    printf("\nthe folder is %s; run it again with --seed %" PRIu64 "\n", m->directory, m->seed);
    if (m->second)
        kill(m->second_ranks.shared->pids[0], SIGKILL);
    exit(1);
}

#define MUST(condition, ...)                                                                                           \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            wrong(__VA_ARGS__);                                                                                        \
    } while (0)

/* ---- The model ---- */

static inline int find_kept(const machine *m, int64_t step)
{
    for (int i = 0; i < m->n_kept; i++)
        if (m->kept[i].step == step)
            return i;
    return -1;
}

static inline void add_kept(machine *m, int64_t step, int64_t tag)
{
    int at = find_kept(m, step);
    MUST(at >= 0 || m->n_kept < MAX_KEPT, "more checkpoints than the test has room for");
    for (at = at < 0 ? m->n_kept++ : at; at > 0; at--)
        m->kept[at] = m->kept[at - 1];
    m->kept[0] = (struct kept){step, tag};
}

static inline void retain(machine *m, int keep, int64_t keep_every, int64_t written)
{
    int n = 0;
    for (int i = 0; i < m->n_kept; i++) {
        bool kept = keep == 0 || n < keep;
        kept |= keep_every > 0 && m->kept[i].step % keep_every == 0;
        kept |= m->kept[i].step == written;
        if (kept)
            m->kept[n++] = m->kept[i];
    }
    m->n_kept = n;
}

/* ---- What is there ---- */

/* The content that the values are, by what was saved with them; -1: it does not load. */
static inline int64_t loaded_tag(const char *path, unsigned roles, int64_t wanted)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    int64_t tag = -1;
    config.roles = roles;
    if (ckpt_load(path, &config, &f->state, NULL, &result) == FSDP_OK) {
        tag = result.extra ? json_integer_value(json_object_get(result.extra, "data_position")) / 1000003 : wanted;
        if (!fixture_holds(f, tag, roles))
            tag = -2;
        ckpt_load_result_free(&result);
    }
    fixture_free(f);
    return tag;
}

/* What a resume takes; -1: nothing. */
static inline int64_t resumed_tag(const machine *m)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    int64_t tag = -2;
    if (ckpt_resume(m->directory, &config, &f->state, NULL, &result) == FSDP_OK) {
        tag = result.extra ? json_integer_value(json_object_get(result.extra, "data_position")) / 1000003 : -1;
        ckpt_load_result_free(&result);
    }
    fixture_free(f);
    return tag;
}

typedef struct resume_job {
    const char *directory;
    fixture_cut cut;
    int64_t step, tag;
} resume_job;

static inline void resume_rank(ranks *all, int rank, void *context)
{
    const resume_job *j = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(j->cut, rank, all->n, rank % 2 == 1);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    RANK_CHECK(ckpt_resume(j->directory, &config, &f->state, comm_world(c), &result) == FSDP_OK);
    RANK_CHECK(result.step == j->step);
    RANK_CHECK(fixture_holds(f, j->tag, CKPT_ROLES_ALL));
    ckpt_load_result_free(&result);
    fixture_free(f);
    comm_close(c);
}

/* By another world and another cut than it was saved by. */
static inline void resume_elsewhere(machine *m)
{
    resume_job j = {.directory = m->directory, .cut = (fixture_cut)draw(m, CUT_COUNT), .step = -1};
    ranks all = ranks_make(1 + (int)draw(m, MAX_RANKS));
    if (m->n_kept > 0) {
        j.step = m->kept[0].step;
        j.tag = m->kept[0].tag;
    }
    note(m, "resume with %d ranks, cut %d", all.n, (int)j.cut);
    if (m->n_kept > 0)
        MUST(ranks_run(&all, resume_rank, &j), "step %" PRId64 " (%" PRId64 ") does not resume", j.step, j.tag);
    ranks_free(&all);
}

/* How far what is there may differ from the model. */
typedef struct doubt {
    int64_t step, tag; /* may have been committed, or not; -1: none */
    bool more; /* what the model has given up in `before` may be there still: a removal failed, or was cut short */
    const struct kept *before;
    int n_before;
} doubt;

static inline bool was_before(const doubt *d, int64_t step, int64_t tag)
{
    for (int i = 0; d->more && i < d->n_before; i++)
        if (d->before[i].step == step && d->before[i].tag == tag)
            return true;
    return false;
}

/* Compares, loads everything, and takes over what was in doubt. */
static inline void check(machine *m, const doubt *d)
{
    ckpt_listing listing;
    struct kept found[MAX_KEPT];
    int n_found = 0;
    MUST(ckpt_directory_list(m->directory, &listing) == FSDP_OK, "the folder cannot be listed");
    ckpt_listing_by_commit(&listing, NULL);
    for (int i = 0; i < listing.n_entries; i++) {
        ckpt_entry *entry = &listing.entries[i];
        if (entry->temporary)
            continue;
        MUST(entry->condition == CKPT_COMPLETE, "%s is %s: %s", entry->path, ckpt_condition_name(entry->condition),
             entry->reason);
        if (strstr(entry->name, ".old-"))
            continue;
        int64_t tag = loaded_tag(entry->path, CKPT_ROLES_ALL, -1);
        int at = find_kept(m, entry->step);
        bool known = (at >= 0 && m->kept[at].tag == tag) || (entry->step == d->step && tag == d->tag) ||
                     was_before(d, entry->step, tag);
        MUST(tag >= 0 && known, "step %" PRId64 " holds %" PRId64 ", which it should not", entry->step, tag);
        found[n_found++] = (struct kept){entry->step, tag};
    }
    ckpt_listing_free(&listing);
    for (int i = 0; i < m->n_kept; i++) {
        bool there = false;
        for (int k = 0; k < n_found; k++)
            there |= found[k].step == m->kept[i].step;
        MUST(there, "step %" PRId64 " is lost", m->kept[i].step);
    }
    memcpy(m->kept, found, sizeof found[0] * (size_t)n_found); /* listed newest first, as the model is */
    m->n_kept = n_found;
    MUST(resumed_tag(m) == (n_found > 0 ? found[0].tag : -1), "a resume does not take the newest");
    if (m->exported_tag >= 0) {
        char foreign[700];
        snprintf(foreign, sizeof foreign, "%s/notes.txt", m->exported);
        MUST(loaded_tag(m->exported, CKPT_ROLES_MODEL, m->exported_tag) == m->exported_tag, "the export is not whole");
        MUST(file_exists(foreign), "the user's file beside the export is gone");
    }
}

/* Saves of which nobody is left to say whose they are wait for a minute; others go with the next commit or prune. */
static inline void check_leftovers(machine *m)
{
    DIR *folder = opendir(m->directory);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[1300];
        snprintf(path, sizeof path, "%s/%s/" OWNER_NAME, m->directory, entry->d_name);
        bool owned = strstr(entry->d_name, ".tmp-") && file_exists(path);
        MUST(!owned || m->second, "%s is left over", entry->d_name);
        MUST(!strstr(entry->d_name, ".gone-"), "%s is left over", entry->d_name);
    }
    if (folder)
        closedir(folder);
}

#endif
