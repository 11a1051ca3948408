/* Writes the lines one after the other into memory, then makes them fit. Numbers and texts are checked where they are
 * read: the document may be anyone's. */
#include "report/live/top_text.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/printable.h"
#include "observe/units.h"

enum { BAR = 60, SPARKS = 60, MOST_RANKS = 1024, LOG_LINES = 8, TEXT = 96 };

/* ---- Values ---- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    double n = json_is_number(value) ? json_number_value(value) : NAN;
    return fabs(n) < 1e18 ? n : NAN;
}

static double item(const json_t *array, size_t i)
{
    const json_t *value = json_array_get(array, i);
    double n = json_is_number(value) ? json_number_value(value) : NAN;
    return fabs(n) < 1e18 ? n : NAN;
}

static const char *word(const json_t *value)
{
    const char *text = json_string_value(value);
    return text ? text : "";
}

static const json_t *curve(const json_t *run, const char *name)
{
    return json_object_get(json_object_get(run, "curves"), name);
}

static double newest(const json_t *list)
{
    size_t n = json_array_size(list);
    return n > 0 ? item(list, n - 1) : NAN;
}

/* "–" for what is not known. */
static const char *as(char text[TEXT], const char *format, double value)
{
    if (isnan(value))
        snprintf(text, TEXT, "-");
    else
        snprintf(text, TEXT, format, value);
    return text;
}

static const char *bytes_text(char text[UNITS_TEXT], double value)
{
    return isnan(value) ? strcpy(text, "-") : units_bytes(text, (int64_t)value);
}

static const char *count_text(char text[UNITS_TEXT], double value)
{
    return isnan(value) ? strcpy(text, "-") : units_count(text, value);
}

static const char *duration_text(char text[UNITS_TEXT], double value)
{
    return isnan(value) ? strcpy(text, "-") : units_duration(text, fmax(0, value));
}

static const char *age_text(char text[UNITS_TEXT], double seconds)
{
    if (seconds < 60)
        snprintf(text, UNITS_TEXT, "%.0f s", floor(fmax(0, seconds)));
    else
        duration_text(text, seconds);
    return text;
}

static const char *milliseconds(char text[TEXT], double seconds)
{
    return as(text, "%.2f ms", 1e3 * seconds);
}

/* ---- Lines ---- */

static void put_head(FILE *out, const json_t *run, const json_t *live)
{
    char time[UNITS_TEXT];
    double step = live ? number(live, "step") : newest(curve(run, "step")), steps = number(live, "steps"),
           last = live ? number(live, "step_age") : number(run, "age"), left = number(live, "left");
    fprintf(out, "run %s  %s\n", word(json_object_get(run, "name")), word(json_object_get(run, "path")));
    if (isnan(step))
        fputs("no step yet", out);
    else
        fprintf(out, "step %.0f", step);
    if (!isnan(steps) && steps > 0 && !isnan(step)) {
        fprintf(out, " of %.0f (%.1f%%)", steps, 100 * step / steps);
        if (!isnan(left))
            fprintf(out, ", %s left", duration_text(time, left));
    }
    if (!isnan(last) && step > 0)
        fprintf(out, ", last step %s ago", age_text(time, last));
    fputc('\n', out);
    if (isnan(steps) || steps <= 0 || isnan(step))
        return;
    fputc('[', out);
    for (int i = 0; i < BAR; i++)
        fputc(i < BAR * step / steps ? '#' : '.', out);
    fputs("]\n", out);
}

static void put_figures(FILE *out, const json_t *run, const json_t *live)
{
    char a[TEXT], b[TEXT], c[TEXT], d[TEXT], count[UNITS_TEXT], age[UNITS_TEXT];
    const json_t *validation = json_object_get(run, "validation"), *saved = json_object_get(live, "checkpoint");
    double at = newest(json_object_get(validation, "step"));
    fprintf(out, "loss %s   validation %s", as(a, "%.5g", newest(curve(run, "loss"))),
            as(b, "%.5g", newest(json_object_get(validation, "loss"))));
    if (!isnan(at))
        fprintf(out, " (step %.0f)", at);
    fprintf(out, "   gradient norm %s   learning rate %s\n", as(c, "%.4g", newest(curve(run, "grad_norm"))),
            as(d, "%.4g", newest(curve(run, "lr"))));
    fprintf(out, "%s tokens/s   utilization %s   step %s\n", count_text(count, newest(curve(run, "tokens_per_s"))),
            as(a, "%.1f%%", 100 * newest(curve(run, "utilization"))), milliseconds(b, newest(curve(run, "seconds"))));
    if (!live)
        return;
    double step = number(saved, "step"), fails = number(saved, "failures");
    if (step > 0)
        fprintf(out, "checkpoint step %.0f, %s ago", step, age_text(age, number(saved, "age")));
    else
        fputs("no checkpoint yet", out);
    if (fails > 0)
        fprintf(out, ", %.0f FAILED", fails);
    fprintf(out, "   restarts %s\n", as(a, "%.0f", number(live, "restarts")));
    fprintf(out, "%s; %s over %s ranks, %s\n", word(json_object_get(live, "model")),
            word(json_object_get(live, "strategy")), as(b, "%.0f", number(live, "n_ranks")),
            word(json_object_get(live, "device")));
}

