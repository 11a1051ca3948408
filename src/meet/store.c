/* Values, gathers, posts. An answer is sent the moment what was asked for is there, or cannot come any more. */
#include "meet/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "meet/line.h"
#include "meet/rounds.h"

enum { BUCKETS = 1024, MAX_SECONDS = 7 * 86400 };

typedef struct store_value {
    struct store_value *next;
    char *name, *data;
    size_t bytes;
    bool is_set;
    store_guest *waiting;
} store_value;

typedef struct part {
    char *data;
    size_t bytes;
    bool came;
} part;

typedef struct store_gather {
    struct store_gather *next;
    char name[WIRE_NAME_BYTES];
    part *parts; /* (seats) */
    int n_came;
    size_t bytes;
} store_gather;

struct store_circle {
    store_circle *next;
    char name[WIRE_NAME_BYTES];
    int n_seats, n_taken;
    store_guest **seats;          /* (n_seats), NULL: not here */
    char broken[WIRE_TEXT_BYTES]; /* why no gather can succeed any more; "" */
    store_gather *gathers;
};

struct store {
    store_send send;
    void *context;
    rounds *rounds;
    store_guest *guests;
    int n_guests, n_values;
    size_t n_bytes; /* of values and parts */
    store_value *buckets[BUCKETS];
    store_circle *circles;
};

store *store_new(store_send send, void *context, const rounds_policy *policy)
{
    store *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->send = send;
    s->context = context;
    if (policy && !(s->rounds = rounds_new(s, policy))) {
        free(s);
        return NULL;
    }
    return s;
}

static void gather_free(store *s, store_circle *c, store_gather *g)
{
    for (store_gather **link = &c->gathers; *link; link = &(*link)->next)
        if (*link == g) {
            *link = g->next;
            break;
        }
    for (int i = 0; i < c->n_seats; i++)
        free(g->parts[i].data);
    s->n_bytes -= g->bytes;
    free(g->parts);
    free(g);
}

static void circle_free(store *s, store_circle *c)
{
    for (store_circle **link = &s->circles; *link; link = &(*link)->next)
        if (*link == c) {
            *link = c->next;
            break;
        }
    while (c->gathers)
        gather_free(s, c, c->gathers);
    free(c->seats);
    free(c);
}

void store_free(store *s)
{
    if (!s)
        return;
    while (s->guests) {
        store_guest *g = s->guests;
        s->guests = g->next;
        free(g);
    }
    while (s->circles)
        circle_free(s, s->circles);
    for (int i = 0; i < BUCKETS; i++)
        while (s->buckets[i]) {
            store_value *v = s->buckets[i];
            s->buckets[i] = v->next;
            free(v->name);
            free(v->data);
            free(v);
        }
    rounds_free(s->rounds);
    free(s);
}

int store_count(const store *s)
{
    return s->n_guests;
}

/* ---- answers ---- */

void store_tell(store *s, store_guest *g, uint32_t kind, const wire_body *body)
{
    if (!body->failed)
        s->send(s->context, g, kind, body->data, body->bytes);
}

static void answer(store *s, store_guest *g, const void *data, size_t bytes)
{
    wire_body body = {0};
    wire_put_i32(&body, FSDP_OK);
    wire_put(&body, data, bytes);
    g->asks = 0;
    store_tell(s, g, WIRE_ANSWER, &body);
    wire_free(&body);
}

static void answer_failure(store *s, store_guest *g, fsdp_status status, const char *text)
{
    wire_body body = {0};
    wire_put_i32(&body, (int32_t)status);
    wire_put_text(&body, text);
    g->asks = 0;
    store_tell(s, g, WIRE_ANSWER, &body);
    wire_free(&body);
}

/* ---- values ---- */

static store_value *find_value(store *s, const char *name)
{
    store_value **bucket = &s->buckets[hash_text(HASH_START, name) % BUCKETS];
    for (store_value *v = *bucket; v; v = v->next)
        if (strcmp(v->name, name) == 0)
            return v;
    store_value *v = s->n_values < STORE_MAX_VALUES ? calloc(1, sizeof *v) : NULL;
    if (!v || !(v->name = strdup(name))) {
        free(v);
        return NULL;
    }
    v->next = *bucket;
    *bucket = v;
    s->n_values++;
    return v;
}

static bool set_value(store *s, store_value *v, const void *data, size_t bytes)
{
    char *copy = s->n_bytes - v->bytes + bytes <= STORE_MAX_BYTES ? malloc(bytes ? bytes : 1) : NULL;
    if (!copy)
        return false;
    memcpy(copy, data, bytes);
    free(v->data);
    s->n_bytes += bytes - v->bytes;
    v->data = copy;
    v->bytes = bytes;
    v->is_set = true;
    while (v->waiting) {
        store_guest *g = v->waiting;
        v->waiting = g->next_waiting;
        g->value = NULL;
        answer(s, g, v->data, v->bytes);
    }
    return true;
}

