/* Worlds, what they report, and the search for the smallest case that still fails. */
#include "differential/support_session.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "differential/support_queues.h"
#include "differential/support_reference.h"
#include "shard/recording_device.h"
#include "support/draw.h"
#include "training/support_ranks.h"

enum { MAX_FAILURES = 32, SHRUNK_FAILURES = 4, MAX_TRIES = 250, WORLD_CASES = 36, TEXT = 512 };

typedef struct failure {
    uint64_t seed;
    char text[2 * TEXT];
} failure;

/* Shared with the ranks. */
typedef struct report {
    char folder[32]; /* of what cases save */
    atomic_int n_failures;
    failure failures[MAX_FAILURES];
    _Atomic uint64_t running[MAX_RANKS]; /* seed of the case that the rank is at; the last one when it is done */
} report;

/* One world's work: the cases first, first + CASE_CLASSES, ... or one that was made smaller. */
typedef struct world_work {
    const session *s;
    report *r;
    uint64_t first;
    int n;
    const test_case *only; /* not NULL: this one */
} world_work;

static void note(report *r, uint64_t seed, int rank, const char *how, const char *what)
{
    int n = atomic_load(&r->n_failures);
    for (int i = 0; i < n && i < MAX_FAILURES; i++) {
        if (r->failures[i].seed == seed)
            return; /* the first thing that was wrong is enough */
    }
    n = atomic_fetch_add(&r->n_failures, 1);
    if (n >= MAX_FAILURES)
        return;
    snprintf(r->failures[n].text, sizeof r->failures[n].text, "rank %d with %s: %s", rank, how, what);
    r->failures[n].seed = seed;
}

/* ---- One case, on one rank ---- */

static variant nth_variant(const session *s, const test_case *c, int index, uint64_t *state)
{
    variant v = variant_draw(c, state);
    if (index == 0 && c->ranks > 1 && chance(state, 25)) {
        v.strategy = chance(state, 50) ? FSDP_HYBRID : FSDP_HYBRID_ZERO2;
        v.shard_group_size = c->ranks == 4 && chance(state, 30) ? 2 : chance(state, 50) ? 1 : c->ranks;
    }
    v.shaken = s->shaken ? draw_mixed(state) | 1 : 0;
    return v;
}

typedef struct outcomes {
    outcome plain, other, reference;
} outcomes;

static fsdp_status run_case(fsdp_world *w, const world_work *work, const test_case *c, outcomes *o)
{
    char how[256] = "plain settings", text[TEXT / 2];
    const char *wrong = NULL;
    int rank = fsdp_world_rank(w);
    uint64_t state = c->seed;
    bool refers = rank == 0 && case_has_reference(c);
    variant plain = variant_plain();
    fsdp_status status = engine_run(w, c, &plain, work->r->folder, &o->plain);
    if (status == FSDP_OK && refers) {
        reference_run(c, &o->plain, &o->reference);
        wrong = reference_differs(c, &o->reference, &o->plain, text, sizeof text);
    }
    for (int i = 0; i < work->s->n_variants && status == FSDP_OK; i++) {
        if (wrong)
            note(work->r, c->seed, rank, how, wrong);
        variant v = nth_variant(work->s, c, i, &state);
        variant_print(&v, how, sizeof how);
        status = engine_run(w, c, &v, work->r->folder, &o->other);
        if (status != FSDP_OK)
            break;
        if (variant_keeps_bits(c, &v))
            wrong = outcome_differs(c, &o->plain, &o->other, text, sizeof text);
        else if (refers)
            wrong = reference_differs(c, &o->reference, &o->other, text, sizeof text);
    }
    if (wrong)
        note(work->r, c->seed, rank, how, wrong);
    if (status != FSDP_OK)
        note(work->r, c->seed, rank, how, fsdp_last_error());
    return status;
}

static fsdp_status open_world(const world_work *work, const fsdp_world_config *config, fsdp_world **out)
{
    if (!case_draw(work->first).recorded)
        return fsdp_world_open(config, out);
    return work->s->shaken ? queued_world_open(config, work->first, out) : recording_world_open(config, out);
}

/* Failures are in the report; what this returns only says that the world came up. */
static fsdp_status run_rank(int rank, void *context)
{
    const world_work *work = context;
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    fsdp_world *w;
    outcomes o = {.plain = {.list = NULL}};
    config.device = "cpu";
    config.threads = 1;
    config.comm_timeout = 30;
    config.comm_thread = work->s->comm_threads;
    FSDP_TRY(open_world(work, &config, &w));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < work->n && status == FSDP_OK; i++) {
        uint64_t seed = work->first + (uint64_t)i * CASE_CLASSES;
        test_case c = work->only ? *work->only : case_draw(seed);
        atomic_store(&work->r->running[rank], c.seed);
        status = run_case(w, work, &c, &o);
    }
    if (status != FSDP_OK)
        fsdp_world_abort(w);
    fsdp_world_close(w);
    outcome_free(&o.plain);
    outcome_free(&o.other);
    outcome_free(&o.reference);
    return FSDP_OK;
}

