/* Addresses: read, listened at, connected to. */
#include "meet/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { BACKLOG = 4096, UNIX = -1 };

fsdp_status endpoint_parse(const char *text, int default_port, endpoint *out)
{
    endpoint e = {.port = default_port};
    const char *host = text, *end = text + strlen(text), *colon = strrchr(text, ':');
    if (strncmp(text, "unix:", 5) == 0) {
        e.port = UNIX;
        host = text + 5;
    } else if (text[0] == '[') {
        host = text + 1;
        end = strchr(text, ']');
        colon = end && end[1] == ':' ? end + 1 : NULL;
        if (!end || (end[1] && end[1] != ':'))
            return error_set(FSDP_ERR_INPUT, "'%s' is not an address; write [address]:port", text);
    } else if (colon && strchr(text, ':') == colon) {
        end = colon;
    } else {
        colon = NULL; /* none, or an IPv6 address without a port */
    }
    if (colon && e.port != UNIX) {
        char *rest;
        long port = strtol(colon + 1, &rest, 10);
        if (rest == colon + 1 || *rest || port < 0 || port > 65535)
            return error_set(FSDP_ERR_INPUT, "'%s' has no port from 1 to 65535 behind its colon", text);
        e.port = (int)port;
    }
    size_t n = (size_t)(end - host);
    if (n == 0 || n >= sizeof e.host)
        return error_set(FSDP_ERR_INPUT, "'%s' names no host; write host or host:port", text);
    memcpy(e.host, host, n);
    *out = e;
    return FSDP_OK;
}

const char *endpoint_text(const endpoint *e, char text[ENDPOINT_TEXT_BYTES])
{
    const char *form = e->port == UNIX ? "unix:%s" : strchr(e->host, ':') ? "[%s]:%d" : "%s:%d";
    snprintf(text, ENDPOINT_TEXT_BYTES, form, e->host, e->port);
    return text;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* Whether the address was written down, not looked up: what a name means may differ from host to host. */
static bool is_literal(const char *host)
{
    uint8_t address[16];
    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1 ||
           strcmp(host, "localhost") == 0;
}

static struct addrinfo *look_up(const char *host, int port, int flags, int *code)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    *code = getaddrinfo(host, service, &hints, &list);
    return *code == 0 ? list : NULL;
}

static bool means_loopback(const endpoint *e)
{
    int code;
    struct addrinfo *list = look_up(e->host, e->port, 0, &code);
    bool inside = list && is_loopback(list->ai_addr);
    if (list)
        freeaddrinfo(list);
    return inside;
}

bool endpoint_is_loopback(const endpoint *e)
{
    return e->port == UNIX || (is_literal(e->host) && means_loopback(e));
}

bool endpoint_is_misleading(const endpoint *e)
{
    return e->port != UNIX && !is_literal(e->host) && means_loopback(e);
}

static socklen_t unix_address(const endpoint *e, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%s", e->host);
    size_t most = sizeof a->sun_path - 2;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + ((size_t)n < most ? (size_t)n : most));
}

static int listen_one(const struct sockaddr *address, socklen_t length)
{
    int on = 1, s = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -1;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s, address, length) == 0 && listen(s, BACKLOG) == 0)
        return s;
    int error = errno;
    close(s);
    errno = error;
    return -1;
}

static void note_port(int socket, endpoint *e)
{
    struct sockaddr_storage found;
    socklen_t length = sizeof found;
    if (e->port != 0 || getsockname(socket, (struct sockaddr *)&found, &length) < 0)
        return;
    e->port = ntohs(found.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&found)->sin6_port
                                                : ((struct sockaddr_in *)&found)->sin_port);
}

fsdp_status endpoint_listen(endpoint *e, bool anywhere, int *out)
{
    char text[ENDPOINT_TEXT_BYTES];
    int code = 0, s = -1, error = EADDRNOTAVAIL;
    if (e->port == UNIX) {
        struct sockaddr_un address;
        socklen_t length = unix_address(e, &address);
        s = listen_one((const struct sockaddr *)&address, length);
        error = errno;
    } else {
        struct addrinfo *list = look_up(anywhere ? NULL : e->host, e->port, anywhere ? AI_PASSIVE : 0, &code);
        if (!list)
            return error_set(FSDP_ERR_INPUT, "%s is no address: %s", e->host, gai_strerror(code));
        for (struct addrinfo *a = list; a && s < 0; a = a->ai_next) {
            s = listen_one(a->ai_addr, a->ai_addrlen);
            error = s < 0 && error != EADDRINUSE ? errno : error; /* somebody who is there matters most */
        }
        freeaddrinfo(list);
    }
    if (s < 0) {
        errno = error;
        return error_set_errno(error == EADDRINUSE      ? FSDP_ERR_STATE
                               : error == EADDRNOTAVAIL ? FSDP_ERR_INPUT
                                                        : FSDP_ERR_IO,
                               "cannot listen at %s", endpoint_text(e, text));
    }
    note_port(s, e);
    *out = s;
    return FSDP_OK;
}

static bool finish_connect(int s, double deadline)
{
    struct pollfd p = {.fd = s, .events = POLLOUT};
    double left = deadline - clock_seconds();
    int error = 0;
    socklen_t length = sizeof error;
    return poll(&p, 1, left > 0 ? (int)(left * 1e3) + 1 : 0) == 1 &&
           getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

static int connect_one(const struct sockaddr *address, socklen_t length, double deadline)
{
    int s = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -1;
    if (connect(s, address, length) == 0 || (errno == EINPROGRESS && finish_connect(s, deadline)))
        return s;
    close(s);
    return -1;
}

/* A port that the system gives to outgoing connections may be given to this one: it then talks to itself. */
static bool is_own_echo(int s)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t a = sizeof here, b = sizeof there;
    return getsockname(s, (struct sockaddr *)&here, &a) == 0 && getpeername(s, (struct sockaddr *)&there, &b) == 0 &&
           a == b && memcmp(&here, &there, a) == 0 && here.ss_family != AF_UNIX;
}

int endpoint_connect(const endpoint *e, double seconds)
{
    double deadline = clock_seconds() + seconds;
    int code, s = -1;
    if (e->port == UNIX) {
        struct sockaddr_un address;
        socklen_t length = unix_address(e, &address);
        return connect_one((const struct sockaddr *)&address, length, deadline);
    }
    struct addrinfo *list = look_up(e->host, e->port, 0, &code);
    for (struct addrinfo *a = list; a && s < 0; a = a->ai_next) {
        s = connect_one(a->ai_addr, a->ai_addrlen, deadline);
        if (s >= 0 && is_own_echo(s)) {
            close(s);
            s = -1;
        }
    }
    if (list)
        freeaddrinfo(list);
    if (s >= 0)
        endpoint_set_options(s);
    return s;
}

bool endpoint_is_own_user(int socket)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

void endpoint_set_options(int socket)
{
    int on = 1, idle = 5, interval = 2, count = 5, unheard = 15000;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard, sizeof unheard);
}

void endpoint_own_address(int socket, char *text, size_t bytes)
{
    struct sockaddr_storage here;
    socklen_t length = sizeof here;
    char host[128] = "127.0.0.1";
    if (getsockname(socket, (struct sockaddr *)&here, &length) == 0 && here.ss_family != AF_UNIX)
        getnameinfo((struct sockaddr *)&here, length, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    snprintf(text, bytes, "%s", host);
}
