/* Questions and their answers. The thresholds are rules of thumb, and the sentences name the numbers. */
#include "report/verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "observe/units.h"

enum { WINDOW = LOSS_WINDOW, TEXT_BYTES = 400 };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts `values`. NAN: there is none. */
static double median(double *values, int64_t n)
{
    if (n == 0)
        return NAN;
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return values[n / 2];
}

/* A jump of six times the usual distance from the median of the window, and of a tenth of it at least. */
static bool jumps(const double *window, double loss)
{
    double sorted[WINDOW], distances[WINDOW];
    for (int i = 0; i < WINDOW; i++)
        if (loss <= window[i])
            return false;
    memcpy(sorted, window, sizeof sorted);
    double middle = median(sorted, WINDOW);
    for (int i = 0; i < WINDOW; i++)
        distances[i] = fabs(window[i] - middle);
    double usual = 1.5 * median(distances, WINDOW);
    return loss - middle > 6 * usual && loss - middle > 0.1 * fabs(middle);
}

void loss_watch_add(loss_watch *w, int64_t step, double loss)
{
    loss_spikes *found = &w->found;
    bool finite = isfinite(loss), spike = finite && w->seen >= WINDOW && jumps(w->window, loss);
    found->n += spike;
    found->n_not_finite += !finite;
    if ((spike || !finite) && found->n_steps < (int)(sizeof found->steps / sizeof *found->steps))
        found->steps[found->n_steps++] = step;
    if (finite)
        w->window[w->seen++ % WINDOW] = loss;
}

void loss_spikes_find(const run_files *r, loss_spikes *out)
{
    loss_watch watch = {0};
    for (int64_t i = 0; i < r->n_rows; i++)
        loss_watch_add(&watch, r->rows[i].step, r->rows[i].figures[FIGURE_LOSS]);
    *out = watch.found;
}

static void answer(json_t *list, const char *question, const char *level, const char *text)
{
    json_array_append_new(list,
                          json_pack("{s:s, s:s, s:o}", "question", question, "level", level, "text", shown_text(text)));
}

/* The median of a figure over the steps after the first tenth, which make programs and fill caches. */
static double usual_figure(const run_files *r, figure which)
{
    double *values = malloc((size_t)(r->n_rows + 1) * sizeof *values);
    int64_t n = 0;
    for (int64_t i = r->n_rows / 10; values && i < r->n_rows; i++)
        if (isfinite(r->rows[i].figures[which]))
            values[n++] = r->rows[i].figures[which];
    double found = values ? median(values, n) : NAN;
    free(values);
    return found;
}

/* What rank 0 noted last, and what other ranks left when they failed or were killed. */
static void judge_end(json_t *list, const run_files *r)
{
    char text[TEXT_BYTES];
    const json_t *sessions = json_object_get(r->run, "sessions"), *why,
                 *end = json_object_get(json_array_get(sessions, json_array_size(sessions) - 1), "ended");
    const char *how = json_string_value(json_object_get(end, "how")),
               *reason = json_string_value(json_object_get(end, "reason"));
    long long step = end ? (long long)json_integer_value(json_object_get(end, "last_step"))
                         : (long long)(r->n_rows > 0 ? r->rows[r->n_rows - 1].step : 0);
    size_t i, n_failures = json_array_size(r->failures);
    if (how && strcmp(how, "finished") == 0) {
        snprintf(text, sizeof text, "It finished after step %lld.", step);
        answer(list, "Ended well?", "good", text);
    } else if (how && strcmp(how, "stopped") == 0) {
        snprintf(text, sizeof text, "It was asked to stop after step %lld, and can go on from there.", step);
        answer(list, "Ended well?", "good", text);
    } else if (how || n_failures > 0) {
        static const char first[] = "rank 0: ";
        bool named = reason && strncmp(reason, first, sizeof first - 1) == 0;
        int n = snprintf(text, sizeof text, "It failed after step %lld:%s%.300s", step,
                         !reason ? ""
                         : named ? " "
                                 : " rank 0: ",
                         reason ? reason : "");
        json_array_foreach(r->failures, i, why)
        {
            bool told = reason && strncmp(json_string_value(why), first, sizeof first - 1) == 0;
            if (n < TEXT_BYTES && !told)
                n += snprintf(text + n, sizeof text - (size_t)n, "%s %s", reason || i > 0 ? ";" : "",
                              json_string_value(why));
        }
        answer(list, "Ended well?", "bad", text);
    } else {
        answer(list, "Ended well?", "unknown",
               "The folder does not say how it ended: it still trains, or all of it was killed.");
    }
}

