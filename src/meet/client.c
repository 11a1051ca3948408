/* Finds the store, proves that it belongs to it, asks. */
#include "meet/client.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

/* A store greets at once: who does not is something else, or very busy. An answer may come this much after its timeout.
 */
static const double connect_seconds = 5, greeting_seconds = 2, most_welcome_seconds = 20, answer_grace_seconds = 10;
/* Another job that is about to end may still hold the place. */
static const double other_job_seconds = 10;

typedef struct kept_message {
    struct kept_message *next;
    uint32_t kind;
    size_t bytes;
    char body[];
} kept_message;

struct client {
    endpoint at;
    line line;
    pthread_mutex_t lock; /* of sending */
    kept_message *kept, **kept_end, *handed_out;
    int seats;
};

/* ---- coming in ---- */

/* Until a whole message is there. */
static line_state await(line *l, double deadline, uint32_t *kind, const void **body, size_t *bytes)
{
    for (;;) {
        line_state state = line_receive(l, kind, body, bytes);
        double left = deadline - clock_seconds();
        if (state != LINE_NOTHING || left <= 0)
            return state;
        struct pollfd p = {.fd = l->socket, .events = POLLIN};
        poll(&p, 1, (int)(left * 1e3) + 1);
    }
}

static fsdp_status say_hello(client *c, const client_config *config, const uint8_t *nonce, const uint8_t *own_nonce)
{
    wire_body claimed = {0}, hello = {0};
    uint8_t proof[SECRET_PROOF_BYTES];
    wire_put(&claimed, own_nonce, SECRET_NONCE_BYTES);
    wire_put_text(&claimed, config->job);
    wire_put_text(&claimed, config->who.circle);
    wire_put_i32(&claimed, config->who.seat);
    wire_put_i32(&claimed, config->who.seats);
    wire_put_text(&claimed, config->who.who);
    secret_prove(config->key, "client", nonce, claimed.data, claimed.bytes, proof);
    wire_put(&hello, proof, sizeof proof);
    wire_put(&hello, claimed.data, claimed.bytes);
    bool queued = !claimed.failed && !hello.failed && line_queue(&c->line, WIRE_HELLO, hello.data, hello.bytes);
    wire_free(&claimed);
    wire_free(&hello);
    if (!queued)
        return error_set(FSDP_ERR_MEMORY, "no memory to join the rendezvous");
    line_flush_until(&c->line, clock_seconds() + greeting_seconds);
    return FSDP_OK;
}

/* FSDP_ERR_STATE: not a store, or not ours, another candidate may be; FSDP_ERR_IO: it went away. */
static fsdp_status introduce(client *c, const client_config *config)
{
    char at[ENDPOINT_TEXT_BYTES], text[WIRE_TEXT_BYTES];
    uint8_t nonce[SECRET_NONCE_BYTES], own_nonce[SECRET_NONCE_BYTES], proof[SECRET_PROOF_BYTES];
    const void *body;
    uint32_t kind;
    size_t bytes;
    uint64_t magic;
    endpoint_text(&c->at, at);
    if (c->at.port < 0 && !endpoint_is_own_user(c->line.socket))
        return error_set(FSDP_ERR_PEER, "another user holds the meeting point of this job (%s)", at);
    line_state state = await(&c->line, clock_seconds() + greeting_seconds, &kind, &body, &bytes);
    wire_reader r = wire_read(body, state == LINE_MESSAGE ? bytes : 0);
    if (state == LINE_BROKEN)
        return error_set(FSDP_ERR_IO, "the rendezvous at %s hung up", at);
    wire_get(&r, &magic, sizeof magic);
    wire_get(&r, nonce, sizeof nonce);
    if (state != LINE_MESSAGE || kind != WIRE_GREETING || !wire_done(&r) || magic != WIRE_MAGIC)
        return error_set(FSDP_ERR_STATE, "who listens at %s is not the rendezvous of this version of fsdp", at);
    FSDP_TRY(secret_draw_bytes(own_nonce, sizeof own_nonce));
    FSDP_TRY(say_hello(c, config, nonce, own_nonce));
    double patience = config->welcome_seconds > 0 ? config->welcome_seconds : most_welcome_seconds;
    state = await(&c->line, clock_seconds() + patience, &kind, &body, &bytes);
    if (state == LINE_MESSAGE && kind == WIRE_REFUSED) {
        r = wire_read(body, bytes);
        uint32_t why = wire_get_u32(&r);
        wire_get_text(&r, text, sizeof text);
        if (why == WIRE_WRONG_SECRET)
            return error_set(FSDP_ERR_PEER,
                             "the rendezvous at %s refused us: our secret is not this job's; give all launchers the "
                             "same --rdzv_secret_file or FSDP_RDZV_SECRET",
                             at);
        return error_set(why == WIRE_WRONG_JOB ? FSDP_ERR_STATE : FSDP_ERR_PEER, "the rendezvous at %s refused us: %s",
                         at, text);
    }
    if (state != LINE_MESSAGE || kind != WIRE_WELCOME || bytes != sizeof proof)
        return error_set(FSDP_ERR_IO, "the rendezvous at %s hung up", at);
    secret_prove(config->key, "store", own_nonce, nonce, sizeof nonce, proof);
    if (!secret_same(proof, body))
        return error_set(FSDP_ERR_PEER, "who answers at %s does not know this job's secret: not our rendezvous", at);
    return FSDP_OK;
}

