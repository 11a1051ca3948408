/* The HTTP server answers its routes and nothing else, guarded ones only to those who may, and strangers cannot make it
 * stop: oversized headers, a thousand connections, readers that do not read. Streams tell what is new. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "observe/serve/http_server.h"

enum { PATIENCE_MS = 60000, LARGE = 8 << 20 };

typedef struct site {
    atomic_int asked, limit;
    http_route routes[3];
    http_server *server;
} site;

static char *small(void *context, size_t *bytes)
{
    atomic_fetch_add((atomic_int *)context, 1);
    *bytes = 6;
    return strdup("hello\n");
}

static char *large(void *context, size_t *bytes)
{
    (void)context;
    *bytes = LARGE;
    return calloc(1, LARGE);
}

static char *nothing(void *context, size_t *bytes)
{
    (void)context, (void)bytes;
    return NULL;
}

static int open_site(void **state)
{
    site *s = *state = calloc(1, sizeof *s);
    s->routes[0] = (http_route){.path = "/small", .content_type = "text/plain", .answer = small, .context = &s->asked};
    s->routes[1] = (http_route){.path = "/large", .content_type = "text/plain", .answer = large};
    s->routes[2] = (http_route){.path = "/nothing", .content_type = "text/plain", .answer = nothing};
    http_config config = {.flag = "--port", .address = "127.0.0.1", .routes = s->routes, .n_routes = 3};
    fsdp_status status = http_server_open(&config, &s->server);
#ifndef FSDP_WITH_MICROHTTPD
    assert_int_equal(status, FSDP_ERR_UNSUPPORTED);
    return 0;
#endif
    assert_int_equal(status, FSDP_OK);
    return 0;
}

static int close_site(void **state)
{
    site *s = *state;
    http_server_close(s->server);
    free(s);
    return 0;
}

/* A socket on its way to the server; it may wait for its turn. */
static int dial(const site *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_server_port(s->server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        assert_int_equal(errno, EINPROGRESS);
    return fd;
}

/* Sends and reads until the server closes; what came is cut to `room`. The server may hang up at any time. */
static void converse(const site *s, const char *request, size_t bytes, char *answer, size_t room)
{
    int fd = dial(s);
    size_t sent = 0, got = 0;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = (short)(POLLIN | (sent < bytes ? POLLOUT : 0))};
        assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        if (p.revents & POLLOUT && sent < bytes) {
            ssize_t n = send(fd, request + sent, bytes - sent, MSG_NOSIGNAL);
            sent = n > 0 ? sent + (size_t)n : errno == EAGAIN ? sent : bytes;
        }
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
            char some[4096];
            ssize_t n = recv(fd, some, sizeof some, 0);
            if (n < 0 && errno == EAGAIN)
                continue;
            if (n <= 0)
                break;
            size_t kept = (size_t)n < room - 1 - got ? (size_t)n : room - 1 - got;
            memcpy(answer + got, some, kept);
            got += kept;
        }
    }
    answer[got] = '\0';
    close(fd);
}

static void expect(const site *s, const char *request, const char *code)
{
    char answer[2048];
    converse(s, request, strlen(request), answer, sizeof answer);
    if (!strstr(answer, code))
        fail_msg("%s is answered: %s", request, answer);
}

#define NEEDS_SERVER(s)                                                                                                \
    if (!(s)->server)                                                                                                  \
    skip()

static void routes_are_answered_and_nothing_else(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    expect(s, "GET /small HTTP/1.0\r\n\r\n", "\r\n\r\nhello\n");
    expect(s, "HEAD /small HTTP/1.0\r\n\r\n", " 200 ");
    assert_int_equal(atomic_load(&s->asked), 2);
    expect(s, "GET /small/ HTTP/1.0\r\n\r\n", " 404 ");
    expect(s, "GET /../../etc/passwd HTTP/1.0\r\n\r\n", " 404 ");
    expect(s, "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.0\r\n\r\n", " 404 ");
    expect(s, "POST /small HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", " 405 ");
    expect(s, "DELETE /small HTTP/1.0\r\n\r\n", " 405 ");
    expect(s, "GET /nothing HTTP/1.0\r\n\r\n", " 503 ");
    assert_int_equal(atomic_load(&s->asked), 2);
}

static void oversized_and_broken_requests_reach_no_route(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    enum { BYTES = 1 << 20 };
    char *request = malloc(BYTES), answer[2048];
    memset(request, 'a', BYTES);
    memcpy(request, "GET /small HTTP/1.0\r\nX: ", 24);
    converse(s, request, BYTES, answer, sizeof answer);
    assert_null(strstr(answer, " 200 "));
    memset(request, 'a', BYTES);
    converse(s, request, BYTES, answer, sizeof answer);
    assert_null(strstr(answer, " 200 "));
    free(request);
    assert_int_equal(atomic_load(&s->asked), 0);
    expect(s, "GET /small HTTP/1.0\r\n\r\n", "hello");
}

