/* What flight files mean, in words: group by group, who is behind, where the others wait, and whose calls differ. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fsdp/debug.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "base/text/printable.h"
#include "observe/flight.h"
#include "observe/table.h"
#include "observe/units.h"

enum { REASONS = 4, COMPARED = 1024, TABLE_RANKS = 64, NAMED_RANKS = 16, WHAT_BYTES = 256 };

/* Files of one incident are written within so many seconds. */
static const double same_incident_seconds = 60;
/* Whoever waits for less waits as ranks do in a healthy step. */
static const double long_wait_seconds = 1;

typedef struct words {
    FILE *out;
    const flights *f;
    bool failed; /* some rank says why its file was written */
    int n_findings;
} words;

static void __attribute__((format(printf, 2, 3))) say(words *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(w->out, format, arguments);
    va_end(arguments);
}

static const char *clean(const char *text, char *out)
{
    printable(text, false, out, 64);
    return out;
}

/* "ranks 0, 2 and 3". `is_in` has an entry for each of n ranks. */
static void say_ranks(words *w, const bool *is_in, int n)
{
    int count = 0, said = 0;
    for (int i = 0; i < n; i++)
        count += is_in[i];
    say(w, count == 1 ? "rank" : "ranks");
    for (int i = 0; i < n; i++) {
        if (!is_in[i])
            continue;
        if (said == NAMED_RANKS && count > NAMED_RANKS + 1) {
            say(w, " and %d more", count - said);
            return;
        }
        say(w, "%s%d", said == 0 ? " " : said + 1 == count ? " and " : ", ", i);
        said++;
    }
}

/* "all_gather of layers.3 (number 841 of group world, 1.20 MiB, step 17)" */
static const char *what(const ring_event *e, const flight_group *g, uint32_t sequence, char *text)
{
    char name[64], subject[64], group[64], bytes[UNITS_TEXT];
    if (!e) {
        snprintf(text, WHAT_BYTES, "call %u of group %s", sequence, clean(g->name, group));
        return text;
    }
    snprintf(text, WHAT_BYTES, "%s%s%s (number %u of group %s, %s, step %" PRId64 ")", clean(e->name, name),
             e->subject[0] ? " of " : "", clean(e->subject, subject), e->sequence, clean(g->name, group),
             units_bytes(bytes, e->bytes), e->step);
    return text;
}

static double age(const flight *f, const ring_event *e)
{
    return ((double)f->ring->written_ns - (double)e->time_ns) * 1e-9;
}

/* ---- one group ---- */

/* The sides of one group, by rank of the world; size 0: not a member, or no file. */
typedef struct circle {
    flight_group *sides; /* (world_size) */
    const flight **of;   /* (world_size) */
    bool *chosen;        /* (world_size) room for a list of ranks */
    bool *behind;        /* (world_size) said already */
    flight_group any;
    uint32_t least, most; /* calls made */
} circle;

static bool same_group(const flight_group *a, const flight_group *b)
{
    return a->serial == b->serial && a->first == b->first;
}

static void gather_sides(words *w, const flight_group *g, circle *c)
{
    c->any = *g;
    c->least = UINT32_MAX;
    c->most = 0;
    for (int i = 0; i < w->f->world_size; i++)
        c->sides[i] = (flight_group){0}, c->of[i] = NULL;
    for (int i = 0; i < w->f->n; i++) {
        const flight *f = &w->f->list[i];
        flight_group side;
        for (int slot = 0; slot < RING_GROUPS; slot++) {
            if (!flight_group_at(f, slot, &side) || !same_group(&side, g))
                continue;
            c->sides[f->rank] = side;
            c->of[f->rank] = f;
            c->least = side.called < c->least ? side.called : c->least;
            c->most = side.called > c->most ? side.called : c->most;
        }
    }
}

static bool differs(const ring_event *a, const ring_event *b)
{
    return strcmp(a->name, b->name) != 0 || strcmp(a->subject, b->subject) != 0 || a->step != b->step;
}

/* How many ranks called what `e` says, at the same number. */
static int count_same(const words *w, const circle *c, const ring_event *e)
{
    int n = 0;
    for (int rank = 0; rank < w->f->world_size; rank++) {
        const ring_event *other = c->of[rank] ? flight_call(c->of[rank], &c->any, e->sequence) : NULL;
        n += other && !differs(e, other);
    }
    return n;
}

