/* Counts nodes in, gives out ranks, and decides what follows a failure. */
#include "meet/rounds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* Nodes that were in the last round come again within moments, or not soon: nobody waits for them for long. */
static const double again_call_seconds = 2;
/* A launcher that is connected but does not end its ranks is not waited for. */
static const double straggler_seconds = 45;
/* The first restart follows at once; each of those soon after it waits twice as long as the one before. */
static const double backoff_seconds = 1, most_backoff_seconds = 30, calm_seconds = 120;

enum { RESTARTS_KEPT = 1024 };

/* Where a rank was when its launcher last said so. */
typedef struct rank_beat {
    int64_t beats, step;
    int64_t core_wait; /* microseconds that it was ready to run and had no core */
    bool waits;
    double since; /* when beats last changed; later by the time for which it has had no core since */
    char place[ROUNDS_PLACE_BYTES];
} rank_beat;

typedef struct round_node {
    struct round_node *next, *previous;
    store_guest *guest;
    round_join join;
    uint64_t came; /* in the order of joins */
    bool joined, member, done;
    int first_rank;
    double heard;     /* when it last said where its ranks are */
    rank_beat *ranks; /* (join.n_ranks), NULL: it has not said */
} round_node;

typedef enum rounds_state { GATHERING, RUNNING, OVER, FINISHED } rounds_state;

struct rounds {
    store *store;
    rounds_policy policy;
    rounds_state state;
    round_node *nodes;
    int n_nodes, n_joined, n_members, n_done;
    uint64_t n_joins;
    int round, n_restarts, first_world_size; /* round: of the present or last one, -1 before the first */
    double gathering_since, last_join, not_before;
    double restarts[RESTARTS_KEPT]; /* when; a ring */
    int quick_restarts;             /* in a row */
    round_stop verdict;             /* when OVER */
    double next_look, examined_at;  /* for ranks that hang; examined_at: 0 while none does */
    char examined[WIRE_TEXT_BYTES]; /* why */
};

double rounds_patience(double join_timeout_seconds)
{
    const double least = 2, most = 20;
    return join_timeout_seconds < least ? least : join_timeout_seconds < most ? join_timeout_seconds : most;
}

rounds *rounds_new(store *s, const rounds_policy *policy)
{
    rounds *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->store = s;
    r->policy = *policy;
    r->round = -1;
    return r;
}

void rounds_free(rounds *r)
{
    while (r && r->nodes) {
        round_node *n = r->nodes;
        r->nodes = n->next;
        free(n->ranks);
        free(n);
    }
    free(r);
}

static void tell_stop(rounds *r, round_node *n, const round_stop *stop)
{
    wire_body body = {0};
    round_stop_put(&body, stop);
    store_tell(r->store, n->guest, WIRE_STOP, &body);
    wire_free(&body);
}

/* ---- the end of a round ---- */

static int recent_restarts(const rounds *r, double now)
{
    int n = 0, kept = r->n_restarts < RESTARTS_KEPT ? r->n_restarts : RESTARTS_KEPT;
    if (r->policy.restart_window_seconds <= 0)
        return r->n_restarts;
    for (int i = 0; i < kept; i++)
        n += now - r->restarts[i] < r->policy.restart_window_seconds;
    return n;
}

/* When the next round may begin at the earliest. */
static double after_backoff(rounds *r, double now)
{
    double before = r->n_restarts ? r->restarts[(r->n_restarts - 1) % RESTARTS_KEPT] : -calm_seconds;
    r->quick_restarts = now - before < calm_seconds ? r->quick_restarts + 1 : 0;
    double wait = r->quick_restarts ? backoff_seconds : 0;
    for (int i = 1; i < r->quick_restarts && wait < most_backoff_seconds; i++)
        wait *= 2;
    return now + (wait < most_backoff_seconds ? wait : most_backoff_seconds);
}

static void report(rounds *r, const char *reason, const char *what_follows)
{
    if (r->policy.report)
        r->policy.report(r->policy.context, r->round, reason, what_follows);
}

/* Tells all nodes, members and those that wait. */
static void stop_all(rounds *r, const round_stop *stop, double now)
{
    r->state = stop->verdict == ROUND_OVER ? OVER : GATHERING;
    r->gathering_since = r->last_join = now;
    r->n_members = r->n_done = 0;
    if (stop->verdict == ROUND_OVER)
        r->verdict = *stop;
    for (round_node *n = r->nodes; n; n = n->next) {
        bool told = n->member || stop->verdict == ROUND_OVER;
        n->member = n->done = false;
        if (told)
            tell_stop(r, n, stop);
    }
}