/* Over a connection, which is taken. */
static fsdp_status open_at(const client_config *config, int socket, client **out)
{
    client *c = calloc(1, sizeof *c);
    if (!c) {
        close(socket);
        return error_set(FSDP_ERR_MEMORY, "no memory to join the rendezvous");
    }
    c->at = config->candidates[0];
    c->seats = config->who.seats;
    c->kept_end = &c->kept;
    line_open(&c->line, socket);
    pthread_mutex_init(&c->lock, NULL);
    fsdp_status status = introduce(c, config);
    if (status != FSDP_OK) {
        line_close(&c->line);
        client_close(c);
        return status;
    }
    *out = c;
    return FSDP_OK;
}

static void pause_briefly(int attempt)
{
    long milliseconds = attempt < 5 ? 5 : attempt < 40 ? 25 : 100;
    struct timespec pause = {.tv_nsec = milliseconds * 1000000};
    nanosleep(&pause, NULL);
}

/* One round over the candidates. FSDP_ERR_TIMEOUT: nobody was there; FSDP_ERR_STATE: somebody else. */
static fsdp_status try_all(const client_config *config, client **out)
{
    char at[ENDPOINT_TEXT_BYTES];
    fsdp_status last = error_set(FSDP_ERR_TIMEOUT, "nobody listens at %s", endpoint_text(config->candidates, at));
    for (int i = 0; i < config->n_candidates; i++) {
        client_config one = *config;
        one.candidates = &config->candidates[i];
        int s = endpoint_connect(one.candidates, connect_seconds);
        if (s < 0)
            continue;
        fsdp_status status = open_at(&one, s, out);
        if (status != FSDP_ERR_STATE && status != FSDP_ERR_IO)
            return status;
        last = status == FSDP_ERR_STATE ? status : last;
    }
    return last;
}

static fsdp_status too_late(const client_config *config, const char *at, bool others)
{
    char last[WIRE_TEXT_BYTES];
    snprintf(last, sizeof last, "%s", others ? fsdp_last_error() : "nobody is there");
    return error_set(
        FSDP_ERR_TIMEOUT,
        "the rendezvous did not answer at %s within %g s: is the first host's launcher (or rank 0) started, "
        "and is this its address? (%s)",
        at, config->timeout_seconds, last);
}

