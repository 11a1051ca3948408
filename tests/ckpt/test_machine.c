/* Checkpoints as a state machine: random sequences of saves (kinds, worlds, cuts, asynchronous, failing, killed),
 * prunes, exports, a second job on the same folder, a full disk and a folder that cannot be written, against a model of
 * what must exist (machine.h). After every operation every promised checkpoint loads, with the values it was saved
 * with.
 *
 *   --seed N      that sequence alone, with what it does       --cases N     so many sequences (50)
 *   --first N     from this seed on (1)                        --minutes M   for so long instead
 * A kill strikes when it strikes, so a sequence with kills may need several runs to repeat. */
#include "ckpt/machine.h"

#include <fsdp/checkpoint.h>

#include "ckpt/faults.h"

enum { LOCAL_RANKS = 2 };

/* ---- Saving ---- */

typedef struct save_job {
    const char *directory;
    fsdp_checkpoint_kind kind;
    fixture_cut cut;
    bool async;
    int64_t step, tag;
    int keep;
    int64_t keep_every;
    int fault_rank, countdown, number; /* countdown 0: none */
    bool stays, background;            /* background: the first of two asynchronous saves, the second is as told */
    bool stands;                       /* waits in the middle for flags[1], having said so in flags[0] */
} save_job;

static ranks *standing;

static fsdp_status standing_read(void *context, const ckpt_slice *slice, int64_t first, int64_t n, float *out)
{
    standing->shared->flags[0] = 1;
    for (int i = 0; !standing->shared->flags[1]; i++) {
        RANK_CHECK(i < 60000);
        usleep(1000);
    }
    return fixture_read(context, slice, first, n, out);
}

static ckpt_save_config job_config(const save_job *j)
{
    ckpt_save_config config = fixture_config(j->directory, j->kind, j->step);
    config.keep = j->keep;
    config.keep_every = j->keep_every;
    return config;
}

static fsdp_status save_async(const save_job *j, fixture *f, comm_group *world, bool fails)
{
    ckpt_saver *saver;
    ckpt_save_config config = job_config(j);
    FSDP_TRY(ckpt_saver_create(&f->state, j->kind == FSDP_CKPT_LOCAL, &saver));
    if (j->background) { /* one that fails while training goes on: it must not cost the next */
        ckpt_save_config first = config;
        first.step = j->step + 100000;
        fault_set(fails ? 1 : 0, EIO, true);
        fault.background = true;
        RANK_CHECK(ckpt_saver_start(saver, &first, &f->state, world) == FSDP_OK);
        while (fails && !ckpt_saver_done(saver))
            usleep(200);
        fault_set(0, 0, false);
    }
    fsdp_status status = ckpt_saver_start(saver, &config, &f->state, world);
    if (status == FSDP_OK)
        status = ckpt_saver_wait(saver, world, NULL);
    ckpt_saver_free(saver);
    return status;
}

/* Leaves the outcome in flags[2] (rank 0's status, the same on all) and in flags[3] whether the fault struck. */
static void save_rank(ranks *all, int rank, void *context)
{
    const save_job *j = context;
    comm *c = all->n > 1 ? ranks_open(all, rank) : NULL;
    comm_group *world = c ? comm_world(c) : NULL;
    fixture *f = fixture_make(j->cut, rank, all->n, j->stands);
    fixture_fill(f, j->tag);
    standing = all;
    if (j->stands)
        f->state.read = standing_read;
    bool fails = j->countdown > 0 && rank == j->fault_rank;
    if (fails && !j->background)
        fault_set(j->countdown, j->number, j->stays);
    ckpt_save_config config = job_config(j);
    fsdp_status status = j->async ? save_async(j, f, world, fails) : ckpt_save(&config, &f->state, world, NULL);
    if (fails && !j->background && atomic_load(&fault.tripped))
        all->shared->flags[3] = 1;
    fault_set(0, 0, false);
    if (rank == 0)
        all->shared->flags[2] = (int)status;
    if (status != FSDP_OK)
        ranks_say(all, rank, fsdp_last_error());
    fixture_free(f);
    if (c)
        comm_close(c);
}

