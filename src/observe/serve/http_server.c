/* libmicrohttpd with one thread. The socket is ours, so that a port that is taken gives an error with a reason. */
#include "observe/serve/http_server.h"

#include "base/error.h"

#ifdef FSDP_WITH_MICROHTTPD
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 64, REQUEST_BYTES = 16384, IDLE_SECONDS = 10, BACKLOG = 16 };

struct http_server {
    struct MHD_Daemon *daemon;
    const http_route *routes;
    int n_routes, port;
};

static enum MHD_Result send_text(struct MHD_Connection *c, unsigned code, const char *text)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result sent = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return sent;
}

static enum MHD_Result send_route(struct MHD_Connection *c, const http_route *route)
{
    size_t bytes = 0;
    char *text = route->answer(route->context, &bytes);
    if (!text)
        return send_text(c, MHD_HTTP_SERVICE_UNAVAILABLE, "no answer at this moment\n");
    struct MHD_Response *r = MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, route->content_type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    enum MHD_Result sent = MHD_queue_response(c, MHD_HTTP_OK, r);
    MHD_destroy_response(r);
    return sent;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version, const char *upload, size_t *upload_bytes, void **request)
{
    const http_server *s = context;
    (void)version, (void)upload, (void)upload_bytes, (void)request;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_text(c, MHD_HTTP_METHOD_NOT_ALLOWED, "read-only\n");
    for (int i = 0; i < s->n_routes; i++) {
        if (strcmp(s->routes[i].path, path) == 0)
            return send_route(c, &s->routes[i]);
    }
    return send_text(c, MHD_HTTP_NOT_FOUND, "not found\n");
}

static fsdp_status listen_at(const char *flag, const char *address, int port, int *out)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[16];
    const int yes = 1;
    snprintf(service, sizeof service, "%d", port);
    int unknown = getaddrinfo(address, service, &hints, &found);
    if (unknown)
        return error_set(FSDP_ERR_INPUT, "%s: no address \"%s\" on this host: %s", flag, address,
                         gai_strerror(unknown));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool bound = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                 bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    fsdp_status status =
        bound ? FSDP_OK
              : error_set_errno(FSDP_ERR_INPUT, "%s %d: cannot listen at %s (choose another port, or auto for any)",
                                flag, port, address);
    freeaddrinfo(found);
    if (!bound && fd >= 0)
        close(fd);
    *out = fd;
    return status;
}

static int port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t bytes = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &bytes) != 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

/* Signals are for the threads of the run. */
static struct MHD_Daemon *start(http_server *s, int fd)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, handle, s, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)REQUEST_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

fsdp_status http_server_open(const char *flag, const char *address, int port, const http_route *routes, int n_routes,
                             http_server **out)
{
    int fd = -1;
    *out = NULL;
    FSDP_TRY(listen_at(flag, address, port, &fd));
    http_server *s = calloc(1, sizeof *s);
    if (s) {
        *s = (http_server){.routes = routes, .n_routes = n_routes, .port = port_of(fd)};
        s->daemon = start(s, fd);
    }
    if (!s || !s->daemon) {
        close(fd);
        free(s);
        return error_set(FSDP_ERR_IO, "%s %d: the HTTP server does not start (no memory or threads left)", flag, port);
    }
    *out = s;
    return FSDP_OK;
}

int http_server_port(const http_server *s)
{
    return s->port;
}

void http_server_close(http_server *s)
{
    if (s)
        MHD_stop_daemon(s->daemon); /* closes the socket, too */
    free(s);
}
#else
fsdp_status http_server_open(const char *flag, const char *address, int port, const http_route *routes, int n_routes,
                             http_server **out)
{
    (void)address, (void)port, (void)routes, (void)n_routes;
    *out = NULL;
    return error_set(FSDP_ERR_UNSUPPORTED,
                     "%s: this fsdp was built without libmicrohttpd (apt install libmicrohttpd-dev, then build again)",
                     flag);
}

int http_server_port(const http_server *s)
{
    (void)s;
    return 0;
}

void http_server_close(http_server *s)
{
    (void)s;
}
#endif