/* The first number at which ranks called different things, most against few. */
static bool say_difference(words *w, circle *c, uint32_t sequence)
{
    const ring_event *common = NULL, *odd = NULL;
    char text[WHAT_BYTES];
    int most = 0;
    for (int rank = 0; rank < w->f->world_size; rank++) {
        const ring_event *e = c->of[rank] ? flight_call(c->of[rank], &c->any, sequence) : NULL;
        if (!e || (common && !differs(e, common)))
            continue;
        int n = count_same(w, c, e);
        if (common)
            odd = e;
        if (n > most) {
            odd = common ? common : odd;
            common = e;
            most = n;
        }
    }
    if (!odd)
        return false;
    say(w, "The calls differ. ");
    for (int round = 0; round < 2; round++) {
        const ring_event *e = round == 0 ? common : odd;
        for (int rank = 0; rank < w->f->world_size; rank++) {
            const ring_event *own = c->of[rank] ? flight_call(c->of[rank], &c->any, sequence) : NULL;
            c->chosen[rank] = own && !differs(own, e);
        }
        say_ranks(w, c->chosen, w->f->world_size);
        say(w, " called %s%s", what(e, &c->any, sequence, text), round == 0 ? ", but " : ".\n");
    }
    w->n_findings++;
    return true;
}

/* Whether calls were compared and found to differ. */
static bool compare_calls(words *w, circle *c)
{
    uint32_t from = c->least > COMPARED ? c->least - COMPARED : 1;
    for (uint32_t s = from; s <= c->least; s++)
        if (say_difference(w, c, s))
            return true;
    return false;
}

static void say_place(words *w, const flight *f)
{
    const ring_event *phase = flight_phase(f), *last = f->n ? &f->events[f->n - 1] : NULL;
    char name[64], text[UNITS_TEXT];
    if (phase)
        say(w, "; it is in phase %s, for %s", clean(phase->name, name), units_duration(text, age(f, phase)));
    if (last)
        say(w, "; its last event is %s old", units_duration(text, age(f, last)));
}

static const ring_event *call_of_any(const words *w, const circle *c, uint32_t sequence)
{
    const ring_event *e = NULL;
    for (int rank = 0; rank < w->f->world_size && !e; rank++)
        e = c->of[rank] ? flight_call(c->of[rank], &c->any, sequence) : NULL;
    return e;
}

/* It has not come to what the others are in, or stands in an earlier call: some transports let ranks pass a collective
 * that another has called and not ended. */
static void say_behind(words *w, const circle *c, int rank)
{
    const flight_group *side = &c->sides[rank];
    const flight *f = c->of[rank];
    uint32_t missing = side->ended + 1;
    char text[WHAT_BYTES];
    say(w, "rank %d is behind: it %s %s", rank,
        side->begun > side->ended ? "has not ended"
        : side->called >= missing ? "has not begun"
                                  : "has not called",
        what(call_of_any(w, c, missing), &c->any, missing, text));
    if (side->called < missing && side->called > 0)
        say(w, "; its last call there was %s", what(flight_call(f, side, side->called), side, side->called, text));
    say_place(w, f);
    say(w, ".\n");
    w->n_findings++;
}

/* It runs the collective, or has run it and waits until others have taken what it sent. */
static bool stands_in(const flight *f, const flight_group *side, uint32_t sequence)
{
    const ring_event *wait = flight_wait(f);
    if (side->begun > side->ended)
        return side->ended + 1 == sequence;
    return wait && wait->sequence == sequence && wait->serial == side->serial && wait->first == side->first;
}

/* Who stands in the collective `sequence`, and for how long. */
static bool say_waiting(words *w, circle *c, uint32_t sequence)
{
    double longest = 0;
    int n = 0;
    const ring_event *e = NULL;
    char text[WHAT_BYTES], seconds[UNITS_TEXT];
    for (int rank = 0; rank < w->f->world_size; rank++) {
        const flight *f = c->of[rank];
        const flight_group *side = &c->sides[rank];
        c->chosen[rank] = f && !c->behind[rank] && stands_in(f, side, sequence);
        const ring_event *call = c->chosen[rank] ? flight_call(f, side, sequence) : NULL;
        if (call && age(f, call) > longest)
            longest = age(f, call);
        e = call ? call : e;
        n += c->chosen[rank];
    }
    if (n == 0)
        return false;
    say_ranks(w, c->chosen, w->f->world_size);
    say(w, " wait%s in %s, for %s.\n", n == 1 ? "s" : "", what(e, &c->any, sequence, text),
        units_duration(seconds, longest));
    return true;
}

