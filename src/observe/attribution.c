/* Sums up what ranks have measured. */
#include "observe/attribution.h"

#include <math.h>

static void spread_add(lap_spread *s, int rank, double seconds)
{
    if (rank == 0 || seconds < s->min)
        s->min = seconds;
    if (rank == 0 || seconds > s->max) {
        s->max = seconds;
        s->rank = rank;
    }
    s->mean += seconds;
}

/* How much longer than the mean the rank was in each phase; the greatest counts. */
static lap longest_phase(const attribution *a, const rank_snapshot *r)
{
    lap found = LAP_OTHER;
    double most = 0;
    for (int i = 0; i <= LAP_OTHER; i++) {
        double excess = r->seconds[i] - a->laps[i].mean;
        if (excess > most) {
            most = excess;
            found = (lap)i;
        }
    }
    return found;
}

attribution attribution_of(const rank_snapshot *ranks, int n)
{
    attribution a = {.n_ranks = n, .slow.rank = -1};
    double most = -1;
    for (int rank = 0; rank < n; rank++) {
        double exposed = 0, busy = 0;
        for (int i = 0; i < LAP_COUNT; i++) {
            spread_add(&a.laps[i], rank, ranks[rank].seconds[i]);
            *(i > LAP_OTHER ? &exposed : &busy) += ranks[rank].seconds[i];
        }
        spread_add(&a.exposed, rank, exposed);
        spread_add(&a.core_wait, rank, fmax(0, ranks[rank].core_wait));
        if (busy > most) {
            most = busy;
            a.waited_for = rank;
        }
    }
    for (int i = 0; i < LAP_COUNT; i++)
        a.laps[i].mean /= n;
    a.exposed.mean /= n;
    a.core_wait.mean /= n;
    a.waited_phase = longest_phase(&a, &ranks[a.waited_for]);
    return a;
}