static save_job draw_save(machine *m)
{
    static const int keeps[] = {0, 1, 2, 3};
    static const int64_t everies[] = {0, 0, 4, 10};
    save_job j = {.directory = m->directory,
                  .kind = draw(m, 2) ? FSDP_CKPT_FULL : FSDP_CKPT_SHARDED,
                  .cut = (fixture_cut)draw(m, CUT_COUNT),
                  .async = draw(m, 2),
                  .tag = ++m->last_tag,
                  .keep = keeps[draw(m, 4)],
                  .keep_every = everies[draw(m, 4)]};
    if (draw(m, 8) == 0 && m->step > 5)
        m->step -= (int64_t)draw(m, 5); /* back, as after a rollback; perhaps onto a step that is there */
    else
        m->step += 1 + (int64_t)draw(m, 3);
    j.step = m->step;
    return j;
}

static doubt no_doubt(void)
{
    return (doubt){.step = -1, .tag = -1};
}

/* What a save that said it was well leaves, when a fault may have kept retention from its work. */
static void expect_saved(machine *m, const save_job *j, bool struck)
{
    struct kept before[MAX_KEPT];
    doubt d = no_doubt();
    add_kept(m, j->step, j->tag);
    memcpy(before, m->kept, sizeof before);
    d.more = struck;
    d.before = before;
    d.n_before = m->n_kept;
    retain(m, j->keep, j->keep_every, j->step);
    check(m, &d);
}

static void operate_save(machine *m, int fault_chance)
{
    static const int numbers[] = {ENOSPC, EIO, EDQUOT, EROFS, EACCES};
    save_job j = draw_save(m);
    ranks all = ranks_make(1 + (int)draw(m, MAX_RANKS));
    if (fault_chance && draw(m, (uint64_t)fault_chance) == 0) {
        j.fault_rank = (int)draw(m, (uint64_t)all.n);
        j.countdown = 1 + (int)draw(m, 30);
        j.number = numbers[draw(m, 5)];
        j.stays = draw(m, 2);
        j.background = j.async && draw(m, 3) == 0;
        if (j.number == EROFS) { /* a folder that cannot be written, from the start */
            j.countdown = 1;
            j.stays = true;
        }
    }
    note(m,
         "save step %" PRId64 " (%" PRId64 "): %s, %d ranks, cut %d%s, keep %d every %" PRId64
         "; fault %d: call %d of rank %d%s%s",
         j.step, j.tag, ckpt_kind_name(j.kind), all.n, (int)j.cut, j.async ? ", asynchronous" : "", j.keep,
         j.keep_every, j.countdown ? j.number : 0, j.countdown, j.fault_rank, j.stays ? ", stays" : "",
         j.background ? ", before" : "");
    MUST(ranks_run(&all, save_rank, &j), "a rank of a save ended badly");
    fsdp_status status = (fsdp_status)all.shared->flags[2];
    bool struck = all.shared->flags[3] != 0;
    note(m, "  %s%s: %s", fsdp_status_name(status), struck ? ", struck" : "", all.shared->text[0]);
    ranks_free(&all);
    if (status == FSDP_OK) {
        expect_saved(m, &j, struck);
        if (!struck)
            check_leftovers(m);
        return;
    }
    MUST(struck, "a save failed without a reason");
    doubt d = {.step = j.step, .tag = j.tag}; /* the last sync may have failed with everything in place */
    check(m, &d);
}

static void operate_kill(machine *m)
{
    save_job j = draw_save(m);
    ranks all = ranks_make(1 + (int)draw(m, MAX_RANKS));
    double after = m->save_seconds * (double)draw(m, 1000) / 500 + (all.n > 1 ? 0.004 : 0);
    note(m, "killed after %.4f s: save step %" PRId64 " (%" PRId64 "): %s, %d ranks%s, keep %d every %" PRId64, after,
         j.step, j.tag, ckpt_kind_name(j.kind), all.n, j.async ? ", asynchronous" : "", j.keep, j.keep_every);
    ranks_start(&all, save_rank, &j);
    sleep_seconds(after);
    ranks_kill(&all);
    ranks_join(&all);
    ranks_free(&all);
    char path[700];
    snprintf(path, sizeof path, "%s/step-%08" PRId64, m->directory, j.step);
    bool committed = file_exists(path) && loaded_tag(path, CKPT_ROLES_ALL, -1) == j.tag;
    note(m, "  %s", committed ? "committed" : "not committed");
    if (committed) {
        expect_saved(m, &j, true);
    } else {
        doubt d = no_doubt();
        check(m, &d);
    }
}

