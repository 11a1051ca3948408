/* A rank's excess in a step is its busy time less the median of the other ranks'. It is slow when the excess passed the
 * threshold in all but one of the last steps: a lower quantile, which single steps cannot lift. The threshold is a
 * share of the others' time, and at least a few milliseconds, which schedulers take at random. On a crowded machine
 * ranks are late by turns, each for some steps: so the excess must also stand out from its own noise, which is how much
 * it changes from one step to the next. A rank that becomes slow changes once; one that shares its core with many
 * programs changes all the time. One that shares it with a single program is late by as much as it works, until the
 * system moves one of the two: where steps are short, that may be after ten of them. So an excess of that size must
 * last for a second; a larger one is named at once. */
#include "observe/slow_rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { WINDOW = 10, SPARED = 1, CHANGES = 64, N_PHASES = LAP_OTHER + 1 };

static const double least_seconds = 0.01, least_share = 0.2;
/* Who is named stays so until the excess has fallen below this share of the threshold. */
static const double keep_share = 0.5;
static const double least_noises = 3;    /* how many times its noise the excess is */
static const double lasting_seconds = 1; /* that a neighbour's share of the core must last, */
static const double neighbour_share = 2; /* and what two of them make of the others' time */

struct slow_watch {
    int n;
    int64_t seen;
    slow_rank named;
    double *room;                       /* (n) to sort in */
    double reference[WINDOW];           /* the median busy time of all ranks, by step */
    double durations[WINDOW];           /* seconds of each step, waits and all */
    double clock;                       /* their sum since the first */
    double *since;                      /* (n) on that clock: when the rank began to be late; below 0: it is not */
    double (*excess)[WINDOW];           /* (n) */
    double (*phases)[N_PHASES][WINDOW]; /* (n) the same of each phase */
    double (*changes)[CHANGES];         /* (n) by how much the excess differed from the step before */
};

fsdp_status slow_watch_new(int n_ranks, slow_watch **out)
{
    slow_watch *w = *out = calloc(1, sizeof *w);
    if (w) {
        w->n = n_ranks;
        w->named.rank = -1;
        w->room = calloc((size_t)n_ranks, sizeof *w->room);
        w->excess = calloc((size_t)n_ranks, sizeof *w->excess);
        w->phases = calloc((size_t)n_ranks, sizeof *w->phases);
        w->changes = calloc((size_t)n_ranks, sizeof *w->changes);
        w->since = calloc((size_t)n_ranks, sizeof *w->since);
        for (int i = 0; w->since && i < n_ranks; i++)
            w->since[i] = -1;
    }
    if (w && w->room && w->excess && w->phases && w->changes && w->since)
        return FSDP_OK;
    slow_watch_free(w);
    *out = NULL;
    return error_set(FSDP_ERR_MEMORY, "out of memory to compare %d ranks", n_ranks);
}

