/* Connections: accepted, challenged, heard, dropped. */
#include "meet/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "meet/line.h"

enum {
    MAX_STRANGERS = 256,
    MAX_CLIENTS = 1 << 17,
    EVENTS = 256,
    TICK_MILLISECONDS = 50,
    LOGGED_REFUSALS = 20, /* one by one; then only each time their number has doubled */
};

static const double stranger_seconds = 10;

typedef struct connection {
    struct connection *next, *previous; /* strangers, oldest last; or clients */
    line line;
    store_guest *guest; /* NULL: a stranger */
    uint8_t nonce[SECRET_NONCE_BYTES];
    double since;
    bool dead, waits_to_send;
    struct connection *next_dead;
} connection;

struct server {
    server_config config;
    secret key;
    char job[WIRE_NAME_BYTES];
    int listener, epoll, wake;
    store *store;
    connection *strangers, *oldest, *clients, *dead;
    atomic_int n_strangers, n_clients;
    atomic_long n_admitted, n_refused;
    pthread_t thread;
    bool running;
    atomic_bool stop;
};

/* ---- who is there ---- */

static void put_in(connection **list, connection *l)
{
    l->previous = NULL;
    l->next = *list;
    if (*list)
        (*list)->previous = l;
    *list = l;
}

static void take_out(server *s, connection *l)
{
    connection **list = l->guest ? &s->clients : &s->strangers;
    if (l->previous)
        l->previous->next = l->next;
    else
        *list = l->next;
    if (l->next)
        l->next->previous = l->previous;
    if (s->oldest == l)
        s->oldest = l->previous;
}

/* Freed after the present batch of events, some of which may be its own. */
static void drop(server *s, connection *l, bool said_goodbye)
{
    if (l->dead)
        return;
    l->dead = true;
    take_out(s, l);
    if (l->guest) {
        atomic_fetch_sub(&s->n_clients, 1);
        store_lose(s->store, l->guest, said_goodbye, clock_seconds());
    } else {
        atomic_fetch_sub(&s->n_strangers, 1);
    }
    l->next_dead = s->dead;
    s->dead = l;
}

static void bury(server *s)
{
    while (s->dead) {
        connection *l = s->dead;
        s->dead = l->next_dead;
        line_close(&l->line);
        free(l);
    }
}

static const char *name_peer(const connection *l, char *text, size_t bytes)
{
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    char host[64] = "a process of this host", port[16] = "";
    if (getpeername(l->line.socket, (struct sockaddr *)&peer, &length) == 0 && peer.ss_family != AF_UNIX)
        getnameinfo((struct sockaddr *)&peer, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, bytes, port[0] ? "%s:%s" : "%s", host, port);
    return text;
}

/* A flood of strangers does not become a flood of lines. */
static void log_refusal(server *s, const connection *l, const char *why)
{
    char peer[96];
    long n = atomic_fetch_add(&s->n_refused, 1) + 1;
    if (n <= LOGGED_REFUSALS)
        log_write(FSDP_LOG_WARNING, "rendezvous: refused %s: %s", name_peer(l, peer, sizeof peer), why);
    else if ((n & (n - 1)) == 0)
        log_write(FSDP_LOG_WARNING, "rendezvous: refused %ld connections so far; the last, %s: %s", n,
                  name_peer(l, peer, sizeof peer), why);
}

/* ---- sending ---- */

static void watch_link(server *s, connection *l)
{
    bool waits = l->line.out_bytes > 0;
    struct epoll_event e = {.events = EPOLLIN | (waits ? EPOLLOUT : 0u), .data.ptr = l};
    if (waits != l->waits_to_send)
        epoll_ctl(s->epoll, EPOLL_CTL_MOD, l->line.socket, &e);
    l->waits_to_send = waits;
}

/* Who does not take what it is sent is cut off: its own reader then finds the end. */
static void push(server *s, connection *l)
{
    if (l->dead)
        return;
    if (!line_flush(&l->line))
        shutdown(l->line.socket, SHUT_RDWR);
    watch_link(s, l);
}

static void send_to_guest(void *context, store_guest *g, uint32_t kind, const void *body, size_t bytes)
{
    connection *l = g->link;
    if (l->dead)
        return;
    if (kind == WIRE_NOTHING || !line_queue(&l->line, kind, body, bytes))
        shutdown(l->line.socket, SHUT_RDWR);
    push(context, l);
}

/* ---- strangers ---- */

static void refuse(server *s, connection *l, enum wire_refusal why, const char *text)
{
    wire_body body = {0};
    wire_put_u32(&body, why);
    wire_put_text(&body, text);
    line_queue(&l->line, WIRE_REFUSED, body.data, body.bytes);
    line_flush(&l->line);
    wire_free(&body);
    drop(s, l, false);
}