/* ---- The other operations ---- */

static void operate_prune(machine *m)
{
    char *text;
    fsdp_checkpoint_prune_config config = FSDP_CHECKPOINT_PRUNE_CONFIG_INIT;
    doubt d = no_doubt();
    config.directory = m->directory;
    config.keep = 1 + (int)draw(m, 4);
    config.keep_every = draw(m, 2) ? 0 : 4;
    config.dry_run = draw(m, 4) == 0;
    note(m, "prune keep %d every %" PRId64 "%s", config.keep, config.keep_every, config.dry_run ? ", dry" : "");
    if (!file_is_directory(m->directory))
        return;
    MUST(fsdp_checkpoint_prune(&config, &text) == FSDP_OK, "prune fails");
    free(text);
    if (!config.dry_run && m->n_kept > 0) {
        retain(m, config.keep, config.keep_every, -1);
        check_leftovers(m);
    }
    check(m, &d);
}

typedef struct export_job {
    const char *source, *folder;
    int countdown;
} export_job;

static void export_rank(ranks *all, int rank, void *context)
{
    const export_job *j = context;
    (void)rank;
    char *text = NULL;
    fsdp_checkpoint_export_config config = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
    config.source = j->source;
    config.destination = j->folder;
    fault_set(j->countdown, ENOSPC, j->countdown % 2 == 0);
    all->shared->flags[2] = (int)fsdp_checkpoint_export(&config, &text);
    all->shared->flags[3] = atomic_load(&fault.tripped);
    fault_set(0, 0, false);
    ranks_say(all, 0, fsdp_last_error());
    free(text);
}

static void operate_export(machine *m)
{
    if (m->n_kept == 0)
        return;
    char step[700], foreign[700];
    const struct kept *newest = &m->kept[0];
    snprintf(step, sizeof step, "%s/step-%08" PRId64, m->directory, newest->step);
    bool onto_checkpoint = draw(m, 5) == 0;
    export_job j = {.source = m->directory, .folder = onto_checkpoint ? step : m->exported};
    if (draw(m, 3) == 0)
        j.countdown = 1 + (int)draw(m, 20);
    note(m, "export step %" PRId64 " (%" PRId64 ")%s, fault at call %d", newest->step, newest->tag,
         onto_checkpoint ? " onto itself" : "", j.countdown);
    ranks all = ranks_make(1);
    MUST(ranks_run(&all, export_rank, &j), "an export ended badly");
    fsdp_status status = (fsdp_status)all.shared->flags[2];
    bool struck = all.shared->flags[3] != 0;
    note(m, "  %s%s: %s", fsdp_status_name(status), struck ? ", struck" : "", all.shared->text[0]);
    ranks_free(&all);
    MUST(status == FSDP_OK || struck || onto_checkpoint, "an export failed without a reason");
    MUST(status != FSDP_OK || !onto_checkpoint, "an export went over a checkpoint");
    if (!onto_checkpoint && file_is_directory(m->exported)) {
        /* After a failure the last sync may have been it: then the new one is there. */
        bool is_new = loaded_tag(m->exported, CKPT_ROLES_MODEL, newest->tag) == newest->tag;
        MUST(is_new || status != FSDP_OK, "the export is not what was exported");
        if (is_new)
            m->exported_tag = newest->tag;
        snprintf(foreign, sizeof foreign, "%s/notes.txt", m->exported);
        MUST(!m->notes || file_exists(foreign), "the user's notes are gone");
        MUST(m->notes || file_write_atomic(foreign, "mine", 4) == FSDP_OK, "the notes cannot be written");
        m->notes = true;
    }
    doubt d = no_doubt();
    check(m, &d);
}

/* Another job on the same folder, in the middle of a save, while this one goes on; in the end it commits or is killed.
 */