static void fail_round(rounds *r, const char *reason, int exit_code, bool is_final, double now)
{
    round_stop stop = {.round = r->round, .exit_code = exit_code ? exit_code : 1};
    char follows[64];
    snprintf(stop.reason, sizeof stop.reason, "%s", reason);
    if (is_final || recent_restarts(r, now) >= r->policy.max_restarts) {
        stop.verdict = ROUND_OVER;
        snprintf(follows, sizeof follows, "%s",
                 is_final || r->policy.max_restarts == 0 ? "end" : "end: no restart left");
    } else {
        stop.verdict = ROUND_AGAIN;
        r->not_before = after_backoff(r, now);
        r->restarts[r->n_restarts++ % RESTARTS_KEPT] = now;
        snprintf(follows, sizeof follows, "restart %d of %d", r->n_restarts, r->policy.max_restarts);
        snprintf(stop.reason, sizeof stop.reason, "%.900s; starting all ranks again (%d of %d)", reason, r->n_restarts,
                 r->policy.max_restarts);
    }
    report(r, reason, follows);
    stop_all(r, &stop, now);
}

/* ---- the beginning of one ---- */

/* Those with a number of their own in its order, then the others in the order of coming. */
static int compare_nodes(const void *a, const void *b)
{
    const round_node *x = *(round_node *const *)a, *y = *(round_node *const *)b;
    uint32_t p = (uint32_t)x->join.node_rank, q = (uint32_t)y->join.node_rank; /* -1 comes last */
    if (p != q)
        return p < q ? -1 : 1;
    return (x->came > y->came) - (x->came < y->came);
}

static void describe_twins(const round_node *a, const round_node *b, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.100s and %.100s both call themselves node %d: give each its own --node_rank",
             a->guest->who, b->guest->who, b->join.node_rank);
}

/* Of two with one number the later is sent away; true when there was one. `nodes` are in order. */
static bool refuse_twin(rounds *r, round_node **nodes, int n)
{
    round_stop refusal = {.round = r->round, .verdict = ROUND_OVER, .exit_code = 2};
    for (int i = 1; i < n; i++) {
        if (nodes[i]->join.node_rank < 0 || nodes[i]->join.node_rank != nodes[i - 1]->join.node_rank)
            continue;
        describe_twins(nodes[i - 1], nodes[i], refusal.reason, sizeof refusal.reason);
        log_write(FSDP_LOG_WARNING, "%s", refusal.reason);
        tell_stop(r, nodes[i], &refusal);
        nodes[i]->joined = false;
        r->n_joined--;
        return true;
    }
    return false;
}

static void publish_members(rounds *r, round_node **members, int n)
{
    wire_body list = {0};
    char name[32];
    for (int i = 0; i < n; i++) {
        char line[2 * ROUNDS_HOST_BYTES + 64];
        int length = snprintf(line, sizeof line, "%d %d %s %s\n", i, members[i]->join.n_ranks, members[i]->join.host,
                              members[i]->join.address);
        wire_put(&list, line, (size_t)length);
    }
    snprintf(name, sizeof name, "round.%d", r->round);
    if (!list.failed)
        store_publish(r->store, name, list.data, list.bytes);
    wire_free(&list);
}

static void begin_round(rounds *r, double now)
{
    round_node **members = malloc((size_t)r->n_joined * sizeof *members);
    int n = 0, first = 0;
    if (!members)
        return; /* tried again at the next tick */
    for (round_node *node = r->nodes; node; node = node->next)
        if (node->joined)
            members[n++] = node;
    qsort(members, (size_t)n, sizeof *members, compare_nodes);
    if (refuse_twin(r, members, n)) {
        free(members);
        return;
    }
    n = n < r->policy.max_nodes ? n : r->policy.max_nodes;
    round_place place = {.round = ++r->round, .n_restarts = r->n_restarts, .n_nodes = n};
    for (int i = 0; i < n; i++)
        place.world_size += members[i]->join.n_ranks;
    if (r->first_world_size == 0)
        r->first_world_size = place.world_size;
    place.first_world_size = r->first_world_size;
    place.master_port = members[0]->join.master_port;
    snprintf(place.master_address, sizeof place.master_address, "%s", members[0]->join.address);
    publish_members(r, members, n);
    r->state = RUNNING;
    r->examined_at = 0;
    r->n_members = n;
    r->n_done = 0;
    for (int i = 0; i < n; i++) {
        wire_body body = {0};
        members[i]->joined = members[i]->done = false;
        members[i]->member = true;
        members[i]->heard = now;
        place.node = i;
        members[i]->first_rank = place.first_rank = first;
        free(members[i]->ranks);
        members[i]->ranks = NULL;
        first += members[i]->join.n_ranks;
        round_place_put(&body, &place);
        store_tell(r->store, members[i]->guest, WIRE_ROUND, &body);
        wire_free(&body);
    }
    r->n_joined -= n;
    free(members);
}

