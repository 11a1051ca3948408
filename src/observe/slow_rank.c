/* A rank's excess in a step is its busy time less the median of the other ranks'. It is late when the excess passed the
 * threshold in all but one of the last steps: a lower quantile, which single steps cannot lift. And the excess must
 * stand out from its own noise, which is how much it changes from one step to the next: on a crowded machine ranks are
 * late by turns, each for some steps.
 *
 * A rank that shares its core with another program is late by as much as that program works, until the system moves one
 * of the two: where steps are short, that may be after ten of them. Such a rank knows how long it waited for a core.
 * Another program on the sibling of its core, or on the host of a virtual machine, shows only in that all computing is
 * slower. So what is late beyond both is named at once: a phase that is slow by itself. The rest must last for a
 * second, or be more than two neighbours would cause. Waits count in full, and those of the other ranks not at all,
 * because a rank also waits for its core when a collective ends. */
#include "observe/slow_rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { WINDOW = 10, CHANGES = 64, EARLIER = 32, N_PHASES = LAP_OTHER + 1 };

/* What makes a rank late. */
typedef struct bounds {
    double share;   /* of the others' time */
    double seconds; /* at least */
    int spared;     /* steps of the window that may be below */
    bool unusual;   /* beyond what is usual for the rank */
} bounds;

/* Schedulers take a few milliseconds at random. */
static const bounds all_of_it = {0.2, 0.01, 1, false};
/* A wait may hide a step, so one more is spared. */
static const bounds unexplained = {0.12, 0.0004, 2, true};
/* Equal ranks differ by this at most: rank 0 writes files. It is usual until enough steps have shown what is. */
static const double most_usual = 0.0005;
/* Who is named stays so until the median has fallen below this part of the share and the noise. */
static const double keep_share = 0.5;
static const double least_noises = 3;    /* how many times its noise the excess is */
static const double lasting_seconds = 1; /* that a neighbour's share of the core must last, */
static const double neighbour_share = 2; /* and what two of them make of the others' time */

typedef struct series {
    double last[WINDOW];
    double changes[CHANGES]; /* by how much it differed from the step before */
    double earlier[EARLIER]; /* before the window, while the rank was not named */
    int64_t n_earlier;
} series;

struct slow_watch {
    int n;
    int64_t seen;
    slow_rank named;
    double *room;                       /* (n) to sort in */
    double reference[WINDOW];           /* the median busy time of all ranks, by step */
    double usual_step;                  /* their median */
    double durations[WINDOW];           /* seconds of each step, waits and all */
    double clock;                       /* their sum since the first */
    double *since;                      /* (n) on that clock: when the rank began to be late; below 0: it is not */
    series *excess;                     /* (n) */
    series *own;                        /* (n) the same without what neighbours explain */
    double (*phases)[N_PHASES][WINDOW]; /* (n) the excess of each phase */
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
        w->own = calloc((size_t)n_ranks, sizeof *w->own);
        w->since = calloc((size_t)n_ranks, sizeof *w->since);
        for (int i = 0; w->since && i < n_ranks; i++)
            w->since[i] = -1;
    }
    if (w && w->room && w->excess && w->phases && w->own && w->since)
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
    free(w->own);
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
    int at = 0, end = n - 1;
    while (at < end) {
        int middle = (at + end) / 2;
        if (sorted[middle] < value)
            at = middle + 1;
        else
            end = middle;
    }
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

/* Puts what one phase, or all together (N_PHASES), took into `room`, in order. */
static void sort_seconds(slow_watch *w, const rank_snapshot *ranks, int phase)
{
    for (int rank = 0; rank < w->n; rank++)
        w->room[rank] = seconds_of(&ranks[rank], phase);
    qsort(w->room, (size_t)w->n, sizeof *w->room, by_value);
}

static void series_add(series *s, int64_t seen, bool named, double value)
{
    int slot = (int)(seen % WINDOW), before = (slot + WINDOW - 1) % WINDOW;
    if (seen >= WINDOW && !named)
        s->earlier[s->n_earlier++ % EARLIER] = s->last[slot];
    if (seen > 0)
        s->changes[(seen - 1) % CHANGES] = fabs(value - s->last[before]);
    s->last[slot] = value;
}

/* Seconds by which a slower core explains that the rank is late: forward and backward then take longer alike. */
static double slower_core(const slow_watch *w, int rank, const rank_snapshot *r, int slot, double others)
{
    static const lap computing[] = {LAP_FORWARD, LAP_BACKWARD};
    double least = INFINITY;
    for (int i = 0; i < 2; i++) {
        double excess = w->phases[rank][computing[i]][slot], usual = r->seconds[computing[i]] - excess;
        if (usual > 0)
            least = fmin(least, excess / usual);
    }
    return isfinite(least) ? fmax(0, least) * others : 0;
}