static void operate_second_job(machine *m)
{
    save_job j = draw_save(m);
    j.stands = true;
    j.async = false;
    j.step += 1000 * (int64_t)draw(m, 2); /* far ahead of this one, or beside it */
    m->second_ranks = ranks_make(1);
    note(m, "a second job stands in a save of step %" PRId64 " (%" PRId64 "): %s, keep %d every %" PRId64, j.step,
         j.tag, ckpt_kind_name(j.kind), j.keep, j.keep_every);
    ranks_start(&m->second_ranks, save_rank, &j);
    for (int i = 0; i < 30000 && !m->second_ranks.shared->flags[0]; i++)
        usleep(1000);
    MUST(m->second_ranks.shared->flags[0], "the second job does not come to its save");
    m->second = 1;
    for (int i = 1 + (int)draw(m, 3); i > 0; i--) {
        switch (draw(m, 3)) {
        case 0:
            operate_save(m, 3);
            break;
        case 1:
            operate_prune(m);
            break;
        default:
            operate_export(m);
        }
    }
    bool dies = draw(m, 2);
    note(m, "  the second job %s", dies ? "is killed" : "goes on");
    m->second_ranks.shared->flags[1] = !dies;
    if (dies)
        kill(m->second_ranks.shared->pids[0], SIGKILL);
    ranks_join(&m->second_ranks);
    m->second = 0;
    fsdp_status status = (fsdp_status)m->second_ranks.shared->flags[2];
    MUST(dies || (m->second_ranks.statuses[0] == 0 && status == FSDP_OK), "the second job's save was not made: %s",
         m->second_ranks.shared->text[0]);
    ranks_free(&m->second_ranks);
    if (dies) {
        doubt d = no_doubt();
        check(m, &d);
    } else {
        expect_saved(m, &j, false);
    }
    if (j.step > m->step)
        m->step = draw(m, 2) ? j.step : m->step;
}

static void run_shared(machine *m)
{
    for (int i = 0; i < N_OPERATIONS; i++) {
        switch (draw(m, 10)) {
        case 0:
        case 1:
            operate_save(m, 0);
            break;
        case 2:
        case 3:
            operate_save(m, 1);
            break;
        case 4:
        case 5:
            operate_kill(m);
            break;
        case 6:
            operate_prune(m);
            break;
        case 7:
            operate_export(m);
            break;
        case 8:
            operate_second_job(m);
            break;
        default:
            resume_elsewhere(m);
        }
    }
}

/* ---- Kind local: ranks commit each for itself; what all have had together is promised ---- */

typedef struct local_job {
    const char *directory;
    int64_t least, least_tag; /* the step that was promised, and what it holds */
    int64_t newest_tag;       /* of saves so far */
} local_job;