static void consider(rounds *r, double now)
{
    double call = r->round < 0 || r->policy.last_call_seconds < again_call_seconds ? r->policy.last_call_seconds
                                                                                   : again_call_seconds;
    if (r->state != GATHERING || r->n_joined < r->policy.min_nodes || now < r->not_before)
        return;
    bool all_here = r->n_joined == r->n_nodes || now - r->gathering_since >= straggler_seconds;
    if (r->n_joined >= r->policy.max_nodes || (all_here && now - r->last_join >= call))
        begin_round(r, now);
}

/* A node that comes while a round runs with fewer than there may be: the next begins with it. */
static void grow(rounds *r, const round_node *newcomer, double now)
{
    round_stop stop = {.round = r->round, .verdict = ROUND_GROWS};
    snprintf(stop.reason, sizeof stop.reason, "%.100s has come: going on with %d nodes", newcomer->guest->who,
             r->n_members + 1);
    log_write(FSDP_LOG_INFO, "%s", stop.reason);
    report(r, stop.reason, "another round");
    stop_all(r, &stop, now);
}

/* The member whose number a newcomer claims. */
static const round_node *same_number(const rounds *r, const round_node *node)
{
    for (const round_node *n = r->nodes; n && node->join.node_rank >= 0; n = n->next)
        if (n->member && n->join.node_rank == node->join.node_rank)
            return n;
    return NULL;
}

/* Why the node cannot take part; "" when it can. */
static void object(const rounds *r, const round_node *node, char *text, size_t bytes)
{
    const round_join *j = &node->join;
    const round_node *twin = same_number(r, node);
    text[0] = 0;
    if (j->min_nodes != r->policy.min_nodes || j->max_nodes != r->policy.max_nodes)
        snprintf(text, bytes, "%.100s was started with --nnodes %d:%d, but this job has %d:%d", node->guest->who,
                 j->min_nodes, j->max_nodes, r->policy.min_nodes, r->policy.max_nodes);
    else if (twin)
        describe_twins(twin, node, text, bytes);
    else if (r->state == RUNNING && r->n_members >= r->policy.max_nodes)
        snprintf(text, bytes, "%.100s came to a job that has all its %d nodes", node->guest->who, r->n_members);
}

static round_node *add_node(rounds *r, store_guest *g)
{
    round_node *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->guest = g;
    n->next = r->nodes;
    if (r->nodes)
        r->nodes->previous = n;
    r->nodes = n;
    r->n_nodes++;
    g->node = n;
    return n;
}

/* A launcher that has lost its connection comes again before the store has noticed: what is left of it goes. */
static void forget_former_self(rounds *r, const round_node *node, double now)
{
    for (round_node *n = r->nodes; n && node->join.launcher; n = n->next)
        if (n != node && n->join.launcher == node->join.launcher) {
            store_tell(r->store, n->guest, WIRE_NOTHING, &(wire_body){0});
            rounds_lose(r, n->guest, false, now);
            return; /* there is one at most: it was forgotten in its turn */
        }
}

static bool hear_join(rounds *r, store_guest *g, wire_reader *body, double now)
{
    round_stop refusal = {.round = r->round, .verdict = ROUND_OVER, .exit_code = 2};
    round_node *n = g->node ? g->node : add_node(r, g);
    round_join join;
    if (!n || n->joined || n->member || !round_join_get(body, &join))
        return false;
    n->join = join;
    forget_former_self(r, n, now);
    if (r->state == OVER || r->state == FINISHED) {
        if (r->state == OVER)
            tell_stop(r, n, &r->verdict);
        else
            store_tell(r->store, g, WIRE_FINISHED, &(wire_body){0});
        return true;
    }
    object(r, n, refusal.reason, sizeof refusal.reason);
    if (refusal.reason[0]) {
        log_write(FSDP_LOG_WARNING, "%s", refusal.reason);
        tell_stop(r, n, &refusal);
        return true;
    }
    n->joined = true;
    n->came = r->n_joins++;
    r->n_joined++;
    r->last_join = now;
    if (r->gathering_since == 0)
        r->gathering_since = now;
    r->round = join.last_round > r->round ? join.last_round : r->round;
    r->n_restarts = join.n_restarts > r->n_restarts ? join.n_restarts : r->n_restarts;
    r->first_world_size = r->first_world_size ? r->first_world_size : join.first_world_size;
    if (r->state == RUNNING)
        grow(r, n, now);
    else
        consider(r, now);
    return true;
}