/* They ask for much and read nothing; others are answered meanwhile. */
static void slow_readers_do_not_hold_up_others(void **state)
{
    static const char request[] = "GET /large HTTP/1.0\r\n\r\n";
    site *s = *state;
    NEEDS_SERVER(s);
    int slow[8];
    for (int i = 0; i < 8; i++) {
        slow[i] = dial(s);
        struct pollfd p = {.fd = slow[i], .events = POLLOUT};
        assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        assert_int_equal(send(slow[i], request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    }
    expect(s, "GET /small HTTP/1.0\r\n\r\n", "hello");
    for (int i = 0; i < 8; i++)
        close(slow[i]);
}

static void a_thousand_connections_pass(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    enum { MANY = 1000 };
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int n = limit.rlim_max >= 2 * MANY ? MANY : (int)limit.rlim_max / 3, *fds = calloc(MANY, sizeof *fds);
    for (int i = 0; i < n; i++)
        fds[i] = dial(s);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    free(fds);
    expect(s, "GET /small HTTP/1.0\r\n\r\n", "hello");
}

/* ---- Guards and streams ---- */

/* Counts up, a line at a time; says farewell. */
static char *count_up(void *context, int64_t cursor[HTTP_CURSOR], bool last, size_t *bytes)
{
    char *text = NULL;
    int limit = atomic_load((atomic_int *)context);
    if (!last && cursor[0] >= limit)
        return NULL;
    *bytes = (size_t)(last ? asprintf(&text, "data: end\n\n") : asprintf(&text, "data: %d\n\n", (int)++cursor[0]));
    return text;
}

static int open_guarded(void **state, const char *token)
{
    site *s = *state = calloc(1, sizeof *s);
    s->routes[0] = (http_route){
        .path = "/small", .content_type = "text/plain", .answer = small, .context = &s->asked, .guarded = true};
    s->routes[1] = (http_route){.path = "/open", .content_type = "text/plain", .answer = small, .context = &s->asked};
    s->routes[2] = (http_route){.path = "/events",
                                .content_type = "text/event-stream",
                                .next = count_up,
                                .context = &s->limit,
                                .guarded = true};
    http_config config = {.flag = "--port", .address = "127.0.0.1", .routes = s->routes, .n_routes = 3, .token = token};
#ifdef FSDP_WITH_MICROHTTPD
    assert_int_equal(http_server_open(&config, &s->server), FSDP_OK);
#else
    assert_int_equal(http_server_open(&config, &s->server), FSDP_ERR_UNSUPPORTED);
#endif
    return 0;
}

static int open_with_token(void **state)
{
    return open_guarded(state, "open-sesame");
}

static int open_without_token(void **state)
{
    return open_guarded(state, NULL);
}

static void guarded_routes_want_the_token(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    expect(s, "GET /small HTTP/1.0\r\n\r\n", " 401 ");
    expect(s, "GET /events HTTP/1.0\r\n\r\n", " 401 ");
    expect(s, "GET /small?token=open-sesam HTTP/1.0\r\n\r\n", " 401 ");
    expect(s, "GET /small?token=open-sesame2 HTTP/1.0\r\n\r\n", " 401 ");
    expect(s, "GET /small?token= HTTP/1.0\r\n\r\n", " 401 ");
    expect(s, "GET /small?token HTTP/1.0\r\n\r\n", " 401 ");
    expect(s, "GET /small HTTP/1.0\r\nAuthorization: Basic open-sesame\r\n\r\n", " 401 ");
    assert_int_equal(atomic_load(&s->asked), 0);
    expect(s, "GET /small?token=open-sesame HTTP/1.0\r\n\r\n", "hello");
    expect(s, "GET /small?token=open-sesame HTTP/1.0\r\nHost: somewhere.example\r\n\r\n", "hello");
    expect(s, "GET /small HTTP/1.0\r\nAuthorization: Bearer open-sesame\r\n\r\n", "hello");
    expect(s, "GET /open HTTP/1.0\r\n\r\n", "hello");
}

/* A page of somebody else's, whose name was made to mean this host, cannot read. */
static void without_a_token_only_this_host_is_asked_for(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    expect(s, "GET /small HTTP/1.0\r\nHost: evil.example:80\r\n\r\n", " 403 ");
    expect(s, "GET /events HTTP/1.0\r\nHost: evil.example\r\n\r\n", " 403 ");
    expect(s, "GET /small HTTP/1.0\r\nHost: localhost.evil.example\r\n\r\n", " 403 ");
    expect(s, "GET /small HTTP/1.0\r\nHost: 127.0.0.1.evil.example\r\n\r\n", " 403 ");
    assert_int_equal(atomic_load(&s->asked), 0);
    expect(s, "GET /small HTTP/1.0\r\nHost: localhost:8080\r\n\r\n", "hello");
    expect(s, "GET /small HTTP/1.0\r\nHost: 127.0.0.1:8080\r\n\r\n", "hello");
    expect(s, "GET /small HTTP/1.0\r\nHost: [::1]:8080\r\n\r\n", "hello");
    expect(s, "GET /open HTTP/1.0\r\nHost: prometheus.example\r\n\r\n", "hello");
}

static void ask_for_events(int fd)
{
    static const char request[] = "GET /events HTTP/1.0\r\n\r\n";
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
}

/* Reads on until `text` has come. */
static void await(int fd, const char *text, char *got, size_t room)
{
    while (!strstr(got, text)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        size_t used = strlen(got);
        assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        ssize_t n = recv(fd, got + used, room - 1 - used, 0);
        assert_true(n > 0);
        got[used + (size_t)n] = '\0';
    }
}

static void streams_tell_what_is_new_and_say_farewell(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    int fds[3];
    char got[3][2048] = {""};
    atomic_store(&s->limit, 2);
    for (int i = 0; i < 3; i++)
        ask_for_events(fds[i] = dial(s));
    for (int i = 0; i < 3; i++)
        await(fds[i], "data: 2\n\n", got[i], sizeof got[i]);
    expect(s, "GET /open HTTP/1.0\r\n\r\n", "hello"); /* others are answered while streams sleep */
    atomic_store(&s->limit, 3);
    for (int i = 0; i < 3; i++)
        await(fds[i], "data: 3\n\n", got[i], sizeof got[i]);
    assert_null(strstr(got[0], "data: 4"));
    close(fds[0]); /* one leaves; the server notices by itself */
    http_server_close(s->server);
    s->server = NULL;
    for (int i = 1; i < 3; i++) {
        await(fds[i], "data: end\n\n", got[i], sizeof got[i]);
        close(fds[i]);
    }
}

static void only_so_many_may_watch(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    int fds[HTTP_STREAMS];
    atomic_store(&s->limit, 1);
    for (int i = 0; i < HTTP_STREAMS; i++) {
        char got[2048] = "";
        ask_for_events(fds[i] = dial(s));
        await(fds[i], "data: 1\n\n", got, sizeof got);
    }
    expect(s, "GET /events HTTP/1.0\r\n\r\n", " 503 ");
    expect(s, "GET /open HTTP/1.0\r\n\r\n", "hello");
    for (int i = 0; i < HTTP_STREAMS; i++)
        close(fds[i]);
}

static void a_taken_port_is_an_error_that_names_it(void **state)
{
    site *s = *state;
    NEEDS_SERVER(s);
    http_server *other;
    char wanted[64];
    int port = http_server_port(s->server);
    snprintf(wanted, sizeof wanted, "--port %d: cannot listen at 127.0.0.1", port);
    http_config config = {.flag = "--port", .address = "127.0.0.1", .port = port, .routes = s->routes, .n_routes = 3};
    assert_int_equal(http_server_open(&config, &other), FSDP_ERR_INPUT);
    assert_null(other);
    assert_non_null(strstr(fsdp_last_error(), wanted));
    config.address = "no such host";
    assert_int_equal(http_server_open(&config, &other), FSDP_ERR_INPUT);
}

#ifdef FSDP_WITH_MICROHTTPD
static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Too few descriptors for libmicrohttpd, after the socket is open: an error, and every descriptor is closed once. */
static void a_server_that_does_not_start_leaves_nothing_behind(void **state)
{
    struct rlimit before, few;
    http_server *server;
    http_route route = {.path = "/small", .content_type = "text/plain", .answer = small};
    http_config config = {.flag = "--port", .address = "127.0.0.1", .routes = &route, .n_routes = 1};
    int n = open_descriptors(), lowest = dup(0);
    (void)state;
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t room = 0; room < 4; room++) {
        few = (struct rlimit){.rlim_cur = (rlim_t)lowest + room, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        fsdp_status status = http_server_open(&config, &server);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_true(status == FSDP_ERR_IO || status == FSDP_ERR_INPUT);
        assert_non_null(strstr(fsdp_last_error(), "--port"));
        assert_null(server);
        assert_int_equal(open_descriptors(), n);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(routes_are_answered_and_nothing_else, open_site, close_site),
        cmocka_unit_test_setup_teardown(oversized_and_broken_requests_reach_no_route, open_site, close_site),
        cmocka_unit_test_setup_teardown(slow_readers_do_not_hold_up_others, open_site, close_site),
        cmocka_unit_test_setup_teardown(a_thousand_connections_pass, open_site, close_site),
        cmocka_unit_test_setup_teardown(guarded_routes_want_the_token, open_with_token, close_site),
        cmocka_unit_test_setup_teardown(without_a_token_only_this_host_is_asked_for, open_without_token, close_site),
        cmocka_unit_test_setup_teardown(streams_tell_what_is_new_and_say_farewell, open_without_token, close_site),
        cmocka_unit_test_setup_teardown(only_so_many_may_watch, open_without_token, close_site),
        cmocka_unit_test_setup_teardown(a_taken_port_is_an_error_that_names_it, open_site, close_site),
#ifdef FSDP_WITH_MICROHTTPD
        cmocka_unit_test(a_server_that_does_not_start_leaves_nothing_behind),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