fsdp_status client_open(const client_config *config, client **out)
{
    char at[ENDPOINT_TEXT_BYTES];
    double begun = clock_seconds(), other_since = 0;
    endpoint_text(config->candidates, at);
    for (int attempt = 0;; attempt++) {
        fsdp_status status = try_all(config, out);
        double now = clock_seconds();
        bool elsewhere = config->n_candidates > 1;
        if (status == FSDP_OK || status == FSDP_ERR_PEER || status == FSDP_ERR_MEMORY)
            return status;
        other_since = status != FSDP_ERR_STATE ? 0 : other_since == 0 ? now : other_since;
        if (status == FSDP_ERR_STATE && !elsewhere && now - other_since > other_job_seconds)
            return error_prefix(FSDP_ERR_PEER, "choose another port: ");
        if (config->give_up && config->give_up(config->context))
            return error_set(FSDP_ERR_STATE, "interrupted while looking for the rendezvous at %s", at);
        if (now - begun > config->timeout_seconds)
            return too_late(config, at, status == FSDP_ERR_STATE);
        pause_briefly(attempt);
    }
}

int client_socket(const client *c)
{
    return c->line.socket;
}

void client_close(client *c)
{
    if (!c)
        return;
    client_send(c, WIRE_LEAVE, NULL, 0);
    client_flush(c, 0.5);
    line_close(&c->line);
    while (c->kept) {
        kept_message *m = c->kept;
        c->kept = m->next;
        free(m);
    }
    free(c->handed_out);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- messages ---- */

void client_send(client *c, uint32_t kind, const void *body, size_t bytes)
{
    pthread_mutex_lock(&c->lock);
    if (line_queue(&c->line, kind, body, bytes))
        line_flush(&c->line); /* who is gone is noticed by reading */
    pthread_mutex_unlock(&c->lock);
}

void client_flush(client *c, double seconds)
{
    pthread_mutex_lock(&c->lock);
    line_flush_until(&c->line, clock_seconds() + seconds);
    pthread_mutex_unlock(&c->lock);
}

static bool keep(client *c, uint32_t kind, const void *body, size_t bytes)
{
    kept_message *m = malloc(sizeof *m + bytes);
    if (!m)
        return false;
    m->next = NULL;
    m->kind = kind;
    m->bytes = bytes;
    memcpy(m->body, body, bytes);
    *c->kept_end = m;
    c->kept_end = &m->next;
    return true;
}

line_state client_receive(client *c, uint32_t *kind, const void **body, size_t *bytes)
{
    free(c->handed_out);
    c->handed_out = c->kept;
    if (!c->kept) {
        line_state state;
        do
            state = line_receive(&c->line, kind, body, bytes);
        while (state == LINE_MESSAGE && *kind == WIRE_ANSWER); /* of a request that was given up */
        return state;
    }
    c->kept = c->kept->next;
    if (!c->kept)
        c->kept_end = &c->kept;
    *kind = c->handed_out->kind;
    *body = c->handed_out->body;
    *bytes = c->handed_out->bytes;
    return LINE_MESSAGE;
}

/* ---- requests ---- */

static fsdp_status lost(const client *c, const char *what)
{
    char at[ENDPOINT_TEXT_BYTES];
    return error_set(FSDP_ERR_PEER, "%s: the rendezvous at %s is gone: has its launcher (or rank 0) ended?", what,
                     endpoint_text(&c->at, at));
}

fsdp_status client_ask(client *c, uint32_t kind, wire_body *body, double seconds, const char *name, wire_reader *answer)
{
    double deadline = clock_seconds() + seconds + answer_grace_seconds;
    uint32_t came;
    const void *data;
    size_t bytes;
    if (body->failed) {
        wire_free(body);
        return error_set(FSDP_ERR_MEMORY, "no memory to ask the rendezvous for %s", name);
    }
    client_send(c, kind, body->data, body->bytes);
    wire_free(body);
    client_flush(c, seconds + answer_grace_seconds);
    for (;;) {
        line_state state = await(&c->line, deadline, &came, &data, &bytes);
        if (state == LINE_NOTHING)
            return error_set(FSDP_ERR_TIMEOUT, "%s: the rendezvous did not answer within %g s", name,
                             seconds + answer_grace_seconds);
        if (state != LINE_MESSAGE)
            return lost(c, name);
        if (came == WIRE_ANSWER)
            break;
        if (!keep(c, came, data, bytes))
            return error_set(FSDP_ERR_MEMORY, "no memory for a message");
    }
    *answer = wire_read(data, bytes);
    fsdp_status status = (fsdp_status)wire_get_i32(answer);
    if (status == FSDP_OK && !answer->broken)
        return FSDP_OK;
    char text[WIRE_TEXT_BYTES];
    wire_get_text(answer, text, sizeof text);
    bool known = status != FSDP_OK && strcmp(fsdp_status_name(status), "unknown") != 0;
    return error_set(known ? status : FSDP_ERR_PEER, "%s", text[0] ? text : "the rendezvous answered without sense");
}

fsdp_status client_set(client *c, const char *name, const void *value, size_t bytes)
{
    wire_body body = {0};
    wire_put_text(&body, name);
    wire_put_blob(&body, value, bytes);
    if (body.failed || strlen(name) >= WIRE_NAME_BYTES || bytes > WIRE_VALUE_BYTES) {
        wire_free(&body);
        return error_set(FSDP_ERR_INPUT, "%s: %zu bytes are too many for the rendezvous", name, bytes);
    }
    client_send(c, WIRE_SET, body.data, body.bytes);
    client_flush(c, answer_grace_seconds);
    wire_free(&body);
    return FSDP_OK;
}

fsdp_status client_get(client *c, const char *name, double seconds, void *value, size_t room, size_t *bytes)
{
    wire_body body = {0};
    wire_reader answer;
    wire_put_text(&body, name);
    wire_put_f64(&body, seconds);
    FSDP_TRY(client_ask(c, WIRE_GET, &body, seconds, name, &answer));
    *bytes = answer.left;
    memcpy(value, answer.at, answer.left < room ? answer.left : room);
    return FSDP_OK;
}

fsdp_status client_add(client *c, const char *name, int64_t amount, int64_t *sum)
{
    wire_body body = {0};
    wire_reader answer;
    wire_put_text(&body, name);
    wire_put_i64(&body, amount);
    FSDP_TRY(client_ask(c, WIRE_ADD, &body, 0, name, &answer));
    *sum = wire_get_i64(&answer);
    return FSDP_OK;
}

void client_parts_free(client_parts *p)
{
    free(p->data);
    free(p->offsets);
    free(p->bytes);
    *p = (client_parts){0};
}

fsdp_status client_gather(client *c, const char *name, double seconds, const void *mine, size_t bytes,
                          client_parts *out)
{
    wire_body body = {0};
    wire_reader answer;
    size_t n = (size_t)c->seats;
    wire_put_text(&body, name);
    wire_put_f64(&body, seconds);
    wire_put_blob(&body, mine, bytes);
    FSDP_TRY(client_ask(c, WIRE_GATHER, &body, seconds, name, &answer));
    *out = (client_parts){.n = c->seats};
    out->data = malloc(answer.left ? answer.left : 1);
    out->offsets = calloc(n, sizeof *out->offsets);
    out->bytes = calloc(n, sizeof *out->bytes);
    if (!out->data || !out->offsets || !out->bytes) {
        client_parts_free(out);
        return error_set(FSDP_ERR_MEMORY, "%s: no memory for what the ranks gave", name);
    }
    const char *start = answer.at;
    memcpy(out->data, start, answer.left);
    for (size_t i = 0; i < n; i++) {
        const char *part = wire_get_blob(&answer, &out->bytes[i], answer.left);
        out->offsets[i] = answer.broken ? 0 : (size_t)(part - start);
    }
    if (wire_done(&answer))
        return FSDP_OK;
    client_parts_free(out);
    return error_set(FSDP_ERR_PEER, "%s: the rendezvous answered without sense", name);
}

fsdp_status client_barrier(client *c, const char *name, double seconds)
{
    client_parts parts;
    FSDP_TRY(client_gather(c, name, seconds, NULL, 0, &parts));
    client_parts_free(&parts);
    return FSDP_OK;
}