/* Compares the ranks in this step. */
static void compare(slow_watch *w, const rank_snapshot *ranks)
{
    int slot = (int)(w->seen % WINDOW);
    for (int phase = 0; phase < N_PHASES; phase++) {
        sort_seconds(w, ranks, phase);
        for (int rank = 0; rank < w->n; rank++) {
            double own = ranks[rank].seconds[phase];
            w->phases[rank][phase][slot] = own - median_without(w->room, w->n, own);
        }
    }
    sort_seconds(w, ranks, N_PHASES);
    for (int rank = 0; rank < w->n; rank++) {
        double busy = seconds_of(&ranks[rank], N_PHASES), excess = busy - median_without(w->room, w->n, busy);
        bool named = rank == w->named.rank;
        series_add(&w->excess[rank], w->seen, named, excess);
        double explained = ranks[rank].core_wait + slower_core(w, rank, &ranks[rank], slot, busy - excess);
        series_add(&w->own[rank], w->seen, named, ranks[rank].core_wait >= 0 ? excess - explained : 0);
    }
    w->reference[slot] = w->room[w->n / 2 - (w->n % 2 == 0)];
}

/* The value that all but `spared` of the n values pass. */
static double quantile_of(const double *values, int n, int spared)
{
    double sorted[CHANGES];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[spared];
}

static double median_of(const double window[WINDOW])
{
    return quantile_of(window, WINDOW, WINDOW / 2);
}

/* The median of the last changes. */
static double noise_of(const slow_watch *w, const series *s)
{
    int n = w->seen - 1 < CHANGES ? (int)(w->seen - 1) : CHANGES;
    return quantile_of(s->changes, n, n / 2);
}

static void note_duration(slow_watch *w, const rank_snapshot *first, int slot)
{
    double seconds = 0;
    for (int i = 0; i < LAP_COUNT; i++)
        seconds += first->seconds[i];
    w->durations[slot] = seconds;
    w->clock += seconds;
}

static double usual_of(const series *s)
{
    int n = s->n_earlier < EARLIER ? (int)s->n_earlier : EARLIER;
    return n < WINDOW ? most_usual : fmin(most_usual, fmax(0, quantile_of(s->earlier, n, n / 2)));
}

static int n_above(const double window[WINDOW], double value)
{
    int n = 0;
    for (int i = 0; i < WINDOW; i++)
        n += window[i] > value;
    return n;
}

/* Late in nearly all of the last steps, and by more than it varies. For most ranks the first comparison says no:
 * sorting the windows of a thousand ranks in every step would take milliseconds. */
static bool is_late(const slow_watch *w, const series *s, bool named, bounds least)
{
    int needed = WINDOW - (named ? WINDOW / 2 : least.spared);
    double share = named ? keep_share : 1, threshold = fmax(least.seconds, share * least.share * w->usual_step);
    if (n_above(s->last, threshold) < needed)
        return false;
    double usual = least.unusual ? usual_of(s) : 0;
    return n_above(s->last, usual + threshold) >= needed &&
           median_of(s->last) > usual + share * least_noises * noise_of(w, s);
}

/* The same, for so long or by so much that it is not a neighbour who comes and goes. */
static bool outlasts_neighbours(slow_watch *w, int rank)
{
    double window = 0;
    if (!is_late(w, &w->excess[rank], rank == w->named.rank, all_of_it)) {
        w->since[rank] = -1;
        return false;
    }
    for (int i = 0; i < WINDOW; i++)
        window += w->durations[i];
    if (w->since[rank] < 0)
        w->since[rank] = w->clock - window;
    return rank == w->named.rank || w->clock - w->since[rank] >= lasting_seconds ||
           median_of(w->excess[rank].last) > neighbour_share * w->usual_step;
}

static bool is_slow(slow_watch *w, int rank)
{
    bool outlasts = outlasts_neighbours(w, rank);
    return outlasts || is_late(w, &w->own[rank], rank == w->named.rank, unexplained);
}

static lap slowest_phase(const slow_watch *w, int rank)
{
    int found = LAP_OTHER;
    for (int i = 0; i < N_PHASES; i++)
        if (median_of(w->phases[rank][i]) > median_of(w->phases[rank][found]))
            found = i;
    return (lap)found;
}

slow_rank slow_watch_add(slow_watch *w, const rank_snapshot *ranks)
{
    static const slow_rank nobody = {.rank = -1};
    if (w->n < 2)
        return nobody;
    compare(w, ranks);
    note_duration(w, ranks, (int)(w->seen++ % WINDOW));
    if (w->seen < WINDOW)
        return nobody;
    w->usual_step = median_of(w->reference);
    double most = 0;
    int slowest = -1;
    for (int rank = 0; rank < w->n; rank++) {
        double excess = is_slow(w, rank) ? median_of(w->excess[rank].last) : 0;
        if (excess > most) {
            slowest = rank;
            most = excess;
        }
    }
    w->named = slowest < 0 ? nobody : (slow_rank){slowest, slowest_phase(w, slowest), most};
    return w->named;
}