static void resume_local(ranks *all, int rank, void *context)
{
    const local_job *j = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(CUT_FLAT, rank, all->n, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    RANK_CHECK(ckpt_resume(j->directory, &config, &f->state, comm_world(c), &result) == FSDP_OK);
    RANK_CHECK(result.step >= j->least);
    /* Of a save since, when it turned out to be committed; on all ranks of the same one. */
    int64_t tag = result.extra ? json_integer_value(json_object_get(result.extra, "data_position")) / 1000003 : 0;
    RANK_CHECK(result.step < 0 || (tag >= j->least_tag && tag <= j->newest_tag));
    RANK_CHECK(result.step < 0 || fixture_holds(f, tag, CKPT_ROLES_ALL));
    int64_t sum = tag;
    RANK_CHECK(comm_all_reduce_i64(comm_world(c), "tags", 0, FSDP_REDUCE_SUM, &sum, 1) == FSDP_OK &&
               sum == tag * all->n);
    all->shared->flags[2] = (int)result.step;
    all->shared->flags[3] = (int)tag;
    ckpt_load_result_free(&result);
    fixture_free(f);
    comm_close(c);
}

static void run_local(machine *m)
{
    local_job promised = {.directory = m->directory, .least = -1};
    for (int i = 0; i < N_OPERATIONS; i++) {
        save_job j = draw_save(m);
        j.kind = FSDP_CKPT_LOCAL;
        j.cut = CUT_FLAT;
        j.keep_every = 0;
        j.step = promised.least + (promised.least < 0) + (int64_t)draw(m, 3); /* perhaps the promised one once more */
        promised.newest_tag = j.tag;
        ranks all = ranks_make(LOCAL_RANKS), after = ranks_make(LOCAL_RANKS);
        int how = (int)draw(m, 3);
        if (how == 1) {
            j.fault_rank = (int)draw(m, LOCAL_RANKS);
            j.countdown = 1 + (int)draw(m, 20);
            j.number = EIO;
            j.stays = draw(m, 2);
        }
        note(m, "local save of step %" PRId64 " (%" PRId64 ")%s, keep %d, %s", j.step, j.tag,
             j.async ? ", asynchronous" : "", j.keep,
             how == 0   ? "well"
             : how == 1 ? "with a fault"
                        : "killed");
        ranks_start(&all, save_rank, &j);
        if (how == 2) {
            sleep_seconds(m->save_seconds * (double)draw(m, 1000) / 400 + 0.004);
            ranks_kill(&all);
        }
        ranks_join(&all);
        bool ended = all.statuses[0] == 0 && all.statuses[1] == 0;
        MUST(ended || how == 2, "a rank of a save ended badly");
        if (ended && all.shared->flags[2] == FSDP_OK && how != 2) {
            promised.least = j.step;
            promised.least_tag = j.tag;
        }
        MUST(how != 0 || all.shared->flags[2] == FSDP_OK, "a save failed without a reason: %s", all.shared->text[0]);
        MUST(ranks_run(&after, resume_local, &promised), "step %" PRId64 " is lost", promised.least);
        promised.least = after.shared->flags[2]; /* it may have turned out to be committed */
        promised.least_tag = after.shared->flags[3];
        ranks_free(&after);
        ranks_free(&all);
    }
}

/* ---- All of it ---- */

static void run_seed(uint64_t seed, bool verbose, double save_seconds)
{
    static machine m;
    m = (machine){.seed = seed, .random = seed, .verbose = verbose, .exported_tag = -1, .save_seconds = save_seconds};
    current = &m;
    snprintf(m.directory, sizeof m.directory, "%s/run-%" PRIu64, scratch_folder, seed);
    snprintf(m.exported, sizeof m.exported, "%s/export-%" PRIu64, scratch_folder, seed);
    if (verbose)
        printf("seed %" PRIu64 "%s\n", seed, seed % 5 == 0 ? ", kind local" : "");
    if (seed % 5 == 0)
        run_local(&m);
    else
        run_shared(&m);
    MUST(file_remove_tree(m.directory) == FSDP_OK && file_remove_tree(m.exported) == FSDP_OK, "not to be removed");
}

static double measure_save(void)
{
    double before = clock_seconds();
    for (int64_t step = 1; step <= 4; step++)
        if (fixture_save(scratch_path("timed"), FSDP_CKPT_SHARDED, step) != FSDP_OK)
            return 0.01;
    return (clock_seconds() - before) / 4;
}

int main(int argc, char **argv)
{
    uint64_t first = 1, n_cases = 50, seed = 0;
    double minutes = 0, began = clock_seconds();
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0)
            seed = value;
        else if (strcmp(argv[i], "--first") == 0)
            first = value;
        else if (strcmp(argv[i], "--cases") == 0)
            n_cases = value;
        else if (strcmp(argv[i], "--minutes") == 0)
            minutes = strtod(argv[i + 1], NULL);
    }
    if (fixture_setup_one_thread(NULL) != 0)
        return 1;
    double save_seconds = measure_save();
    uint64_t n = 0;
    if (seed > 0)
        run_seed(seed, true, save_seconds), n++;
    else if (minutes > 0)
        for (; clock_seconds() - began < minutes * 60; n++)
            run_seed(first + n, false, save_seconds);
    else
        for (; n < n_cases; n++)
            run_seed(first + n, false, save_seconds);
    printf("%" PRIu64 " sequences of %d operations from seed %" PRIu64
           " on: every promised checkpoint loads (%.0f s)\n",
           n, N_OPERATIONS, seed ? seed : first, clock_seconds() - began);
    return scratch_teardown(NULL);
}