static void judge_speed(json_t *list, const run_files *r)
{
    char text[TEXT_BYTES];
    double share = usual_figure(r, FIGURE_UTILIZATION), seconds = usual_figure(r, FIGURE_SECONDS);
    if (!isfinite(share)) {
        answer(list, "Fast enough?", "unknown", "The metrics have no utilization to judge by.");
        return;
    }
    snprintf(
        text, sizeof text,
        "The median step takes %.4g s and reaches %.0f%% of the matrix product that was measured on these devices.%s",
        seconds, 100 * share, share >= 0.4 ? "" : " A larger batch or wider layers use the devices better.");
    answer(list, "Fast enough?", share >= 0.4 ? "good" : share >= 0.2 ? "look" : "bad", text);
}

/* Said only where a profile was at hand. */
static void judge_prediction(json_t *list, const run_files *r)
{
    char text[TEXT_BYTES];
    double predicted = usual_figure(r, FIGURE_PREDICTED), exposed = usual_figure(r, FIGURE_PREDICTED_EXPOSED),
           seconds = usual_figure(r, FIGURE_SECONDS);
    if (!(predicted > 0) || !(seconds > 0))
        return;
    double off = predicted / seconds - 1;
    int n =
        snprintf(text, sizeof text, "A step of %.4g s was predicted from kernel times, %.4g s were measured (%+.0f%%)",
                 predicted, seconds, 100 * off);
    if (isfinite(exposed))
        n += snprintf(text + n, sizeof text - (size_t)n, "; %.3g s of it would be exposed communication", exposed);
    snprintf(text + n, sizeof text - (size_t)n, ".%s",
             off < -0.1 ? " Something takes longer than its kernels: data, waiting ranks, other load." : "");
    answer(list, "As predicted?", fabs(off) <= 0.1 ? "good" : "look", text);
}

static void judge_communication(json_t *list, const run_files *r)
{
    char text[TEXT_BYTES];
    double all = 0, exposed = 0, laps[LAP_COUNT] = {0};
    int most = LAP_ALL_GATHER;
    for (int64_t i = r->n_rows / 10; i < r->n_rows; i++) {
        exposed += r->rows[i].exposed;
        for (int k = 0; k < LAP_COUNT; k++) {
            laps[k] += r->rows[i].laps[k];
            all += r->rows[i].laps[k];
        }
    }
    for (int k = LAP_ALL_GATHER; k < LAP_COUNT; k++)
        most = laps[k] > laps[most] ? k : most;
    if (all <= 0) {
        answer(list, "Communication exposed?", "unknown", "The metrics do not say where the time went.");
        return;
    }
    double share = exposed / all;
    int n = snprintf(text, sizeof text, "Ranks stand still for communication, or for each other, %.1f%% of the time",
                     100 * share);
    if (laps[most] >= 0.005 * all)
        snprintf(text + n, sizeof text - (size_t)n, ", most of it for %s (%.1f%%).", lap_name((lap)most),
                 100 * laps[most] / all);
    else
        snprintf(text + n, sizeof text - (size_t)n, ".");
    answer(list, "Communication exposed?", share < 0.1 ? "good" : share < 0.25 ? "look" : "bad", text);
}

static double number_of(const json_t *object, const char *key)
{
    double value = json_number_value(json_object_get(object, key));
    return value > 0 && value < 1e18 ? value : 0; /* a number of bytes that can be one */
}