/* The last losses as a row of bars, from the lowest to the highest of them. */
static void put_sparks(FILE *out, const json_t *run)
{
    static const char levels[] = " .:-=+*#%@";
    const json_t *losses = curve(run, "loss");
    size_t n = json_array_size(losses), first = n > SPARKS ? n - SPARKS : 0;
    char a[TEXT], b[TEXT];
    double low = INFINITY, high = -INFINITY;
    for (size_t i = first; i < n; i++) {
        double v = item(losses, i);
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    if (!(high > low))
        return;
    fputs("loss lately  |", out);
    for (size_t i = first; i < n; i++) {
        double v = item(losses, i);
        fputc(isnan(v) ? '?' : levels[(int)((v - low) / (high - low) * (sizeof levels - 2) + 0.5)], out);
    }
    fprintf(out, "|  %s to %s\n", as(a, "%.5g", low), as(b, "%.5g", high));
}

/* Shares of the newest stretch of steps. */
static void put_times(FILE *out, const json_t *run)
{
    const json_t *laps = json_object_get(json_object_get(run, "times"), "laps"), *one;
    double all = 0;
    size_t i;
    json_array_foreach(laps, i, one) all += fmax(0, newest(json_object_get(one, "values")));
    if (!(all > 0))
        return;
    fputs("time goes to ", out);
    json_array_foreach(laps, i, one)
    {
        double share = newest(json_object_get(one, "values")) / all;
        if (share >= 0.005)
            fprintf(out, " %s %.0f%%", word(json_object_get(one, "name")), 100 * share);
    }
    fputc('\n', out);
}

static void put_slow(FILE *out, const json_t *live)
{
    const json_t *slow = json_object_get(live, "slow");
    char time[TEXT];
    if (json_is_object(slow))
        fprintf(out, "SLOW: rank %.0f, in %s, costs %s a step\n", number(slow, "rank"),
                word(json_object_get(slow, "phase")), milliseconds(time, number(slow, "seconds")));
}

/* Seconds of a rank, of work or of waits for collectives: the last four laps. */
static double rank_seconds(const json_t *rank, bool waits)
{
    static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce", "exchange"};
    const json_t *list = json_object_get(rank, "seconds"), *pair;
    double sum = 0;
    size_t i;
    json_array_foreach(list, i, pair)
    {
        bool is_wait = false;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            is_wait |= strcmp(word(json_array_get(pair, 0)), names[k]) == 0;
        sum += is_wait == waits ? fmax(0, item(pair, 1)) : 0;
    }
    return json_array_size(list) > 0 ? sum : NAN;
}

static void put_ranks(FILE *out, const json_t *run, const json_t *live)
{
    const json_t *ranks = json_object_get(run, "ranks"), *places = json_object_get(live, "places"), *rank;
    size_t i;
    if (json_array_size(ranks) == 0)
        return;
    fprintf(out, "\n%5s %5s %9s %12s %7s %12s %12s  %s\n", "rank", "node", "step", "memory peak", "of plan",
            live ? "busy a step" : "busy in all", live ? "waits" : "waits in all", live ? "last collective" : "");
    json_array_foreach(ranks, i, rank)
    {
        const json_t *place = json_array_get(places, i);
        char step[TEXT], node[TEXT], bytes[UNITS_TEXT], share[TEXT], busy[TEXT], waits[TEXT];
        double planned = number(rank, "planned"), taken = number(rank, "measured");
        if (i == MOST_RANKS) {
            fprintf(out, "... and %zu more\n", json_array_size(ranks) - i);
            break;
        }
        fprintf(out, "%5zu %5s %9s %12s %7s %12s %12s  %s\n", i, as(node, "%.0f", item(place, 5)),
                as(step, "%.0f", item(place, 0)), bytes_text(bytes, taken),
                as(share, "%.0f%%", planned > 0 ? 100 * taken / planned : NAN),
                milliseconds(busy, rank_seconds(rank, false)), milliseconds(waits, rank_seconds(rank, true)),
                word(json_array_get(place, 2)));
    }
}

static void put_gpus(FILE *out, const json_t *live)
{
    const json_t *gpus = json_object_get(live, "gpus"), *gpu;
    size_t i;
    if (json_array_size(gpus) == 0)
        return;
    fprintf(out, "\n%5s %6s %12s %7s %8s %8s %10s\n", "rank", "busy", "GPU memory", "heat", "power", "limit",
            "SM clock");
    json_array_foreach(gpus, i, gpu)
    {
        char busy[TEXT], bytes[UNITS_TEXT], heat[TEXT], power[TEXT], limit[TEXT], clock[TEXT];
        fprintf(out, "%5.0f %6s %12s %7s %8s %8s %10s\n", number(gpu, "rank"),
                as(busy, "%.0f%%", 100 * number(gpu, "utilization")), bytes_text(bytes, number(gpu, "memory_used")),
                as(heat, "%.0f C", number(gpu, "celsius")), as(power, "%.0f W", number(gpu, "watts")),
                as(limit, "%.0f W", number(gpu, "watts_limit")), as(clock, "%.0f MHz", number(gpu, "sm_hertz") / 1e6));
    }
}

static void put_log(FILE *out, const json_t *live)
{
    const json_t *log = json_object_get(live, "log");
    size_t n = json_array_size(log);
    if (n > 0)
        fputc('\n', out);
    for (size_t i = n > LOG_LINES ? n - LOG_LINES : 0; i < n; i++) {
        const json_t *line = json_array_get(log, i);
        const char *time = word(json_array_get(line, 0));
        fprintf(out, "%.8s rank %.0f %s%s\n", strlen(time) > 19 ? time + 11 : time, item(line, 1),
                strcmp(word(json_array_get(line, 2)), "warning") == 0 ? "warning: " : "",
                word(json_array_get(line, 3)));
    }
}

/* Of a run that does not answer: how it ended, and what is missing. */
static void put_end(FILE *out, const json_t *run)
{
    const json_t *one, *end = json_array_get(json_object_get(run, "verdict"), 0);
    size_t i;
    if (json_is_object(end))
        fprintf(out, "\n%s %s\n", word(json_object_get(end, "question")), word(json_object_get(end, "text")));
    json_array_foreach(json_object_get(run, "troubles"), i, one) fprintf(out, "note: %s\n", word(one));
}

/* ---- Fitting ---- */

/* Cuts lines and their number, in place. A character of several bytes counts once. */
static void fit(char *text, int columns, int rows)
{
    char *to = text;
    int column = 0, row = 0;
    for (const char *p = text; *p; p++) {
        bool continues = ((unsigned char)*p & 0xC0) == 0x80;
        if (*p == '\n') {
            column = 0;
            if (rows > 0 && ++row == rows)
                break;
        } else if (!continues && ++column > columns && columns > 0) {
            continue;
        } else if (continues && columns > 0 && column > columns) {
            continue;
        }
        *to++ = *p;
    }
    *to = '\0';
}

fsdp_status top_text(const json_t *document, int columns, int rows, char **text)
{
    const json_t *run = json_array_get(json_object_get(document, "runs"), 0), *live = json_object_get(document, "live");
    char *raw = NULL;
    size_t bytes;
    *text = NULL;
    if (!json_is_object(run) || (live && !json_is_object(live)))
        return error_set(FSDP_ERR_INPUT, "what came is not a run; is it the port of --dashboard?");
    FILE *out = open_memstream(&raw, &bytes);
    if (!out)
        return error_set(FSDP_ERR_MEMORY, "fsdp top: out of host memory");
    put_head(out, run, live);
    put_figures(out, run, live);
    put_slow(out, live);
    put_sparks(out, run);
    put_times(out, run);
    put_ranks(out, run, live);
    put_gpus(out, live);
    put_log(out, live);
    if (!live)
        put_end(out, run);
    if (fclose(out) == 0)
        *text = printable_copy(raw, true);
    free(raw);
    if (!*text)
        return error_set(FSDP_ERR_MEMORY, "fsdp top: out of host memory");
    fit(*text, columns, rows);
    return FSDP_OK;
}
