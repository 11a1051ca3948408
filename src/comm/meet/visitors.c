/* Hears all visitors, some bytes at a time. */
#include "comm/meet/visitors.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

/* In the order in which they came. */
struct visitors {
    int listener, n, most;
    size_t hello_bytes;
    int *sockets;          /* (most) */
    size_t *heard;         /* (most) bytes of each hello */
    uint8_t *hellos;       /* (most, hello_bytes) */
    struct pollfd *polled; /* (most + 1), the listener first */
};

visitors *visitors_new(int listener, size_t hello_bytes, int most)
{
    visitors *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    *v = (visitors){.listener = listener, .most = most, .hello_bytes = hello_bytes};
    v->sockets = calloc((size_t)most, sizeof *v->sockets);
    v->heard = calloc((size_t)most, sizeof *v->heard);
    v->hellos = calloc((size_t)most, hello_bytes);
    v->polled = calloc((size_t)most + 1, sizeof *v->polled);
    if (v->sockets && v->heard && v->hellos && v->polled)
        return v;
    visitors_free(v);
    return NULL;
}

void visitors_free(visitors *v)
{
    if (!v)
        return;
    for (int i = 0; i < v->n; i++)
        close(v->sockets[i]);
    free(v->polled);
    free(v->hellos);
    free(v->heard);
    free(v->sockets);
    free(v);
}

/* The others move up; the socket is not closed. */
static void forget(visitors *v, int i)
{
    size_t after = (size_t)(v->n - i - 1);
    memmove(v->sockets + i, v->sockets + i + 1, after * sizeof *v->sockets);
    memmove(v->heard + i, v->heard + i + 1, after * sizeof *v->heard);
    memmove(v->hellos + (size_t)i * v->hello_bytes, v->hellos + (size_t)(i + 1) * v->hello_bytes,
            after * v->hello_bytes);
    v->n--;
}

static fsdp_status let_in(visitors *v)
{
    int socket = accept4(v->listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return errno == EINTR || errno == ECONNABORTED || errno == EAGAIN
                   ? FSDP_OK
                   : error_set_errno(FSDP_ERR_IO, "cannot accept a connection of another rank");
    if (v->n == v->most) {
        close(v->sockets[0]);
        forget(v, 0);
    }
    v->sockets[v->n] = socket;
    v->heard[v->n++] = 0;
    return FSDP_OK;
}

/* True when the hello of i is complete. One that hangs up is forgotten; then the next has number i. */
static bool hear(visitors *v, int *i)
{
    uint8_t *hello = v->hellos + (size_t)*i * v->hello_bytes;
    ssize_t got = recv(v->sockets[*i], hello + v->heard[*i], v->hello_bytes - v->heard[*i], MSG_DONTWAIT);
    if (got > 0) {
        v->heard[*i] += (size_t)got;
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
        close(v->sockets[*i]);
        forget(v, (*i)--);
        return false;
    }
    return v->heard[*i] == v->hello_bytes;
}

fsdp_status visitors_next(visitors *v, double deadline, void *hello, int *socket)
{
    *socket = -1;
    for (int late = 0; late <= v->most;) { /* who connected in time is heard, and no flood of others goes on for ever */
        double left = deadline - clock_seconds();
        v->polled[0] = (struct pollfd){.fd = v->listener, .events = POLLIN};
        for (int i = 0; i < v->n; i++)
            v->polled[i + 1] = (struct pollfd){.fd = v->sockets[i], .events = POLLIN};
        int n = v->n, ready = poll(v->polled, (nfds_t)n + 1, left <= 0 ? 0 : (int)(left * 1e3) + 1);
        if (ready < 0 && errno != EINTR)
            return error_set_errno(FSDP_ERR_IO, "cannot wait for other ranks");
        if (ready == 0 && left <= 0)
            break;
        late += left <= 0;
        for (int i = 0, k = 1; ready > 0 && k <= n; i++, k++) {
            if (!v->polled[k].revents || !hear(v, &i))
                continue;
            memcpy(hello, v->hellos + (size_t)i * v->hello_bytes, v->hello_bytes);
            *socket = v->sockets[i];
            forget(v, i);
            return FSDP_OK;
        }
        if (ready > 0 && v->polled[0].revents)
            FSDP_TRY(let_in(v));
    }
    return FSDP_OK;
}
