/* The rule that names a slow rank, on laps of real runs of two equal ranks (laps.txt, made by `scripts/quiet-runs` and
 * laps.py): as they were, drawn anew in blocks, and with slowdowns laid on top. Says how often it names nobody, the
 * right rank and its phase within ten steps. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "observe/slow_rank.h"
#include "support/draw.h"

enum { RANKS = 2, COLUMNS = 6, MOST_STEPS = 100, MOST_RUNS = 200, MOST_KINDS = 4, LINE_BYTES = 1 << 16 };

typedef struct recording {
    int kind;             /* of machine */
    int n;                /* steps */
    rank_snapshot *steps; /* (n, RANKS) */
} recording;

static struct {
    int n_kinds, n;
    char kinds[MOST_KINDS][16];
    recording runs[MOST_RUNS];
} all;

/* ---- Reading ---- */

static int kind_named(const char *name)
{
    int i = 0;
    while (i < all.n_kinds && strcmp(all.kinds[i], name) != 0)
        i++;
    assert_true(i < MOST_KINDS);
    if (i == all.n_kinds)
        snprintf(all.kinds[all.n_kinds++], sizeof *all.kinds, "%s", name);
    return i;
}

static void read_run(char *line)
{
    static const lap laps[] = {LAP_DATA, LAP_FORWARD, LAP_BACKWARD, LAP_OPTIMIZER, LAP_OTHER};
    char *rest = line, *word = strsep(&rest, " ");
    assert_true(all.n < MOST_RUNS);
    recording *r = &all.runs[all.n++];
    *r = (recording){.kind = kind_named(word), .steps = calloc(MOST_STEPS * RANKS, sizeof *r->steps)};
    for (int i = 0; (word = strsep(&rest, " \n")) && *word; i++) {
        rank_snapshot *s = &r->steps[i / COLUMNS];
        float seconds = strtof(word, NULL) * 1e-6F;
        assert_true(i < MOST_STEPS * RANKS * COLUMNS);
        if (i % COLUMNS < 5)
            s->seconds[laps[i % COLUMNS]] = seconds;
        else
            s->core_wait = seconds;
        r->n = i / (RANKS * COLUMNS) + 1;
    }
}

static int read_recordings(void **state)
{
    static char line[LINE_BYTES];
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s/tests/observe/laps.txt", getenv("FSDP_SOURCE") ? getenv("FSDP_SOURCE") : ".");
    FILE *f = fopen(path, "r");
    if (!f)
        return -1;
    while (fgets(line, sizeof line, f))
        read_run(line);
    fclose(f);
    return all.n > 0 ? 0 : -1;
}

static int free_recordings(void **state)
{
    (void)state;
    for (int i = 0; i < all.n; i++)
        free(all.runs[i].steps);
    return 0;
}

/* So many programs wanted the cores that ranks were late for seconds, and rightly named. */
static bool is_crowded(int kind)
{
    return strcmp(all.kinds[kind], "loaded") == 0;
}

/* ---- Playing ---- */

/* The run as it was (draw 0), or stretches of 8 to 23 of its steps in any order, with the ranks in either order. */
typedef struct player {
    const recording *from;
    uint64_t random;
    bool drawn, turned;
    int at, left;
} player;

static player player_begin(const recording *r, int draw)
{
    player p = {.from = r, .random = (uint64_t)(r - all.runs) * 7919 + (uint64_t)draw * 104729 + 1, .drawn = draw > 0};
    draw_below(&p.random, 2);
    p.turned = p.drawn && draw_below(&p.random, 2);
    p.left = p.drawn ? 0 : r->n;
    return p;
}

static void player_next(player *p, rank_snapshot ranks[RANKS])
{
    if (p->left-- == 0) {
        p->at = draw_below(&p->random, p->from->n);
        p->left = 7 + draw_below(&p->random, 16);
    }
    for (int r = 0; r < RANKS; r++)
        ranks[r] = p->from->steps[p->at * RANKS + (p->turned ? 1 - r : r)];
    p->at = (p->at + 1) % p->from->n;
}

