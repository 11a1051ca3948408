/* libmicrohttpd with one thread, and a second that wakes streams. The socket is ours, so that a port that is taken
 * gives an error with a reason. */
#include "observe/serve/http_server.h"

#include "base/error.h"

#ifdef FSDP_WITH_MICROHTTPD
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_CONNECTIONS = 64,
    REQUEST_BYTES = 16384,
    IDLE_SECONDS = 10,
    BACKLOG = 16,
    BLOCK_BYTES = 16384,
    WAKE_MS = 400,     /* between two looks for something new to tell */
    FAREWELL_MS = 500, /* that streams have for their last words */
};

/* A client of a stream. It sleeps (is suspended) while there is nothing to tell. */
typedef struct stream {
    struct stream *next;
    http_server *server;
    const http_route *route;
    struct MHD_Connection *connection;
    int64_t cursor[HTTP_CURSOR];
    char *text; /* being sent */
    size_t bytes, sent;
    bool sleeps; /* under the lock */
    bool ended;  /* its last words are said */
} stream;

struct http_server {
    struct MHD_Daemon *daemon;
    const http_route *routes;
    int n_routes, port;
    char *token;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t change;
    stream *streams;
    int n_streams;
    bool closing;
    bool has_waker;
    pthread_t waker;
};

static enum MHD_Result send_text(struct MHD_Connection *c, unsigned code, const char *text)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    enum MHD_Result sent = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return sent;
}

static enum MHD_Result send_response(struct MHD_Connection *c, const http_route *route, struct MHD_Response *r)
{
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, route->content_type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "X-Frame-Options", "DENY");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer"); /* the address may hold the token */
    enum MHD_Result sent = MHD_queue_response(c, MHD_HTTP_OK, r);
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
    return send_response(c, route, r);
}

/* ---- Streams ---- */

/* Asks for more to send. False: there is nothing, and the stream sleeps, or its end has come. */
static bool refill(stream *t, bool *end)
{
    http_server *s = t->server;
    pthread_mutex_lock(&s->lock);
    bool last = s->closing;
    pthread_mutex_unlock(&s->lock);
    *end = t->ended;
    if (t->ended)
        return false;
    free(t->text);
    t->sent = t->bytes = 0;
    t->text = t->route->next(t->route->context, t->cursor, last, &t->bytes);
    t->ended = last;
    *end = last && !t->text;
    if (t->text || last)
        return t->text != NULL;
    pthread_mutex_lock(&s->lock);
    t->sleeps = !s->closing;
    if (t->sleeps)
        MHD_suspend_connection(t->connection); /* under the lock: nobody wakes it before it sleeps */
    pthread_mutex_unlock(&s->lock);
    return false;
}

static ssize_t read_stream(void *context, uint64_t position, char *out, size_t room)
{
    stream *t = context;
    bool end = false;
    (void)position;
    if (t->sent == t->bytes && !refill(t, &end))
        return end ? MHD_CONTENT_READER_END_OF_STREAM : 0;
    size_t n = t->bytes - t->sent < room ? t->bytes - t->sent : room;
    memcpy(out, t->text + t->sent, n);
    t->sent += n;
    return (ssize_t)n;
}

static void end_stream(void *context)
{
    stream *t = context;
    http_server *s = t->server;
    pthread_mutex_lock(&s->lock);
    stream **at = &s->streams;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at) {
        *at = t->next;
        s->n_streams--;
    }
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    free(t->text);
    free(t);
}

static enum MHD_Result send_stream(http_server *s, struct MHD_Connection *c, const http_route *route)
{
    stream *t = calloc(1, sizeof *t);
    if (!t)
        return MHD_NO;
    *t = (stream){.server = s, .route = route, .connection = c};
    pthread_mutex_lock(&s->lock);
    bool room = s->n_streams < HTTP_STREAMS && !s->closing;
    if (room) {
        t->next = s->streams;
        s->streams = t;
        s->n_streams++;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    if (!room) {
        free(t);
        return send_text(c, MHD_HTTP_SERVICE_UNAVAILABLE, "too many watch already\n");
    }
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, t, end_stream);
    if (!r) {
        end_stream(t);
        return MHD_NO;
    }
    return send_response(c, route, r);
}

/* Under the lock. */
static void wake_streams(http_server *s)
{
    for (stream *t = s->streams; t; t = t->next) {
        if (t->sleeps)
            MHD_resume_connection(t->connection);
        t->sleeps = false;
    }
}

/* Waits for a change, for `ms` at most. Under the lock. */
static void wait_for_change(http_server *s, long ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!s->closing && pthread_cond_timedwait(&s->change, &s->lock, &until) != ETIMEDOUT) {
    }
}