/* ---- Worlds ---- */

/* Runs the list, in as many worlds as it takes: a case that fails ends its world. */
static void run_list(const session *s, report *r, uint64_t first, int n)
{
    int ranks = case_draw(first).ranks;
    for (uint64_t end = first + (uint64_t)n * CASE_CLASSES; first < end;) {
        world_work work = {s, r, first, (int)((end - first) / CASE_CLASSES), NULL};
        for (int i = 0; i < ranks; i++)
            atomic_store(&r->running[i], first);
        bool good = ranks_run(ranks, run_rank, &work);
        uint64_t at = first;
        for (int i = 0; i < ranks; i++)
            at = r->running[i] > at ? r->running[i] : at;
        if (!good)
            note(r, at, 0, "some settings", "a process crashed, or the world did not come up");
        first = at + CASE_CLASSES;
    }
}

static bool still_fails(const session *s, report *r, const test_case *c)
{
    world_work work = {s, r, c->seed, 1, c};
    atomic_store(&r->n_failures, 0);
    if (!ranks_run(c->ranks, run_rank, &work))
        note(r, c->seed, 0, "some settings", "a process crashed, or the world did not come up");
    return r->n_failures > 0;
}

/* ---- Making a case smaller ---- */

/* Whoever has nothing depends on the micro-batch before: with such ranks nothing is left out. */
static bool drop_step(test_case *c, int at)
{
    if (c->n_steps == 1 || at >= c->n_steps || case_has_idle_ranks(c))
        return false;
    c->n_steps--;
    memmove(&c->steps[at], &c->steps[at + 1], (size_t)(c->n_steps - at) * sizeof *c->steps);
    return true;
}

static bool drop_micro(test_case *c, int at)
{
    case_step *s = &c->steps[at / MAX_MICRO];
    at %= MAX_MICRO;
    if (s >= &c->steps[c->n_steps] || at >= s->n_micro || s->n_micro == 1 || case_has_idle_ranks(c))
        return false;
    s->n_micro--;
    memmove(&s->micro[at], &s->micro[at + 1], (size_t)(s->n_micro - at) * sizeof *s->micro);
    return true;
}

static void for_recordings(test_case *c, void (*change)(recording *r))
{
    for (int i = 0; i < c->n_steps; i++) {
        change(&c->steps[i].seen);
        for (int k = 0; k < c->steps[i].n_micro; k++) {
            change(&c->steps[i].micro[k].work);
            change(&c->steps[i].micro[k].seen);
        }
    }
}

static void shape_one(recording *r)
{
    for (int i = 0; i < MAX_RANKS; i++)
        r->samples[i] = r->tokens[i] = 1;
}

static void unpoison(recording *r)
{
    r->poisoned = false;
    r->silent = 0;
}

static void keep_block_0(recording *r)
{
    r->blocks &= 1;
}

static void clear_step(test_case *c, int what)
{
    for (int i = 0; i < c->n_steps; i++) {
        case_step *s = &c->steps[i];
        if (what == 0)
            s->after = LOOK_NONE;
        if (what == 1)
            s->stepped_twice = false;
        if (what == 2)
            s->reads = s->halves = -1;
        if (what == 3)
            s->lr = 0.01f;
        if (what == 7)
            s->checks = 0;
        if (what == 8)
            s->scales = 0;
        if (what == 9)
            s->averaged = false;
        for (int k = 0; k < s->n_micro; k++) {
            if (what == 4)
                s->micro[k].before = LOOK_NONE;
            if (what == 5)
                s->micro[k].loss = 0;
            if (what == 6)
                memset(s->micro[k].nothing, 0, sizeof s->micro[k].nothing);
        }
    }
}

enum { DROPS = MAX_STEPS + MAX_STEPS * MAX_MICRO, CLEARS = 10, SIMPLER = 21 };

static void simplify(test_case *c, int what)
{
    switch (what) {
    case 0:
        for_recordings(c, shape_one);
        break;
    case 1:
        for_recordings(c, unpoison);
        break;
    case 2:
        for_recordings(c, keep_block_0);
        break;
    case 3:
        c->frozen = 0;
        break;
    case 4:
        c->dropout = 0;
        break;
    case 5:
        c->bias = false;
        break;
    case 6:
        c->layernorm = false;
        break;
    case 7:
        c->tied = false;
        break;
    case 8:
        c->features = false;
        break;
    case 9:
        c->fused_loss = false;
        break;
    case 10:
        c->param_dtype = FSDP_F32;
        break;
    case 11:
        c->reduce_dtype = c->gradient_dtype = FSDP_F32;
        break;
    case 12:
        c->weighted = false;
        break;
    case 13:
        c->bucket_bytes = 0;
        break;
    case 14:
        c->decay_vectors = false, c->weight_decay = 0, c->momentum = 0, c->clip = 0;
        break;
    case 15:
        c->optimizer = FSDP_SGD;
        break;
    case 16:
        c->wrap = 0;
        break;
    case 17:
        c->state_dtype = FSDP_F32;
        break;
    case 18:
        c->average = 0, c->grouped = false;
        clear_step(c, 9);
        break;
    case 19:
        c->loss_scale = 64;
        break;
    default:
        c->sync = true;
        break;
    }
}