static void let_in(server *s)
{
    struct epoll_event e = {.events = EPOLLIN};
    for (int i = 0; i < EVENTS; i++) {
        int socket = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0)
            return;
        connection *l = calloc(1, sizeof *l);
        if (!l || secret_draw_bytes(l->nonce, sizeof l->nonce) != FSDP_OK) {
            close(socket);
            free(l);
            return;
        }
        line_open(&l->line, socket);
        l->line.limit = LINE_STRANGER_BYTES;
        l->since = clock_seconds();
        e.data.ptr = l;
        if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, socket, &e) < 0) {
            line_close(&l->line);
            free(l);
            continue;
        }
        put_in(&s->strangers, l);
        if (!s->oldest)
            s->oldest = l;
        if (s->config.at.port < 0 && !endpoint_is_own_user(socket)) {
            atomic_fetch_add(&s->n_strangers, 1);
            log_refusal(s, l, "it belongs to another user");
            drop(s, l, false);
            continue;
        }
        endpoint_set_options(socket);
        if (atomic_fetch_add(&s->n_strangers, 1) >= MAX_STRANGERS) {
            log_refusal(s, s->oldest, "it said nothing, and others wait");
            drop(s, s->oldest, false);
        }
        wire_body greeting = {0};
        uint64_t magic = WIRE_MAGIC;
        wire_put(&greeting, &magic, sizeof magic);
        wire_put(&greeting, l->nonce, sizeof l->nonce);
        line_queue(&l->line, WIRE_GREETING, greeting.data, greeting.bytes);
        wire_free(&greeting);
        push(s, l);
    }
}

typedef struct hello {
    uint8_t nonce[SECRET_NONCE_BYTES], proof[SECRET_PROOF_BYTES];
    char job[WIRE_NAME_BYTES];
    store_introduction who;
} hello;

static bool read_hello(const void *data, size_t bytes, hello *h, const void **claimed, size_t *claimed_bytes)
{
    wire_reader r = wire_read(data, bytes);
    wire_get(&r, h->proof, sizeof h->proof);
    *claimed = r.at;
    *claimed_bytes = r.left;
    wire_get(&r, h->nonce, sizeof h->nonce);
    wire_get_text(&r, h->job, sizeof h->job);
    wire_get_text(&r, h->who.circle, sizeof h->who.circle);
    h->who.seat = wire_get_i32(&r);
    h->who.seats = wire_get_i32(&r);
    wire_get_text(&r, h->who.who, sizeof h->who.who);
    return wire_done(&r);
}

static void admit(server *s, connection *l, const hello *h)
{
    store_guest *g;
    uint8_t proof[SECRET_PROOF_BYTES];
    if (store_admit(s->store, &h->who, l, &g) != FSDP_OK) {
        log_refusal(s, l, fsdp_last_error());
        refuse(s, l, WIRE_WRONG_SEAT, fsdp_last_error());
        return;
    }
    take_out(s, l);
    l->guest = g;
    put_in(&s->clients, l);
    atomic_fetch_sub(&s->n_strangers, 1);
    atomic_fetch_add(&s->n_clients, 1);
    atomic_fetch_add(&s->n_admitted, 1);
    l->line.limit = LINE_BODY_BYTES;
    secret_prove(&s->key, "store", h->nonce, l->nonce, sizeof l->nonce, proof);
    line_queue(&l->line, WIRE_WELCOME, proof, sizeof proof);
    push(s, l);
}

static void hear_stranger(server *s, connection *l, uint32_t kind, const void *body, size_t bytes)
{
    hello h = {.job = ""};
    uint8_t proof[SECRET_PROOF_BYTES];
    const void *claimed;
    size_t claimed_bytes;
    char text[WIRE_TEXT_BYTES];
    if (kind != WIRE_HELLO || !read_hello(body, bytes, &h, &claimed, &claimed_bytes)) {
        log_refusal(s, l, "it does not speak this protocol");
        drop(s, l, false);
        return;
    }
    secret_prove(&s->key, "client", l->nonce, claimed, claimed_bytes, proof);
    if (strcmp(h.job, s->job) != 0) {
        snprintf(text, sizeof text, "another job meets here (%.100s)", s->job);
        refuse(s, l, WIRE_WRONG_JOB, text);
    } else if (!secret_same(proof, h.proof)) {
        snprintf(text, sizeof text, "%.100s does not know the job's secret", h.who.who[0] ? h.who.who : "a client");
        log_refusal(s, l, text);
        refuse(s, l, WIRE_WRONG_SECRET, "the secret is not this job's");
    } else if (atomic_load(&s->n_clients) >= MAX_CLIENTS) {
        refuse(s, l, WIRE_FULL, "too many clients are here");
    } else {
        admit(s, l, &h);
    }
}

static void send_strangers_away(server *s)
{
    double now = clock_seconds();
    while (s->oldest && now - s->oldest->since > stranger_seconds) {
        log_refusal(s, s->oldest, "it did not say who it is");
        drop(s, s->oldest, false);
    }
}

/* ---- the thread ---- */

static bool serve(server *s, connection *l, uint32_t kind, const void *body, size_t bytes)
{
    wire_body answer = {0};
    bool served = s->config.serve(s->config.context, kind, body, bytes, &answer);
    if (served && !answer.failed)
        send_to_guest(s, l->guest, WIRE_ANSWER, answer.data, answer.bytes);
    wire_free(&answer);
    return served;
}