/* ---- where ranks are ---- */

static const double look_seconds = 0.5, examination_seconds = 6;
/* Launchers speak once a second: one that missed a turn may yet come, one that missed three does not. */
static const double late_seconds = 1.6, silent_seconds = 3;

/* A rank that has no core cannot go on, and does not hang. */
static double still_since(const rank_beat *before, const rank_beat *now_at, double now)
{
    double without_core = ((double)now_at->core_wait - (double)before->core_wait) * 1e-6;
    if (now_at->beats != before->beats)
        return now;
    return without_core <= 0 ? before->since : fmin(before->since + without_core, now);
}

static bool hear_beat(rounds *r, round_node *n, wire_reader *body, double now)
{
    int32_t round = wire_get_i32(body), n_ranks = wire_get_i32(body);
    bool current = r->state == RUNNING && n->member && round == r->round;
    if (body->broken || (n_ranks != 0 && n_ranks != n->join.n_ranks))
        return false;
    n->heard = now;
    store_tell(r->store, n->guest, WIRE_BEAT, &(wire_body){0});
    if (n_ranks && !n->ranks && !(n->ranks = calloc((size_t)n_ranks, sizeof *n->ranks)))
        return true;
    for (int i = 0; i < n_ranks; i++) {
        rank_beat *rank = &n->ranks[i], came = {.beats = wire_get_i64(body), .step = wire_get_i64(body)};
        came.core_wait = wire_get_i64(body);
        came.waits = wire_get_u32(body) != 0;
        wire_get_text(body, came.place, sizeof came.place);
        came.since = still_since(rank, &came, now);
        if (current && !body->broken)
            *rank = came;
    }
    return wire_done(body);
}

/* Of two ranks that stand still: the one that does not wait for others, then the one that is further behind. Ranks do
 * the same things, so that their counts can be compared. */
static bool is_more_likely(const rank_beat *a, const rank_beat *b)
{
    if (a->waits != b->waits)
        return !a->waits;
    return a->step != b->step ? a->step < b->step : a->beats < b->beats;
}

static round_node *most_silent(const rounds *r)
{
    round_node *found = NULL;
    for (round_node *n = r->nodes; n; n = n->next)
        if (n->member && !n->done && (!found || n->heard < found->heard))
            found = n;
    return found;
}

/* Nobody moves, and one launcher does not say why: it cannot be asked, so it is the cause. True while that is so, or
 * may turn out to be. */
static bool blame_silent_node(rounds *r, double now)
{
    const round_node *n = most_silent(r);
    char text[WIRE_TEXT_BYTES];
    if (!n || now - n->heard < late_seconds)
        return false;
    snprintf(text, sizeof text,
             "%.100s has said nothing for %.0f s, and no rank goes on: its host hangs, or the network between is cut",
             n->guest->who, now - n->heard);
    if (now - n->heard >= silent_seconds)
        fail_round(r, text, 1, false, now);
    return true;
}

/* When one rank stands still, soon all do: once the first has for as long as the watchdog allows, the likeliest cause
 * is looked for among all that have done so for half as long. */
static void look_for_hangs(rounds *r, double now)
{
    double limit = r->policy.watchdog_seconds;
    round_node *where = NULL;
    int which = -1;
    bool over = false, stalled = false, moves = false;
    for (round_node *n = r->nodes; n; n = n->next)
        for (int i = 0; n->member && n->ranks && i < n->join.n_ranks; i++) {
            const rank_beat *rank = &n->ranks[i];
            bool heard = now - n->heard < late_seconds, still = rank->beats != 0 && now - rank->since >= limit / 2;
            moves = moves || (heard && rank->beats != 0 && !still);
            if (!still)
                continue;
            bool long_still = now - rank->since >= limit, excused = !heard || rank->waits;
            over = over || (long_still && !excused);
            stalled = stalled || (long_still && excused);
            if (!where || is_more_likely(rank, &where->ranks[which])) {
                where = n;
                which = i;
            }
        }
    over = over || (stalled && !moves); /* ranks may wait for one that works, and a launcher be slow to speak */
    if (!over || blame_silent_node(r, now))
        return;
    wire_body body = {0};
    const rank_beat *rank = &where->ranks[which];
    snprintf(r->examined, sizeof r->examined, "rank %d made no progress for %.0f s: it hangs at %s",
             where->first_rank + which, now - rank->since, rank->place);
    wire_put_i32(&body, which);
    wire_put_text(&body, r->examined);
    store_tell(r->store, where->guest, WIRE_EXAMINE, &body);
    wire_free(&body);
    r->examined_at = now;
}

