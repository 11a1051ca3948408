/* HTTP/1.0: the answer ends when the server closes. */
#include "report/live/server_ask.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

/* Until the socket can do `events`; false: it is too late. */
static bool await(int fd, short events, double deadline)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        double left = deadline - clock_seconds();
        int ready = left > 0 ? poll(&p, 1, (int)(left * 1e3) + 1) : 0;
        if (ready >= 0 || errno != EINTR)
            return ready > 0;
    }
}

static bool send_all(int fd, const char *text, double deadline)
{
    for (size_t bytes = strlen(text), sent = 0; sent < bytes;) {
        ssize_t n = await(fd, POLLOUT, deadline) ? send(fd, text + sent, bytes - sent, MSG_NOSIGNAL) : -1;
        if (n <= 0)
            return false;
        sent += (size_t)n;
    }
    return true;
}

/* Reads until the server closes. malloc'd with a NUL at its end; NULL: it broke off, is too long or too slow. */
static char *receive_all(int fd, size_t most, double deadline, size_t *bytes)
{
    size_t used = 0, room = 65536;
    char *text = malloc(room + 1);
    while (text) {
        ssize_t n = await(fd, POLLIN, deadline) ? recv(fd, text + used, room - used, 0) : -1;
        if (n < 0 && errno == EAGAIN && clock_seconds() < deadline)
            continue;
        if (n < 0)
            break;
        used += (size_t)n;
        if (n == 0) {
            text[ *bytes = used] = '\0';
            return text;
        }
        if (used < room)
            continue;
        if (room >= most)
            break;
        room = 2 * room < most ? 2 * room : most;
        char *larger = realloc(text, room + 1);
        if (!larger)
            break;
        text = larger;
    }
    free(text);
    return NULL;
}

/* Takes the body out of the answer. */
static fsdp_status open_answer(const char *where, char *text, size_t *bytes)
{
    int code = 0;
    char *head = strstr(text, "\r\n\r\n");
    if (!head || sscanf(text, "HTTP/1.%*1d %d", &code) != 1)
        return error_set(FSDP_ERR_INPUT, "%s: is no server of fsdp", where);
    if (code == 401)
        return error_set(FSDP_ERR_INPUT, "%s: wants its token; the run printed it: --token, or FSDP_DASHBOARD_TOKEN",
                         where);
    if (code != 200)
        return error_set(FSDP_ERR_INPUT, "%s: answers %d; is it the port of --dashboard?", where, code);
    *bytes -= (size_t)(head + 4 - text);
    memmove(text, head + 4, *bytes + 1);
    return FSDP_OK;
}

fsdp_status server_ask(const endpoint *server, const char *path, const char *token, size_t most, double seconds,
                       char **body, size_t *bytes)
{
    char where[ENDPOINT_TEXT_BYTES], request[1024];
    double deadline = clock_seconds() + seconds;
    endpoint_text(server, where);
    *body = NULL;
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.0\r\nHost: %s\r\n%s%s%s\r\n", path, where,
                     token[0] ? "Authorization: Bearer " : "", token, token[0] ? "\r\n" : "");
    if (n >= (int)sizeof request || strpbrk(token, "\r\n"))
        return error_set(FSDP_ERR_INPUT, "%s: that is no token", where);
    int fd = endpoint_connect(server, seconds);
    if (fd < 0)
        return error_set(FSDP_ERR_IO, "%s: nobody is there; does the run train, with --dashboard?", where);
    char *text = send_all(fd, request, deadline) ? receive_all(fd, most, deadline, bytes) : NULL;
    close(fd);
    if (!text)
        return error_set(FSDP_ERR_IO, "%s: no whole answer within %.0f s", where, seconds);
    fsdp_status status = open_answer(where, text, bytes);
    if (status == FSDP_OK)
        *body = text;
    else
        free(text);
    return status;
}