void slow_watch_free(slow_watch *w)
{
    if (!w)
        return;
    free(w->room);
    free(w->excess);
    free(w->phases);
    free(w->changes);
    free(w->since);
    free(w);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* What the median of all values would be without one of them: `sorted` holds all. */
static double median_without(const double *sorted, int n, double value)
{
    int at = 0;
    while (at < n - 1 && sorted[at] < value)
        at++;
    int low = (n - 2) / 2, high = (n - 1) / 2; /* of the n - 1 others */
    double a = sorted[low < at ? low : low + 1], b = sorted[high < at ? high : high + 1];
    return (a + b) / 2;
}

static double seconds_of(const rank_snapshot *r, int phase)
{
    double sum = 0;
    if (phase < N_PHASES)
        return r->seconds[phase];
    for (int i = 0; i < N_PHASES; i++)
        sum += r->seconds[i];
    return sum;
}

/* Compares one phase, or all together (N_PHASES), and returns the median over ranks. */
static double compare(slow_watch *w, const rank_snapshot *ranks, int phase, int slot)
{
    for (int rank = 0; rank < w->n; rank++)
        w->room[rank] = seconds_of(&ranks[rank], phase);
    qsort(w->room, (size_t)w->n, sizeof *w->room, by_value);
    for (int rank = 0; rank < w->n; rank++) {
        double own = seconds_of(&ranks[rank], phase), excess = own - median_without(w->room, w->n, own);
        if (phase == N_PHASES)
            w->excess[rank][slot] = excess;
        else
            w->phases[rank][phase][slot] = excess;
    }
    return w->room[w->n / 2 - (w->n % 2 == 0)];
}

/* The value that all but `spared` of the n values pass. */
static double quantile_of(const double *values, int n, int spared)
{
    double sorted[CHANGES];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[spared];
}

static double quantile(const double window[WINDOW], int spared)
{
    return quantile_of(window, WINDOW, spared);
}

static void note_changes(slow_watch *w, int slot)
{
    int before = (slot + WINDOW - 1) % WINDOW;
    for (int rank = 0; w->seen > 1 && rank < w->n; rank++)
        w->changes[rank][(w->seen - 2) % CHANGES] = fabs(w->excess[rank][slot] - w->excess[rank][before]);
}

/* The median of the last changes. */
static double noise_of(const slow_watch *w, int rank)
{
    int n = w->seen - 1 < CHANGES ? (int)(w->seen - 1) : CHANGES;
    return quantile_of(w->changes[rank], n, n / 2);
}

static void note_duration(slow_watch *w, const rank_snapshot *first, int slot)
{
    double seconds = 0;
    for (int i = 0; i < LAP_COUNT; i++)
        seconds += first->seconds[i];
    w->durations[slot] = seconds;
    w->clock += seconds;
}

/* Late in nearly all of the last steps, and by more than it varies. `excess` is its median. */
static bool is_late(const slow_watch *w, int rank, double threshold, double excess)
{
    bool named = rank == w->named.rank;
    double share = named ? keep_share : 1, lasting = named ? excess : quantile(w->excess[rank], SPARED);
    return lasting > share * threshold && excess > share * least_noises * noise_of(w, rank);
}

/* The same, for so long or by so much that it is not a neighbour who comes and goes. */
static bool is_slow(slow_watch *w, int rank, double threshold, double excess)
{
    double window = 0;
    if (!is_late(w, rank, threshold, excess)) {
        w->since[rank] = -1;
        return false;
    }
    for (int i = 0; i < WINDOW; i++)
        window += w->durations[i];
    if (w->since[rank] < 0)
        w->since[rank] = w->clock - window;
    return rank == w->named.rank || w->clock - w->since[rank] >= lasting_seconds ||
           excess > neighbour_share * quantile(w->reference, WINDOW / 2);
}

static lap slowest_phase(const slow_watch *w, int rank)
{
    int found = LAP_OTHER;
    for (int i = 0; i < N_PHASES; i++)
        if (quantile(w->phases[rank][i], WINDOW / 2) > quantile(w->phases[rank][found], WINDOW / 2))
            found = i;
    return (lap)found;
}

slow_rank slow_watch_add(slow_watch *w, const rank_snapshot *ranks)
{
    static const slow_rank nobody = {.rank = -1};
    if (w->n < 2)
        return nobody;
    int slot = (int)(w->seen++ % WINDOW);
    for (int phase = 0; phase < N_PHASES; phase++)
        compare(w, ranks, phase, slot);
    w->reference[slot] = compare(w, ranks, N_PHASES, slot);
    note_changes(w, slot);
    note_duration(w, ranks, slot);
    if (w->seen < WINDOW)
        return nobody;
    double threshold = least_share * quantile(w->reference, WINDOW / 2), most = 0;
    if (threshold < least_seconds)
        threshold = least_seconds;
    int slowest = -1;
    for (int rank = 0; rank < w->n; rank++) {
        double excess = quantile(w->excess[rank], WINDOW / 2);
        if (is_slow(w, rank, threshold, excess) && excess > most) {
            slowest = rank;
            most = excess;
        }
    }
    w->named = slowest < 0 ? nobody : (slow_rank){slowest, slowest_phase(w, slowest), most};
    return w->named;
}