static void *wake(void *context)
{
    http_server *s = context;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        if (!s->streams)
            pthread_cond_wait(&s->change, &s->lock);
        else
            wait_for_change(s, WAKE_MS);
        wake_streams(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- Who may ask ---- */

/* Takes the same time wherever the two differ. */
static bool same_text(const char *a, const char *b)
{
    size_t n = strlen(a), given = strlen(b);
    unsigned difference = n != given;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned)(a[i] ^ (i < given ? b[i] : 0));
    return difference == 0;
}

/* A page of somebody else's whose name was made to mean this host must not read ours: it would send its name. */
static bool names_this_host(const char *host)
{
    if (!host)
        return true; /* not a browser */
    size_t name = strcspn(host, ":");
    if (host[0] == '[' || (name == 9 && strncasecmp(host, "localhost", 9) == 0))
        return true;
    for (size_t i = 0; i < name; i++)
        if (!isdigit((unsigned char)host[i]) && host[i] != '.')
            return false;
    return name > 0;
}

static bool knows_token(const http_server *s, struct MHD_Connection *c)
{
    const char *asked = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token");
    const char *header = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (asked && same_text(s->token, asked))
        return true;
    return header && strncasecmp(header, "Bearer ", 7) == 0 && same_text(s->token, header + 7);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version, const char *upload, size_t *upload_bytes, void **request)
{
    http_server *s = context;
    const http_route *route = NULL;
    (void)version, (void)upload, (void)upload_bytes, (void)request;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_text(c, MHD_HTTP_METHOD_NOT_ALLOWED, "read-only\n");
    for (int i = 0; i < s->n_routes; i++)
        if (strcmp(s->routes[i].path, path) == 0)
            route = &s->routes[i];
    if (!route)
        return send_text(c, MHD_HTTP_NOT_FOUND, "not found\n");
    if (route->guarded && s->token && !knows_token(s, c))
        return send_text(c, MHD_HTTP_UNAUTHORIZED, "give the token that the run printed: ?token=...\n");
    if (route->guarded && !s->token &&
        !names_this_host(MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST)))
        return send_text(c, MHD_HTTP_FORBIDDEN, "ask for 127.0.0.1 or localhost\n");
    return route->next ? send_stream(s, c, route) : send_route(c, route);
}

/* ---- Opening ---- */

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

static bool has_streams(const http_config *c)
{
    for (int i = 0; i < c->n_routes; i++)
        if (c->routes[i].next)
            return true;
    return false;
}

/* Takes `fd`, of the socket that new_server saw. Whether libmicrohttpd closes it when it does not start depends on how
 * far it came; another thread may have that number by then, but not for a socket at our port. */
static bool start_threads(http_server *s, const http_config *c, int fd)
{
    s->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, handle, s,
                                 MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END);
    if (!s->daemon) {
        if (port_of(fd) == s->port)
            close(fd);
        return false;
    }
    s->has_waker = has_streams(c) && pthread_create(&s->waker, NULL, wake, s) == 0;
    return s->has_waker || !has_streams(c);
}

static http_server *new_server(const http_config *c, int fd)
{
    http_server *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (http_server){.routes = c->routes, .n_routes = c->n_routes, .port = port_of(fd)};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->token = c->token ? strdup(c->token) : NULL;
    return s;
}

fsdp_status http_server_open(const http_config *c, http_server **out)
{
    int fd = -1;
    sigset_t all, before;
    *out = NULL;
    FSDP_TRY(listen_at(c->flag, c->address, c->port, &fd));
    http_server *s = new_server(c, fd);
    sigfillset(&all); /* signals are for the threads of the run */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int given = s && (s->token || !c->token) ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    bool started = given >= 0 && start_threads(s, c, given);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(fd);
    if (started) {
        *out = s;
        return FSDP_OK;
    }
    http_server_close(s);
    return error_set(FSDP_ERR_IO, "%s %d: the HTTP server does not start (no memory or threads left)", c->flag,
                     c->port);
}

int http_server_port(const http_server *s)
{
    return s->port;
}

/* Streams get a moment for their last words; then all are awake, which libmicrohttpd wants before it stops. */
static void end_streams(http_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->change);
    wake_streams(s);
    struct timespec pause = {.tv_nsec = 10 * 1000000};
    for (int waited = 0; s->streams && waited < FAREWELL_MS; waited += 10) {
        pthread_mutex_unlock(&s->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

void http_server_close(http_server *s)
{
    if (!s)
        return;
    end_streams(s);
    if (s->has_waker)
        pthread_join(s->waker, NULL);
    if (s->daemon)
        MHD_stop_daemon(s->daemon); /* closes the socket, too */
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    free(s->token);
    free(s);
}
#else
fsdp_status http_server_open(const http_config *c, http_server **out)
{
    *out = NULL;
    return error_set(FSDP_ERR_UNSUPPORTED,
                     "%s: this fsdp was built without libmicrohttpd (apt install libmicrohttpd-dev, then build again)",
                     c->flag);
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
