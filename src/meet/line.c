/* Framed messages, without blocking. */
#include "meet/line.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

typedef struct header {
    uint32_t kind, bytes;
} header;

enum { MIN_ROOM = 2048 };

void line_open(line *l, int socket)
{
    *l = (line){.socket = socket, .limit = LINE_BODY_BYTES};
}

void line_close(line *l)
{
    if (l->socket >= 0)
        close(l->socket);
    free(l->out);
    free(l->in);
    *l = (line){.socket = -1};
}

static bool make_room(char **memory, size_t *room, size_t wanted)
{
    if (wanted <= *room)
        return true;
    size_t more = *room ? *room : MIN_ROOM;
    while (more < wanted)
        more *= 2;
    char *grown = realloc(*memory, more);
    if (!grown)
        return false;
    *memory = grown;
    *room = more;
    return true;
}

bool line_queue(line *l, uint32_t kind, const void *body, size_t bytes)
{
    header h = {kind, (uint32_t)bytes};
    if (l->socket < 0)
        return true;
    if (l->out_bytes > LINE_QUEUE_BYTES || !make_room(&l->out, &l->out_room, l->out_bytes + sizeof h + bytes))
        return false;
    memcpy(l->out + l->out_bytes, &h, sizeof h);
    if (bytes)
        memcpy(l->out + l->out_bytes + sizeof h, body, bytes);
    l->out_bytes += sizeof h + bytes;
    return true;
}

bool line_flush(line *l)
{
    size_t sent = 0;
    bool whole = true;
    while (l->socket >= 0 && sent < l->out_bytes) {
        ssize_t n = send(l->socket, l->out + sent, l->out_bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            whole = errno == EAGAIN || errno == EWOULDBLOCK;
            break;
        }
        sent += (size_t)n;
    }
    if (sent)
        memmove(l->out, l->out + sent, l->out_bytes - sent);
    l->out_bytes -= sent;
    return whole;
}

bool line_flush_until(line *l, double deadline)
{
    while (line_flush(l)) {
        double left = deadline - clock_seconds();
        struct pollfd p = {.fd = l->socket, .events = POLLOUT};
        if (l->out_bytes == 0 || l->socket < 0)
            return true;
        if (left <= 0 || poll(&p, 1, (int)(left * 1e3) + 1) < 0)
            return false;
    }
    return false;
}

/* The message at the front of what was read, if all of it is there; *missing bytes of it are still to come. */
static line_state take(line *l, uint32_t *kind, const void **body, size_t *bytes, size_t *missing)
{
    header h;
    if (l->taken) {
        memmove(l->in, l->in + l->taken, l->in_bytes - l->taken);
        l->in_bytes -= l->taken;
        l->taken = 0;
    }
    *missing = sizeof h;
    if (l->in_bytes < sizeof h)
        return LINE_NOTHING;
    memcpy(&h, l->in, sizeof h);
    if (h.bytes > l->limit)
        return LINE_GARBLED;
    *missing = sizeof h + h.bytes - (l->in_bytes < sizeof h + h.bytes ? l->in_bytes : sizeof h + h.bytes);
    if (*missing > 0)
        return LINE_NOTHING;
    *kind = h.kind;
    *body = l->in + sizeof h;
    *bytes = h.bytes;
    l->taken = sizeof h + h.bytes;
    return LINE_MESSAGE;
}

line_state line_receive(line *l, uint32_t *kind, const void **body, size_t *bytes)
{
    while (l->socket >= 0) {
        size_t missing;
        line_state state = take(l, kind, body, bytes, &missing);
        if (state != LINE_NOTHING)
            return state;
        if (!make_room(&l->in, &l->in_room, l->in_bytes + missing))
            return LINE_BROKEN;
        ssize_t n = recv(l->socket, l->in + l->in_bytes, l->in_room - l->in_bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return LINE_NOTHING;
        if (n <= 0)
            return LINE_BROKEN;
        l->in_bytes += (size_t)n;
    }
    return LINE_NOTHING;
}