void store_publish(store *s, const char *name, const void *value, size_t bytes)
{
    store_value *v = find_value(s, name);
    if (v)
        set_value(s, v, value, bytes);
}

static void stop_waiting(store_guest *g)
{
    for (store_guest **link = g->value ? &g->value->waiting : NULL; link && *link; link = &(*link)->next_waiting)
        if (*link == g) {
            *link = g->next_waiting;
            break;
        }
    g->value = NULL;
}

static bool hear_set(store *s, wire_reader *r)
{
    char name[WIRE_NAME_BYTES];
    size_t bytes;
    wire_get_text(r, name, sizeof name);
    const void *data = wire_get_blob(r, &bytes, WIRE_VALUE_BYTES);
    store_value *v = wire_done(r) ? find_value(s, name) : NULL;
    return v && set_value(s, v, data, bytes);
}

static bool hear_add(store *s, store_guest *g, wire_reader *r)
{
    char name[WIRE_NAME_BYTES];
    int64_t sum = 0;
    wire_get_text(r, name, sizeof name);
    int64_t amount = wire_get_i64(r);
    store_value *v = wire_done(r) ? find_value(s, name) : NULL;
    if (!v)
        return false;
    if (v->is_set && v->bytes != sizeof sum) {
        answer_failure(s, g, FSDP_ERR_INPUT, "the value is not a counter");
        return true;
    }
    if (v->is_set)
        memcpy(&sum, v->data, sizeof sum);
    sum = (int64_t)((uint64_t)sum + (uint64_t)amount);
    if (!set_value(s, v, &sum, sizeof sum))
        return false;
    answer(s, g, &sum, sizeof sum);
    return true;
}

static double limited(double seconds)
{
    return seconds < 0 ? 0 : seconds > MAX_SECONDS ? MAX_SECONDS : seconds;
}

static bool hear_get(store *s, store_guest *g, wire_reader *r, double now)
{
    char name[WIRE_NAME_BYTES];
    wire_get_text(r, name, sizeof name);
    g->seconds = limited(wire_get_f64(r));
    store_value *v = wire_done(r) ? find_value(s, name) : NULL;
    if (!v)
        return false;
    if (v->is_set) {
        answer(s, g, v->data, v->bytes);
        return true;
    }
    g->asks = WIRE_GET;
    g->deadline = now + g->seconds;
    g->value = v;
    g->next_waiting = v->waiting;
    v->waiting = g;
    return true;
}

/* ---- gathers ---- */

/* Seats that have not come, as "rank 2" or "ranks 1, 2". */
static void name_missing(const store_circle *c, const store_gather *g, char *text, size_t bytes)
{
    int n = 0, shown = 0;
    size_t at = 0;
    for (int i = 0; i < c->n_seats; i++)
        n += !g->parts[i].came;
    at += (size_t)snprintf(text, bytes, n == 1 ? "rank" : "ranks");
    for (int i = 0; i < c->n_seats && at + 32 < bytes; i++)
        if (!g->parts[i].came)
            at += (size_t)snprintf(text + at, bytes - at, "%s%d", shown++ ? ", " : " ", i);
    if (shown < n)
        snprintf(text + at, bytes - at, " and %d more", n - shown);
}

static void fail_gather(store *s, store_circle *c, store_gather *g, fsdp_status status, const char *text)
{
    for (int i = 0; i < c->n_seats; i++)
        if (g->parts[i].came && c->seats[i] && c->seats[i]->gather == g) {
            c->seats[i]->gather = NULL;
            answer_failure(s, c->seats[i], status, text);
        }
    gather_free(s, c, g);
}

static void fail_late(store *s, store_guest *late)
{
    char missing[200], text[WIRE_TEXT_BYTES];
    store_circle *c = late->circle;
    name_missing(c, late->gather, missing, sizeof missing);
    snprintf(text, sizeof text, "%s of %d did not come within %g s (%s)", missing, c->n_seats, late->seconds,
             late->gather->name);
    fail_gather(s, c, late->gather, FSDP_ERR_TIMEOUT, text);
}