/* The longest that any rank has been in a collective of the group. */
static double longest_wait(const words *w, const circle *c)
{
    double longest = 0;
    for (int rank = 0; rank < w->f->world_size; rank++) {
        const flight *f = c->of[rank];
        const flight_group *side = &c->sides[rank];
        const ring_event *e = f && side->begun > side->ended ? flight_call(f, side, side->ended + 1) : NULL;
        if (e && age(f, e) > longest)
            longest = age(f, e);
    }
    return longest;
}

/* Who has come least far, and where the others stand. */
static void judge_group(words *w, circle *c)
{
    uint32_t least = UINT32_MAX, front = 0;
    bool waiting = false;
    for (int rank = 0; rank < w->f->world_size; rank++)
        if (c->of[rank]) {
            least = c->sides[rank].begun < least ? c->sides[rank].begun : least;
            front = c->sides[rank].begun > front ? c->sides[rank].begun : front;
        }
    if (compare_calls(w, c) || (!w->failed && longest_wait(w, c) < long_wait_seconds))
        return;
    for (int rank = 0; rank < w->f->world_size; rank++) {
        c->behind[rank] = least < front && c->of[rank] && c->sides[rank].begun == least;
        if (c->behind[rank])
            say_behind(w, c, rank);
    }
    uint32_t from = least < front && least > 0 ? least : front;
    for (uint32_t s = front - from < COMPARED ? from : front; s <= front && s > 0; s++)
        waiting |= say_waiting(w, c, s);
    if (waiting && least == front && w->f->n == w->f->world_size && !w->failed)
        say(w, "All its ranks are in it: the network or the transport between them stands still.\n");
    w->n_findings += waiting;
}

static void judge_groups(words *w, circle *c)
{
    flight_group g, before;
    for (int i = 0; i < w->f->n; i++)
        for (int slot = 0; slot < RING_GROUPS; slot++) {
            bool seen = !flight_group_at(&w->f->list[i], slot, &g);
            for (int k = 0; k < i && !seen; k++)
                for (int s = 0; s < RING_GROUPS && !seen; s++)
                    seen = flight_group_at(&w->f->list[k], s, &before) && same_group(&g, &before);
            if (seen)
                continue;
            gather_sides(w, &g, c);
            judge_group(w, c);
        }
}

/* ---- the whole ---- */

static void say_missing(words *w, circle *c)
{
    int n = 0;
    for (int rank = 0, at = 0; rank < w->f->world_size; rank++) {
        c->chosen[rank] = at >= w->f->n || w->f->list[at].rank != rank;
        at += !c->chosen[rank];
        n += c->chosen[rank];
    }
    if (n == 0)
        return;
    say_ranks(w, c->chosen, w->f->world_size);
    say(w,
        " left no file: killed or stopped before %s could write one (under `fsdp run` the launcher does), or the "
        "folder is not shared between hosts.\n",
        n == 1 ? "it" : "they");
    w->n_findings++;
}

static void say_old(words *w, circle *c)
{
    int64_t newest = 0;
    int n = 0;
    for (int i = 0; i < w->f->n; i++)
        if (flight_written(&w->f->list[i]) > newest)
            newest = flight_written(&w->f->list[i]);
    memset(c->chosen, 0, (size_t)w->f->world_size * sizeof *c->chosen);
    for (int i = 0; i < w->f->n; i++) {
        const flight *f = &w->f->list[i];
        c->chosen[f->rank] = ((double)newest - (double)flight_written(f)) * 1e-9 > same_incident_seconds;
        n += c->chosen[f->rank];
    }
    if (n == 0)
        return;
    say(w, "Note: the file%s of ", n == 1 ? "" : "s");
    say_ranks(w, c->chosen, w->f->world_size);
    say(w, " %s written more than a minute before the newest: of an earlier incident, perhaps.\n",
        n == 1 ? "was" : "were");
}