/* The k-th thing to try; false when it changes nothing. */
static bool smaller(const test_case *c, int k, test_case *out)
{
    *out = *c;
    if (k < MAX_STEPS)
        return drop_step(out, k);
    if (k < DROPS)
        return drop_micro(out, k - MAX_STEPS);
    if (k < DROPS + CLEARS)
        clear_step(out, k - DROPS);
    else
        simplify(out, k - DROPS - CLEARS);
    return memcmp(c, out, sizeof *c) != 0;
}

static void print_failure(const session *s, report *scratch, const failure *f, bool shrink)
{
    test_case c = case_draw(f->seed), tried;
    int tries = 0;
    printf("\nseed %llu fails: %s\n", (unsigned long long)f->seed, f->text);
    if (!shrink)
        return;
    for (bool smaller_found = still_fails(s, scratch, &c); smaller_found;) {
        smaller_found = false;
        for (int k = 0; k < DROPS + CLEARS + SIMPLER && tries < MAX_TRIES; k++) {
            if (!smaller(&c, k, &tried))
                continue;
            tries++;
            if (still_fails(s, scratch, &tried)) {
                c = tried;
                smaller_found = true;
            }
        }
    }
    if (still_fails(s, scratch, &c))
        printf("the smallest case found that fails: %s\n", scratch->failures[0].text);
    else
        printf("alone it passes: what fails depends on the cases before it, or on time\n");
    case_print(&c);
    printf("run it again with --seed %llu\n", (unsigned long long)f->seed);
}

/* ---- The session ---- */

#ifndef __has_feature /* clang's way to tell; gcc defines macros */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||               \
    __has_feature(thread_sanitizer)
enum { SLOWER = 8 };
#else
enum { SLOWER = 1 };
#endif

int session_run(const session *s)
{
    report *r = mmap(NULL, 2 * sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double begun = clock_seconds();
    uint64_t next = s->first;
    int done = 0;
    if (r == MAP_FAILED)
        return 1;
    snprintf(r[0].folder, sizeof r[0].folder, "/tmp/fsdp_differential_XXXXXX");
    if (!mkdtemp(r[0].folder))
        return 1;
    memcpy(r[1].folder, r[0].folder, sizeof r[0].folder);
    if (s->n_cases == 1) {
        run_list(s, r, s->first, 1);
        done = 1;
    }
    while (s->n_cases > 1 && r->n_failures < MAX_FAILURES &&
           (s->seconds > 0 ? clock_seconds() - begun < s->seconds : done < s->n_cases / SLOWER)) {
        for (int i = 0; i < CASE_CLASSES; i++)
            run_list(s, r, next + (uint64_t)i, WORLD_CASES);
        next += WORLD_CASES * CASE_CLASSES;
        done += WORLD_CASES * CASE_CLASSES;
    }
    int n = r->n_failures < MAX_FAILURES ? r->n_failures : MAX_FAILURES;
    printf("%d cases from seed %llu, %d variants beside the plain one: %d failed\n", done, (unsigned long long)s->first,
           s->n_variants, n);
    for (int i = 0; i < n; i++)
        print_failure(s, r + 1, &r->failures[i], i < SHRUNK_FAILURES);
    fflush(stdout);
    if (file_remove_tree(r[0].folder) != FSDP_OK)
        printf("%s\n", fsdp_last_error());
    munmap(r, 2 * sizeof *r);
    return n;
}

bool session_parse(session *s, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        char *end = NULL;
        double number = i + 1 < argc ? strtod(argv[i + 1], &end) : 0;
        bool known = end && *end == '\0' && number >= 0;
        if (known && strcmp(argv[i], "--seed") == 0) {
            s->first = strtoull(argv[i + 1], NULL, 10);
            s->n_cases = 1;
        } else if (known && strcmp(argv[i], "--first") == 0) {
            s->first = strtoull(argv[i + 1], NULL, 10);
        } else if (known && strcmp(argv[i], "--cases") == 0) {
            s->n_cases = (int)number;
        } else if (known && strcmp(argv[i], "--minutes") == 0) {
            s->seconds = number * 60;
        } else {
            fprintf(stderr,
                    "usage: %s [--seed N | --first N] [--cases N] [--minutes N]\n"
                    "  --seed N     the case of that seed alone\n"
                    "  --first N    begin with that seed\n"
                    "  --cases N    so many cases\n"
                    "  --minutes N  until so much time has passed\n",
                    argv[0]);
            return false;
        }
    }
    return true;
}