static void finish_gather(store *s, store_circle *c, store_gather *g)
{
    wire_body body = {0};
    for (int i = 0; i < c->n_seats; i++)
        wire_put_blob(&body, g->parts[i].data, g->parts[i].bytes);
    for (int i = c->n_seats - 1; i >= 0;
         i--) { /* rank 0, which may hold the store, comes last: all are answered then */
        c->seats[i]->gather = NULL;
        if (body.failed || body.bytes > LINE_BODY_BYTES - 64)
            answer_failure(s, c->seats[i], FSDP_ERR_MEMORY, "what the ranks gave does not fit into one message");
        else
            answer(s, c->seats[i], body.data, body.bytes);
    }
    wire_free(&body);
    gather_free(s, c, g);
}

static store_gather *find_gather(store_circle *c, const char *name)
{
    for (store_gather *g = c->gathers; g; g = g->next)
        if (strcmp(g->name, name) == 0)
            return g;
    store_gather *g = calloc(1, sizeof *g);
    if (!g || !(g->parts = calloc((size_t)c->n_seats, sizeof *g->parts))) {
        free(g);
        return NULL;
    }
    snprintf(g->name, sizeof g->name, "%s", name);
    g->next = c->gathers;
    c->gathers = g;
    return g;
}

static bool hear_gather(store *s, store_guest *guest, wire_reader *r, double now)
{
    char name[WIRE_NAME_BYTES];
    size_t bytes;
    wire_get_text(r, name, sizeof name);
    guest->seconds = limited(wire_get_f64(r));
    const void *data = wire_get_blob(r, &bytes, WIRE_VALUE_BYTES);
    store_circle *c = guest->circle;
    if (!wire_done(r) || !c)
        return false;
    if (c->broken[0]) {
        answer_failure(s, guest, FSDP_ERR_PEER, c->broken);
        return true;
    }
    store_gather *g = find_gather(c, name);
    part *p = g ? &g->parts[guest->seat] : NULL;
    if (!p || p->came || s->n_bytes + bytes > STORE_MAX_BYTES || !(p->data = malloc(bytes ? bytes : 1)))
        return false;
    memcpy(p->data, data, bytes);
    p->bytes = bytes;
    p->came = true;
    g->bytes += bytes;
    s->n_bytes += bytes;
    guest->asks = WIRE_GATHER;
    guest->deadline = now + guest->seconds;
    guest->gather = g;
    if (++g->n_came == c->n_seats)
        finish_gather(s, c, g);
    return true;
}

/* ---- circles ---- */

static store_circle *find_circle(store *s, const char *name, int seats)
{
    for (store_circle *c = s->circles; c; c = c->next)
        if (strcmp(c->name, name) == 0)
            return c;
    store_circle *c = calloc(1, sizeof *c);
    if (!c || !(c->seats = calloc((size_t)seats, sizeof(store_guest *)))) {
        free(c);
        return NULL;
    }
    snprintf(c->name, sizeof c->name, "%s", name);
    c->n_seats = seats;
    c->next = s->circles;
    s->circles = c;
    return c;
}

/* No gather of the circle can succeed any more. */
static void break_circle(store *s, store_circle *c, const char *text)
{
    if (!c->broken[0])
        snprintf(c->broken, sizeof c->broken, "%s", text);
    while (c->gathers)
        fail_gather(s, c, c->gathers, FSDP_ERR_PEER, text);
}