static bool hear_guest(server *s, connection *l, uint32_t kind, const void *body, size_t bytes)
{
    if (kind >= WIRE_PART_WRITE && s->config.serve)
        return serve(s, l, kind, body, bytes);
    return store_hear(s->store, l->guest, kind, body, bytes, clock_seconds());
}

static void hear(server *s, connection *l)
{
    const void *body;
    uint32_t kind;
    size_t bytes;
    line_state state;
    while (!l->dead && (state = line_receive(&l->line, &kind, &body, &bytes)) != LINE_NOTHING) {
        if (state != LINE_MESSAGE) {
            if (!l->guest && state == LINE_GARBLED)
                log_refusal(s, l, "it does not speak this protocol");
            drop(s, l, false);
        } else if (!l->guest) {
            hear_stranger(s, l, kind, body, bytes);
        } else if (kind == WIRE_LEAVE) {
            drop(s, l, true);
        } else if (!hear_guest(s, l, kind, body, bytes)) {
            char who[WIRE_NAME_BYTES + 64];
            snprintf(who, sizeof who, "%s sent a message that makes no sense", l->guest->who);
            log_refusal(s, l, who);
            drop(s, l, false);
        }
    }
}

static void *server_main(void *argument)
{
    server *s = argument;
    struct epoll_event events[EVENTS];
    double next_tick = 0;
    while (!atomic_load(&s->stop)) {
        int n = epoll_wait(s->epoll, events, EVENTS, TICK_MILLISECONDS);
        for (int i = 0; i < n; i++) {
            connection *l = events[i].data.ptr;
            if (events[i].data.ptr == &s->listener)
                let_in(s);
            else if (events[i].data.ptr != &s->wake && !l->dead && (events[i].events & EPOLLOUT))
                push(s, l);
            if (events[i].data.ptr != &s->listener && events[i].data.ptr != &s->wake && !l->dead &&
                (events[i].events & ~(uint32_t)EPOLLOUT))
                hear(s, l);
        }
        double now = clock_seconds();
        if (now >= next_tick) {
            store_tick(s->store, now);
            send_strangers_away(s);
            next_tick = now + TICK_MILLISECONDS * 1e-3;
        }
        bury(s);
    }
    return NULL;
}

/* ---- opening and closing ---- */

static fsdp_status start_thread(server *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the caller's */
    int error = pthread_create(&s->thread, NULL, server_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return error_set(FSDP_ERR_MEMORY, "cannot start the thread of the rendezvous: %s", strerror(error));
    s->running = true;
    return FSDP_OK;
}

fsdp_status server_open(const server_config *config, server **out)
{
    if (config->at.port >= 0 && !secret_can_prove())
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "this build cannot check the secret of a job, so nobody is let in over the network: "
                         "configure it where libcrypto is installed (apt install libssl-dev)");
    server *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "no memory for the rendezvous");
    s->config = *config;
    s->key = *config->key;
    snprintf(s->job, sizeof s->job, "%s", config->job);
    s->listener = s->epoll = s->wake = -1;
    fsdp_status status;
    TRY_OR(fail, endpoint_listen(&s->config.at, config->anywhere, &s->listener));
    s->store = store_new(send_to_guest, s, config->policy);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event visitor = {.events = EPOLLIN, .data.ptr = &s->listener};
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = &s->wake};
    if (!s->store || s->epoll < 0 || s->wake < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &visitor) < 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &wake) < 0) {
        status = error_set_errno(FSDP_ERR_IO, "cannot open the rendezvous");
        goto fail;
    }
    TRY_OR(fail, start_thread(s));
    *out = s;
    return FSDP_OK;
fail:
    server_close(s, 0);
    return status;
}

const endpoint *server_endpoint(const server *s)
{
    return &s->config.at;
}

server_counts server_count(server *s)
{
    return (server_counts){.clients = atomic_load(&s->n_clients),
                           .strangers = atomic_load(&s->n_strangers),
                           .admitted = atomic_load(&s->n_admitted),
                           .refused = atomic_load(&s->n_refused)};
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

void server_close(server *s, double linger)
{
    if (!s)
        return;
    double deadline = clock_seconds() + linger;
    struct timespec pause = {.tv_nsec = 2000000};
    while (s->running && atomic_load(&s->n_clients) > 0 && clock_seconds() < deadline)
        nanosleep(&pause, NULL);
    atomic_store(&s->stop, true);
    uint64_t one = 1;
    if (s->running) {
        ssize_t ignored = write(s->wake, &one, sizeof one);
        (void)ignored;
        pthread_join(s->thread, NULL);
    }
    while (s->clients)
        drop(s, s->clients, true);
    while (s->strangers)
        drop(s, s->strangers, false);
    bury(s);
    store_free(s->store);
    close_if_open(s->listener);
    close_if_open(s->epoll);
    close_if_open(s->wake);
    free(s);
}
