/* One period is laid out in advance: each position goes to the source that lags its share the most. */
#include "data/mix.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

/* Whole shares that make a period: rounded down, then one more for the largest remainders. */
static fsdp_status make_shares(const double *weights, mix *m)
{
    double sum = 0, rest[MIX_MAX];
    int64_t left = MIX_PERIOD;
    for (int i = 0; i < m->n; i++) {
        if (!(weights[i] > 0) || !isfinite(weights[i]))
            return error_set(FSDP_ERR_INPUT, "a source has weight %g: weights are positive", weights[i]);
        sum += weights[i];
    }
    for (int i = 0; i < m->n; i++) {
        double exact = weights[i] / sum * MIX_PERIOD;
        m->shares[i] = (int64_t)exact;
        rest[i] = exact - (double)m->shares[i];
        left -= m->shares[i];
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < m->n; i++)
            most = rest[i] > rest[most] ? i : most;
        m->shares[most]++;
        rest[most] = -1;
    }
    for (int i = 0; i < m->n; i++)
        if (m->shares[i] == 0)
            return error_set(FSDP_ERR_INPUT, "a weight of %g, of %g in all, is less than a %dth: leave that source out",
                             weights[i], sum, MIX_PERIOD);
    return FSDP_OK;
}

fsdp_status mix_make(const double *weights, int n, mix *out)
{
    int64_t given[MIX_MAX] = {0};
    *out = (mix){.n = n};
    if (n < 1 || n > MIX_MAX)
        return error_set(FSDP_ERR_INPUT, "%d sources to mix; from 1 to %d are possible", n, MIX_MAX);
    FSDP_TRY(make_shares(weights, out));
    out->source = malloc(MIX_PERIOD * sizeof *out->source);
    out->before = malloc(MIX_PERIOD * sizeof *out->before);
    if (out->source == NULL || out->before == NULL) {
        mix_free(out);
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    }
    for (int64_t t = 0; t < MIX_PERIOD; t++) {
        int next = 0;
        int64_t lag = INT64_MIN;
        for (int i = 0; i < n; i++) {
            int64_t own = (t + 1) * out->shares[i] - given[i] * MIX_PERIOD;
            if (own > lag && given[i] < out->shares[i]) {
                lag = own;
                next = i;
            }
        }
        out->source[t] = (uint8_t)next;
        out->before[t] = (int32_t)given[next]++;
    }
    return FSDP_OK;
}

void mix_free(mix *m)
{
    free(m->source);
    free(m->before);
    m->source = NULL;
    m->before = NULL;
}

void mix_at(const mix *m, int64_t position, int *source, int64_t *own)
{
    int64_t t = position % MIX_PERIOD;
    *source = m->source[t];
    *own = position / MIX_PERIOD * m->shares[*source] + m->before[t];
}

int64_t mix_count(const mix *m, int source, int64_t position)
{
    int64_t count = position / MIX_PERIOD * m->shares[source];
    for (int64_t t = 0; t < position % MIX_PERIOD; t++)
        count += m->source[t] == source;
    return count;
}