/* Nodes whose ranks have ended wait for the others, but not for one that has fallen silent. */
static bool blame_deserter(rounds *r, double now)
{
    const round_node *n = r->n_done ? most_silent(r) : NULL;
    char text[WIRE_TEXT_BYTES];
    if (!n || now - n->heard < rounds_patience(r->policy.join_timeout_seconds))
        return false;
    snprintf(text, sizeof text, "%.100s has said nothing for %.0f s, and the ranks of other nodes have ended",
             n->guest->who, now - n->heard);
    fail_round(r, text, 1, false, now);
    return true;
}

static void look_after_ranks(rounds *r, double now)
{
    if (r->state != RUNNING || now < r->next_look)
        return;
    r->next_look = now + look_seconds;
    if (blame_deserter(r, now) || r->policy.watchdog_seconds <= 0)
        return;
    if (r->examined_at == 0)
        look_for_hangs(r, now);
    else if (now - r->examined_at > examination_seconds) /* its launcher does not answer either */
        fail_round(r, r->examined, 1, false, now);
}

static void finish(rounds *r)
{
    r->state = FINISHED;
    for (round_node *n = r->nodes; n; n = n->next)
        store_tell(r->store, n->guest, WIRE_FINISHED, &(wire_body){0});
}

static void count_done(rounds *r, round_node *n)
{
    if (n->done)
        return;
    n->done = true;
    if (++r->n_done == r->n_members)
        finish(r);
}

bool rounds_hear(rounds *r, store_guest *g, uint32_t kind, wire_reader *body, double now)
{
    round_failure failure;
    round_node *n = g->node;
    if (kind == WIRE_JOIN)
        return hear_join(r, g, body, now);
    if (!n)
        return false;
    switch (kind) {
    case WIRE_FAIL:
        if (!round_failure_get(body, &failure))
            return false;
        if (r->state == RUNNING && n->member && failure.round == r->round)
            fail_round(r, failure.reason, failure.exit_code, failure.is_final, now);
        else if (r->state == GATHERING && failure.is_final == FINAL_LAUNCHER)
            fail_round(r, failure.reason, failure.exit_code, true, now); /* nobody is to wait for it */
        return true;
    case WIRE_DONE: {
        int32_t round = wire_get_i32(body);
        if (!wire_done(body))
            return false;
        if (r->state == RUNNING && n->member && round == r->round)
            count_done(r, n);
        return true;
    }
    case WIRE_BEAT:
        return hear_beat(r, n, body, now);
    default:
        return false;
    }
}

void rounds_lose(rounds *r, store_guest *g, bool said_goodbye, double now)
{
    round_node *n = g->node;
    bool missed = r->state == RUNNING && n->member && !n->done;
    if (n->previous)
        n->previous->next = n->next;
    else
        r->nodes = n->next;
    if (n->next)
        n->next->previous = n->previous;
    r->n_nodes--;
    r->n_joined -= n->joined;
    if (r->state == RUNNING && n->member && n->done) {
        r->n_done--;
        r->n_members--;
    }
    free(n->ranks);
    free(n);
    g->node = NULL;
    if (missed) {
        char text[WIRE_TEXT_BYTES];
        snprintf(text, sizeof text, "%.100s %s", g->who,
                 said_goodbye ? "left while its ranks ran" : "is gone: its launcher died, or the network between");
        fail_round(r, text, 1, false, now);
    }
}

void rounds_tick(rounds *r, double now)
{
    consider(r, now);
    look_after_ranks(r, now);
    if (r->state != GATHERING || r->gathering_since == 0 ||
        now - r->gathering_since < r->policy.join_timeout_seconds +
                                       (r->not_before > r->gathering_since ? r->not_before - r->gathering_since : 0))
        return;
    round_stop stop = {.round = r->round, .verdict = ROUND_OVER, .exit_code = 1};
    snprintf(stop.reason, sizeof stop.reason,
             "%d of %d nodes came within %g s: are all launchers started, with this --rdzv_endpoint?", r->n_joined,
             r->policy.min_nodes, r->policy.join_timeout_seconds);
    report(r, stop.reason, "end");
    stop_all(r, &stop, now);
}