static void judge_memory(json_t *list, const run_files *r)
{
    char text[TEXT_BYTES], a[UNITS_TEXT], b[UNITS_TEXT], c[UNITS_TEXT];
    const json_t *ranks = json_object_get(r->ranks, "ranks");
    double planned = 0, peak = 0, left = INFINITY;
    int at = 0;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        double taken = number_of(rank, "measured");
        if (taken > peak) {
            peak = taken;
            planned = number_of(rank, "planned");
            at = (int)i;
        }
        left = fmin(left, number_of(rank, "available"));
    }
    if (peak <= 0) {
        answer(list, "Headroom?", "unknown", "The memory of each rank is not known.");
        return;
    }
    int n = snprintf(text, sizeof text, "Rank %d took the most, %s of %s planned", at, units_bytes(a, (int64_t)peak),
                     units_bytes(b, (int64_t)planned));
    bool known = isfinite(left) && left > 0, over = peak > planned * 1.001;
    if (known)
        snprintf(text + n, sizeof text - (size_t)n, "; %s were free at the end%s.", units_bytes(c, (int64_t)left),
                 over ? ", and the plan was passed" : "");
    else
        snprintf(text + n, sizeof text - (size_t)n, "%s.", over ? "; the plan was passed" : "");
    double share = known ? left / (left + peak) : 1;
    answer(list, "Headroom?", over || share < 0.03 ? "bad" : !known ? "unknown" : share < 0.1 ? "look" : "good", text);
}

/* Mean of the finite losses among rows first .. last - 1. */
static double mean_loss(const run_files *r, int64_t first, int64_t last)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = first; i < last; i++)
        if (isfinite(r->rows[i].figures[FIGURE_LOSS])) {
            sum += r->rows[i].figures[FIGURE_LOSS];
            n++;
        }
    return n > 0 ? sum / (double)n : NAN;
}

static void judge_loss(json_t *list, const run_files *r, const loss_spikes *spikes)
{
    char text[TEXT_BYTES];
    int64_t part = r->n_rows / 10 + 1;
    if (r->n_rows < 2) {
        answer(list, "Loss healthy?", "unknown", "There are too few steps to tell.");
        return;
    }
    double first = mean_loss(r, 0, part), last = mean_loss(r, r->n_rows - part, r->n_rows), best = INFINITY, now = NAN;
    for (int64_t i = 0; i < r->n_validations; i++) {
        now = r->validations[i].loss;
        best = fmin(best, now);
    }
    bool grows = !(last < first), overfits = isfinite(best) && now > best + 0.02 * fabs(best);
    int n = snprintf(text, sizeof text, "From %.4g to %.4g over %lld steps; %lld spike%s", first, last,
                     (long long)r->n_rows, (long long)spikes->n, spikes->n == 1 ? "" : "s");
    if (spikes->n_not_finite > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %lld not finite", (long long)spikes->n_not_finite);
    n += snprintf(text + n, sizeof text - (size_t)n, ".%s", grows ? " It does not fall." : "");
    if (isfinite(best))
        snprintf(text + n, sizeof text - (size_t)n, " Validation: %.4g at best, %.4g at the end%s.", best, now,
                 overfits ? ": it rises again, so the run is too long for its data" : "");
    bool bad = grows || spikes->n_not_finite > 0;
    answer(list, "Loss healthy?", bad ? "bad" : spikes->n > 0 || overfits ? "look" : "good", text);
}

static void judge_ranks(json_t *list, const run_files *r)
{
    char text[TEXT_BYTES];
    int64_t named = 0, last = -1;
    for (int64_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].slow_rank >= 0) {
            named++;
            last = i;
        }
    if (r->n_rows == 0)
        answer(list, "Slowest rank?", "unknown", "There are no steps to tell by.");
    else if (last < 0)
        answer(list, "Slowest rank?", "good", "No rank held the others up for several steps.");
    else {
        snprintf(text, sizeof text, "A rank held the others up in %lld of %lld steps; the last was rank %d, in %s.",
                 (long long)named, (long long)r->n_rows, r->rows[last].slow_rank, lap_name(r->rows[last].slow_phase));
        answer(list, "Slowest rank?", named * 10 > r->n_rows ? "bad" : "look", text);
    }
}

json_t *verdict_of(const run_files *r, const loss_spikes *spikes)
{
    json_t *list = json_array();
    if (!list)
        return NULL;
    judge_end(list, r);
    judge_speed(list, r);
    judge_communication(list, r);
    judge_memory(list, r);
    judge_loss(list, r, spikes);
    judge_ranks(list, r);
    judge_prediction(list, r);
    return list;
}