/* Ranks that contradict each other are two jobs in one place: everybody is told. */
static fsdp_status contradiction(store *s, store_circle *c)
{
    char text[WIRE_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", fsdp_last_error());
    break_circle(s, c, text);
    return FSDP_ERR_INPUT;
}

static fsdp_status take_seat(store *s, const store_introduction *who, store_guest *g)
{
    if (who->seats < 1 || who->seats > STORE_MAX_SEATS || who->seat < 0 || who->seat >= who->seats)
        return error_set(FSDP_ERR_INPUT, "%s of %d is not possible", who->who, who->seats);
    store_circle *c = find_circle(s, who->circle, who->seats);
    if (!c)
        return error_set(FSDP_ERR_MEMORY, "no memory for %d ranks", who->seats);
    if (c->n_seats != who->seats) {
        error_set(FSDP_ERR_INPUT, "a rank that calls itself %d of %d came to a job of %d ranks", who->seat, who->seats,
                  c->n_seats);
        return contradiction(s, c);
    }
    if (c->seats[who->seat]) {
        error_set(FSDP_ERR_INPUT,
                  "two processes call themselves %s; if two jobs share MASTER_ADDR and MASTER_PORT, give each its own "
                  "FSDP_JOB_TOKEN",
                  who->who);
        return contradiction(s, c);
    }
    c->seats[who->seat] = g;
    c->n_taken++;
    g->circle = c;
    g->seat = who->seat;
    return FSDP_OK;
}

fsdp_status store_admit(store *s, const store_introduction *who, void *link, store_guest **out)
{
    store_guest *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(FSDP_ERR_MEMORY, "no memory for another client");
    g->link = link;
    snprintf(g->who, sizeof g->who, "%s", who->who);
    fsdp_status status = FSDP_OK;
    if (who->circle[0])
        status = take_seat(s, who, g);
    else if (!s->rounds)
        status = error_set(FSDP_ERR_INPUT, "ranks meet here, not launchers");
    if (status != FSDP_OK) {
        free(g);
        return status;
    }
    g->next = s->guests;
    if (s->guests)
        s->guests->previous = g;
    s->guests = g;
    s->n_guests++;
    *out = g;
    return FSDP_OK;
}

static void tell_gone(store *s, store_circle *c, int seat, bool said_goodbye)
{
    wire_body body = {0};
    wire_put_i32(&body, seat);
    wire_put_i32(&body, said_goodbye);
    if (seat != 0 && c->seats[0])
        store_tell(s, c->seats[0], WIRE_GONE, &body);
    for (int i = 1; seat == 0 && i < c->n_seats; i++)
        if (c->seats[i])
            store_tell(s, c->seats[i], WIRE_GONE, &body);
    wire_free(&body);
}

/* Gathers that the guest has not come to cannot succeed any more; without a goodbye none can. */
static void leave_circle(store *s, store_guest *g, bool said_goodbye)
{
    store_circle *c = g->circle;
    char text[WIRE_TEXT_BYTES];
    c->seats[g->seat] = NULL;
    c->n_taken--;
    snprintf(text, sizeof text, "%.100s %s while ranks were meeting", g->who, said_goodbye ? "left" : "ended");
    if (!said_goodbye)
        break_circle(s, c, text);
    for (store_gather *open = c->gathers, *next; open; open = next) {
        next = open->next;
        if (!open->parts[g->seat].came)
            fail_gather(s, c, open, FSDP_ERR_PEER, text);
    }
    tell_gone(s, c, g->seat, said_goodbye);
    if (c->n_taken == 0)
        circle_free(s, c);
}

void store_lose(store *s, store_guest *g, bool said_goodbye, double now)
{
    stop_waiting(g);
    if (g->previous)
        g->previous->next = g->next;
    else
        s->guests = g->next;
    if (g->next)
        g->next->previous = g->previous;
    s->n_guests--;
    if (g->circle)
        leave_circle(s, g, said_goodbye);
    if (g->node)
        rounds_lose(s->rounds, g, said_goodbye, now);
    free(g);
}

/* ---- messages ---- */

static bool hear_post(store *s, store_guest *g, wire_reader *r)
{
    store_circle *c = g->circle;
    wire_body body = {0};
    int32_t to = wire_get_i32(r), except = wire_get_i32(r);
    uint32_t kind = wire_get_u32(r);
    if (r->broken || !c || to < -1 || to >= c->n_seats)
        return false;
    wire_put_i32(&body, g->seat);
    wire_put_u32(&body, kind);
    wire_put(&body, r->at, r->left);
    for (int i = to < 0 ? 0 : to; i <= (to < 0 ? c->n_seats - 1 : to); i++)
        if (c->seats[i] && c->seats[i] != g && i != except)
            store_tell(s, c->seats[i], WIRE_POST, &body);
    wire_free(&body);
    return true;
}

bool store_hear(store *s, store_guest *g, uint32_t kind, const void *body, size_t bytes, double now)
{
    wire_reader r = wire_read(body, bytes);
    if (g->asks && (kind == WIRE_GET || kind == WIRE_ADD || kind == WIRE_GATHER))
        return false;
    switch (kind) {
    case WIRE_SET:
        return hear_set(s, &r);
    case WIRE_GET:
        return hear_get(s, g, &r, now);
    case WIRE_ADD:
        return hear_add(s, g, &r);
    case WIRE_GATHER:
        return hear_gather(s, g, &r, now);
    case WIRE_POST:
        return hear_post(s, g, &r);
    default:
        return !g->circle && s->rounds && rounds_hear(s->rounds, g, kind, &r, now);
    }
}

void store_tick(store *s, double now)
{
    for (store_guest *g = s->guests, *next; g; g = next) {
        next = g->next;
        if (!g->asks || now < g->deadline)
            continue;
        if (g->asks == WIRE_GATHER) {
            fail_late(s, g);
        } else {
            char text[WIRE_TEXT_BYTES];
            snprintf(text, sizeof text, "nobody has set %s within %g s", g->value->name, g->seconds);
            stop_waiting(g);
            answer_failure(s, g, FSDP_ERR_TIMEOUT, text);
        }
    }
    if (s->rounds)
        rounds_tick(s->rounds, now);
}