static double busy_of(const rank_snapshot *s)
{
    double sum = 0;
    for (int i = 0; i <= LAP_OTHER; i++)
        sum += s->seconds[i];
    return sum;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median busy seconds of a step. */
static double usual_step(const recording *r)
{
    double values[MOST_STEPS * RANKS];
    for (int i = 0; i < r->n * RANKS; i++)
        values[i] = busy_of(&r->steps[i]);
    qsort(values, (size_t)(r->n * RANKS), sizeof *values, by_value);
    return values[r->n];
}

/* ---- Nobody is slow ---- */

enum { DRAWS = 100, DRAWN_STEPS = 80 };

/* The first step at which somebody is named; 0: nobody is. */
static int named_at(const recording *r, int draw)
{
    player p = player_begin(r, draw);
    slow_watch *w;
    int named = 0, n = draw ? DRAWN_STEPS : r->n;
    assert_int_equal(slow_watch_new(RANKS, &w), FSDP_OK);
    for (int step = 1; step <= n && !named; step++) {
        rank_snapshot ranks[RANKS];
        player_next(&p, ranks);
        named = slow_watch_add(w, ranks).rank >= 0 ? step : 0;
    }
    slow_watch_free(w);
    return named;
}

static void nobody_is_named_where_ranks_are_equal(void **state)
{
    int runs[MOST_KINDS] = {0}, as_they_were[MOST_KINDS] = {0}, drawn[MOST_KINDS] = {0};
    (void)state;
    for (int i = 0; i < all.n; i++) {
        const recording *r = &all.runs[i];
        runs[r->kind]++;
        as_they_were[r->kind] += named_at(r, 0) > 0;
        for (int draw = 1; draw <= DRAWS; draw++)
            drawn[r->kind] += named_at(r, draw) > 0;
    }
    for (int k = 0; k < all.n_kinds; k++) {
        print_message("%-8s %4d runs: %d named a rank; drawn anew %5d times: %d did\n", all.kinds[k], runs[k],
                      as_they_were[k], runs[k] * DRAWS, drawn[k]);
        assert_true(as_they_were[k] * 100 <= (is_crowded(k) ? 10 : 0) * runs[k]);
        assert_true(drawn[k] * 1000 <= (is_crowded(k) ? 50 : 2) * runs[k] * DRAWS);
    }
}

/* ---- One is slow ---- */

enum { LENGTHS = 3 }; /* steps under 5 ms, under 50 ms, longer */

typedef struct slowdown {
    const char *what;
    double factor, share, seconds; /* of the phase's time; of a step; added */
    lap phase;
    int least[LENGTHS]; /* percent that must be named where ranks have their cores to themselves */
} slowdown;

static const slowdown slowdowns[] = {
    {"backward takes twice as long", .factor = 1, .phase = LAP_BACKWARD, .least = {85, 98, 95}},
    {"forward takes twice as long", .factor = 1, .phase = LAP_FORWARD, .least = {0, 90, 85}},
    {"20 % of a step more in backward", .share = 0.2, .phase = LAP_BACKWARD, .least = {0, 50, 70}},
    {"40 % of a step more in forward", .share = 0.4, .phase = LAP_FORWARD, .least = {60, 98, 85}},
    {"the loader sleeps for 5 ms", .seconds = 0.005, .phase = LAP_DATA, .least = {98, 60, 0}},
    {"the loader sleeps for 50 ms", .seconds = 0.05, .phase = LAP_DATA, .least = {98, 98, 85}},
};
enum { SLOWDOWNS = sizeof slowdowns / sizeof *slowdowns, SLOW_DRAWS = 24, WITHIN = 10 };

typedef struct tally {
    int n, named, wrong;
} tally;

static void play_slowdown(const recording *r, const slowdown *s, int draw, tally *t)
{
    player p = player_begin(r, draw);
    double step_seconds = usual_step(r);
    int from = draw_below(&p.random, 40), slow = draw_below(&p.random, RANKS), named = 0;
    slow_watch *w;
    assert_int_equal(slow_watch_new(RANKS, &w), FSDP_OK);
    for (int step = 0; step < from + WITHIN && !named; step++) {
        rank_snapshot ranks[RANKS];
        player_next(&p, ranks);
        float *seconds = &ranks[slow].seconds[s->phase];
        double more = s->factor * *seconds + s->share * step_seconds + s->seconds;
        if (step >= from) {
            *seconds += (float)more;
            ranks[1 - slow].seconds[LAP_ALL_REDUCE] += (float)more;
        }
        slow_rank found = slow_watch_add(w, ranks);
        named = found.rank >= 0;
        t->wrong += named && (found.rank != slow || found.phase != s->phase);
        t->named += named && found.rank == slow && found.phase == s->phase;
    }
    t->n++;
    slow_watch_free(w);
}

static int length_of(const recording *r)
{
    double usual = usual_step(r);
    return usual < 0.005 ? 0 : usual < 0.05 ? 1 : 2;
}

static void a_slow_rank_is_named_with_its_phase_within_ten_steps(void **state)
{
    (void)state;
    print_message(
        "steps of                                     under 5 ms              under 50 ms             longer\n");
    for (int k = 0; k < all.n_kinds; k++)
        for (int s = 0; s < SLOWDOWNS; s++) {
            tally t[LENGTHS] = {{0}, {0}, {0}};
            for (int i = 0; i < all.n; i++)
                for (int draw = 1; all.runs[i].kind == k && draw <= SLOW_DRAWS; draw++)
                    play_slowdown(&all.runs[i], &slowdowns[s], draw, &t[length_of(&all.runs[i])]);
            print_message("%-8s %-32s", all.kinds[k], slowdowns[s].what);
            for (int i = 0; i < LENGTHS; i++)
                print_message("  %4d of %4d, %d wrong", t[i].named, t[i].n, t[i].wrong);
            print_message("\n");
            for (int i = 0; i < LENGTHS; i++) {
                assert_true(t[i].wrong * 100 <= (is_crowded(k) ? 5 : 1) * t[i].n);
                assert_true(is_crowded(k) || t[i].named * 100 >= slowdowns[s].least[i] * t[i].n);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_named_where_ranks_are_equal),
        cmocka_unit_test(a_slow_rank_is_named_with_its_phase_within_ten_steps),
    };
    return cmocka_run_group_tests(tests, read_recordings, free_recordings);
}
