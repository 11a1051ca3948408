#include "launch/support_cut_link.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/support_launched.h"

enum { MAX_PAIRS = 64, HELD_BYTES = 1 << 17 };

static const double cut_seconds = 0.5, ghost_seconds = 3;

typedef struct half {
    int from, to;
    size_t bytes;
    char held[HELD_BYTES];
} half;

typedef struct proxy {
    int listener, n;
    endpoint store;
    half halves[MAX_PAIRS][DIRECTIONS];
    cut_kind kind;
    int direction, at;
    cut_progress *progress;
    double ghosts_until; /* 0: there are none */
} proxy;

/* As when TCP has given up: the other end finds an error. */
static void reset_connection(int *socket)
{
    struct linger at_once = {.l_onoff = 1};
    if (*socket < 0)
        return;
    setsockopt(*socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(*socket);
    *socket = -1;
}

static void hang_up(half *pair)
{
    for (int d = 0; d < DIRECTIONS; d++)
        if (pair[d].from >= 0)
            close(pair[d].from);
    for (int d = 0; d < DIRECTIONS; d++)
        pair[d].from = pair[d].to = -1;
}

static void reset_all(proxy *p, int side)
{
    for (int i = 0; i < p->n; i++)
        reset_connection(&p->halves[i][side].from);
}

static void let_in(proxy *p)
{
    int client = accept(p->listener, NULL, NULL), store = client >= 0 ? endpoint_connect(&p->store, 1) : -1;
    if (store < 0 || p->n == MAX_PAIRS) {
        reset_connection(&client);
        reset_connection(&store);
        return;
    }
    half *pair = p->halves[p->n++];
    pair[TO_STORE].from = pair[FROM_STORE].to = client;
    pair[FROM_STORE].from = pair[TO_STORE].to = store;
    pair[TO_STORE].bytes = pair[FROM_STORE].bytes = 0;
}

static void cut(proxy *p)
{
    while (p->kind == CUT_FOR_GOOD)
        pause();
    pause_seconds(cut_seconds);
    if (p->kind == CUT_SHORT)
        return;
    reset_all(p, TO_STORE);
    if (p->kind == CUT_LONG)
        reset_all(p, FROM_STORE);
    for (int i = 0; i < p->n; i++) /* the store's side may still be open, but nobody reads there */
        p->halves[i][TO_STORE].to = p->halves[i][FROM_STORE].to = -1;
    if (p->kind == CUT_LONG)
        p->n = 0;
    else
        p->ghosts_until = clock_seconds() + ghost_seconds;
}

/* In the end the store's TCP gives up, too. */
static void end_ghosts(proxy *p)
{
    if (p->ghosts_until == 0 || clock_seconds() < p->ghosts_until)
        return;
    p->ghosts_until = 0;
    for (int i = 0; i < p->n; i++)
        if (p->halves[i][FROM_STORE].to < 0)
            reset_connection(&p->halves[i][FROM_STORE].from);
}

/* The messages of a direction that are whole, up to the one at which the link is cut. */
static void pass_on(proxy *p, int pair, int d)
{
    half *h = &p->halves[pair][d];
    uint32_t header[2]; /* kind, bytes of the body */
    while (h->to >= 0 && h->bytes >= sizeof header) {
        memcpy(header, h->held, sizeof header);
        size_t whole = sizeof header + header[1];
        if (h->bytes < whole)
            return;
        int number = atomic_fetch_add(&p->progress->messages[d], 1) + 1;
        if (d == p->direction && number == p->at) {
            atomic_store(&p->progress->kind, (int)header[0]);
            cut(p);
            if (p->kind != CUT_SHORT)
                return;
        }
        if (send(h->to, h->held, whole, MSG_NOSIGNAL) < 0)
            return;
        memmove(h->held, h->held + whole, h->bytes - whole);
        h->bytes -= whole;
    }
}

static void take_in(proxy *p, int pair, int d)
{
    half *h = &p->halves[pair][d];
    ssize_t got = recv(h->from, h->held + h->bytes, HELD_BYTES - h->bytes, MSG_DONTWAIT);
    if (got <= 0 && h->to < 0)
        reset_connection(&h->from);
    else if (got <= 0)
        hang_up(p->halves[pair]);
    else {
        h->bytes = h->to < 0 ? 0 : h->bytes + (size_t)got; /* what nobody reads is lost */
        pass_on(p, pair, d);
    }
}

static void run_proxy(proxy *p)
{
    struct pollfd polls[1 + MAX_PAIRS * DIRECTIONS];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int n = p->n;
        polls[0] = (struct pollfd){.fd = p->listener, .events = POLLIN};
        for (int i = 0; i < n * DIRECTIONS; i++)
            polls[1 + i] = (struct pollfd){.fd = p->halves[i / DIRECTIONS][i % DIRECTIONS].from, .events = POLLIN};
        poll(polls, (nfds_t)(1 + n * DIRECTIONS), p->ghosts_until != 0 ? 100 : -1);
        end_ghosts(p);
        for (int i = 0; i < n * DIRECTIONS && p->n >= n; i++)
            if (polls[1 + i].revents && p->halves[i / DIRECTIONS][i % DIRECTIONS].from >= 0)
                take_in(p, i / DIRECTIONS, i % DIRECTIONS);
        if (polls[0].revents)
            let_in(p);
    }
}

void cut_link_open(cut_link *l, const endpoint *store, cut_kind kind, int direction, int at)
{
    static proxy p;          /* each process has its own */
    memset(&p, 0, sizeof p); /* megabytes: too many for the stack, where a compound literal may lie */
    p.store = *store;
    p.kind = kind;
    p.direction = direction;
    p.at = at;
    l->at = (endpoint){.host = "127.0.0.1"};
    assert_int_equal(endpoint_listen(&l->at, false, &p.listener), 0);
    l->progress = p.progress =
        mmap(NULL, sizeof *p.progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(l->progress, MAP_FAILED);
    l->pid = fork();
    assert_true(l->pid >= 0);
    if (l->pid == 0)
        run_proxy(&p);
    close(p.listener);
}

void cut_link_close(cut_link *l)
{
    kill(l->pid, SIGKILL);
    waitpid(l->pid, NULL, 0);
    munmap(l->progress, sizeof *l->progress);
}