/* Of ranks that failed, why; a few are enough, because one failure makes the others fail. */
static void say_reasons(words *w)
{
    int n = 0;
    for (int i = 0; i < w->f->n; i++) {
        const ring *r = w->f->list[i].ring;
        char reason[RING_REASON_BYTES], text[2 * RING_REASON_BYTES];
        memcpy(reason, r->reason, sizeof reason);
        reason[sizeof reason - 1] = 0;
        if (!reason[0] || n++ >= REASONS)
            continue;
        printable(reason, false, text, sizeof text);
        say(w, "rank %d: %s.\n", w->f->list[i].rank, text);
    }
    if (n > REASONS)
        say(w, "(and %d ranks more)\n", n - REASONS);
    w->failed = n > 0;
    w->n_findings += n > 0;
}

static fsdp_status say_table(words *w)
{
    table *t;
    char *text = NULL, name[64], age_text[UNITS_TEXT], call[WHAT_BYTES] = "";
    FSDP_TRY(table_new("rank|step|phase|calls|ended|last event|ago", &t));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < w->f->n && i < TABLE_RANKS && status == FSDP_OK; i++) {
        const flight *f = &w->f->list[i];
        const ring_event *phase = flight_phase(f), *last = f->n ? &f->events[f->n - 1] : NULL;
        static const char *const moments[] = {"begins", "ends", "called"};
        char a[64], b[64];
        if (last)
            snprintf(call, sizeof call, "%s%s%s %s", clean(last->name, a), last->subject[0] ? " of " : "",
                     clean(last->subject, b), moments[last->moment]);
        for (char *bar = call; (bar = strchr(bar, '|'));)
            *bar = '/';
        status =
            table_row(t, "%d|%" PRId64 "|%s|%u|%u|%s|%s", f->rank, (int64_t)f->ring->step,
                      phase ? clean(phase->name, name) : "", (unsigned)f->ring->groups[0].called,
                      (unsigned)f->ring->groups[0].ended, call, last ? units_duration(age_text, age(f, last)) : "");
    }
    if (status == FSDP_OK)
        status = table_text(t, &text);
    if (status == FSDP_OK)
        say(w, "\n%s\n", text);
    if (status == FSDP_OK && w->f->n > TABLE_RANKS)
        say(w, "(%d ranks more)\n", w->f->n - TABLE_RANKS);
    free(text);
    table_free(t);
    return status;
}

static fsdp_status describe(words *w, const char *folder)
{
    size_t n = (size_t)w->f->world_size;
    circle c = {.sides = calloc(n, sizeof *c.sides),
                .of = calloc(n, sizeof *c.of),
                .chosen = calloc(n, sizeof(bool)),
                .behind = calloc(n, sizeof(bool))};
    fsdp_status status = FSDP_OK;
    char when[32], name[64];
    if (!c.sides || !c.of || !c.chosen || !c.behind) {
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
    } else {
        time_t seconds = (time_t)(flight_written(&w->f->list[0]) / 1000000000);
        struct tm utc;
        if (!gmtime_r(&seconds, &utc) || !strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &utc))
            when[0] = 0;
        say(w, "%d of %d ranks left a flight file; that of rank %d is of %s, host %s.\n", w->f->n, w->f->world_size,
            w->f->list[0].rank, when, clean(w->f->list[0].ring->host, name));
        say_reasons(w);
        judge_groups(w, &c);
        say_missing(w, &c);
        if (w->n_findings == 0)
            say(w, "No rank was behind and no call differs: the files were written while the job made progress.\n");
        say_old(w, &c);
        status = say_table(w);
    }
    free(c.sides);
    free(c.of);
    free(c.chosen);
    free(c.behind);
    return status;
}

fsdp_status fsdp_debug_report(const char *folder, char **text)
{
    flights f;
    size_t bytes;
    *text = NULL;
    FSDP_TRY(flights_open(folder, &f));
    words w = {.out = open_memstream(text, &bytes), .f = &f};
    fsdp_status status = w.out ? describe(&w, folder) : error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
    if (w.out && fclose(w.out) != 0 && status == FSDP_OK)
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
    flights_close(&f);
    if (status != FSDP_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
