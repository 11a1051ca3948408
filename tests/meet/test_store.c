/* The store at its socket: values, counters, gathers and rounds as they should be, and ten thousand messages that
 * should not: nobody gets in, nothing stays, and those who belong are served meanwhile. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "meet/open_server.h"

static fsdp_status open_client(const server *s, const secret *with, const char *circle, int seat, int seats,
                               client **out)
{
    client_config config = {
        .candidates = server_endpoint(s), .n_candidates = 1, .key = with, .job = "job", .timeout_seconds = 10};
    config.who.seat = seat;
    config.who.seats = seats;
    snprintf(config.who.circle, sizeof config.who.circle, "%s", circle);
    snprintf(config.who.who, sizeof config.who.who, "rank %d", seat);
    return client_open(&config, out);
}

/* ---- as it should be ---- */

static void values_are_set_awaited_and_added(void **state)
{
    (void)state;
    server *s = open_server(NULL);
    client *a, *b;
    char text[16] = "";
    size_t bytes;
    int64_t sum;
    assert_int_equal(open_client(s, &key, "x", 0, 2, &a), FSDP_OK);
    assert_int_equal(open_client(s, &key, "x", 1, 2, &b), FSDP_OK);
    assert_int_equal(client_set(a, "name", "seven", 6), FSDP_OK);
    assert_int_equal(client_get(b, "name", 5, text, sizeof text, &bytes), FSDP_OK);
    assert_string_equal(text, "seven");
    assert_int_equal(bytes, 6);
    assert_int_equal(client_get(b, "other", 0.1, text, sizeof text, &bytes), FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(fsdp_last_error(), "other"));
    assert_int_equal(client_add(a, "n", 40, &sum), FSDP_OK);
    assert_int_equal(client_add(b, "n", 2, &sum), FSDP_OK);
    assert_int_equal(sum, 42);
    assert_int_equal(client_add(b, "name", 2, &sum), FSDP_ERR_INPUT); /* six bytes are no counter */
    client_close(a);
    client_close(b);
    server_close(s, 1);
}

typedef struct waiter {
    client *client;
    char text[16];
    size_t bytes;
    fsdp_status status;
} waiter;

static void *wait_for_value(void *argument)
{
    waiter *w = argument;
    w->status = client_get(w->client, "late", 20, w->text, sizeof w->text, &w->bytes);
    return NULL;
}

static void a_value_wakes_all_who_wait_for_it(void **state)
{
    (void)state;
    enum { WAITERS = 5 };
    server *s = open_server(NULL);
    client *setter;
    waiter waiters[WAITERS];
    pthread_t threads[WAITERS];
    assert_int_equal(open_client(s, &key, "x", WAITERS, WAITERS + 1, &setter), FSDP_OK);
    for (int i = 0; i < WAITERS; i++) {
        assert_int_equal(open_client(s, &key, "x", i, WAITERS + 1, &waiters[i].client), FSDP_OK);
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for_value, &waiters[i]), 0);
    }
    assert_int_equal(client_set(setter, "late", "here", 5), FSDP_OK);
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(waiters[i].status, FSDP_OK);
        assert_string_equal(waiters[i].text, "here");
        client_close(waiters[i].client);
    }
    client_close(setter);
    server_close(s, 1);
}

/* ---- strangers ---- */

static void a_wrong_secret_is_refused_by_name(void **state)
{
    (void)state;
    secret wrong = {.bytes = "another", .n = 7};
    server *s = open_server(NULL);
    client *c;
    assert_int_equal(open_client(s, &wrong, "x", 0, 2, &c), FSDP_ERR_PEER);
    assert_non_null(strstr(fsdp_last_error(), "our secret is not this job's"));
    server_counts counts = server_count(s);
    assert_int_equal(counts.admitted, 0);
    assert_int_equal(counts.refused, 1);
    server_close(s, 0);
}

static int connect_to(const server *s)
{
    return endpoint_connect(server_endpoint(s), 5);
}

/* Pages of this process that are in memory. */
static long resident_pages(void)
{
    long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &total, &resident), 2);
    fclose(file);
    return resident;
}

/* One of many ways to be wrong, by number: noise, lengths that lie, hellos without a proof, things that only members
 * may say, cut off anywhere. */
static size_t make_hostile(uint64_t number, uint8_t *out, size_t room)
{
    rng_key seed = rng_key_make(number);
    uint32_t kind = (uint32_t)(number % 3 == 0 ? WIRE_HELLO : rng_word(seed, 0, 0) % (WIRE_KINDS + 4));
    uint32_t lengths[] = {0, 16, 200, 900, 1024, 1025, 1 << 20, UINT32_MAX, (uint32_t)rng_word(seed, 0, 1)};
    uint32_t claimed = lengths[rng_word(seed, 0, 2) % 9];
    size_t n = rng_word(seed, 0, 3) % (room - 8);
    n = number % 5 == 0 && claimed < room - 8 ? claimed : n;
    for (size_t i = 0; i < n; i++)
        out[8 + i] = (uint8_t)(number % 4 == 0 ? 0 : rng_word(seed, 1, i));
    memcpy(out, &kind, sizeof kind);
    memcpy(out + 4, &claimed, sizeof claimed);
    if (number % 7 == 0)
        memset(out, (int)(number % 256), 8); /* no header at all */
    return number % 11 == 0 ? n / 2 : n + 8;
}

/* Pages for what malloc and threads do: 2 MiB. Sanitizers keep what was freed, and tell of leaks themselves. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MOST_GROWTH = 1 << 20 };
#else
enum { MOST_GROWTH = 512 };
#endif

static void ten_thousand_hostile_messages_change_nothing(void **state)
{
    (void)state;
    enum { MESSAGES = 10000, OPEN = 64 };
    rounds_policy policy = {.min_nodes = 1, .max_nodes = 1, .join_timeout_seconds = 600};
    server *s = open_server(&policy);
    client *member, *again;
    uint8_t message[2048];
    int open[OPEN];
    long before = 0;
    char text[8];
    size_t bytes;
    assert_int_equal(open_client(s, &key, "x", 0, 2, &member), FSDP_OK);
    assert_int_equal(client_set(member, "name", "seven", 6), FSDP_OK);
    for (int i = 0; i < OPEN; i++)
        open[i] = -1;
    for (int i = 0; i < MESSAGES; i++) {
        int *place = &open[i % OPEN]; /* some stay, and say no more */
        if (*place >= 0)
            close(*place);
        *place = connect_to(s);
        assert_true(*place >= 0);
        size_t n = make_hostile((uint64_t)i, message, sizeof message);
        (void)send(*place, message, n, MSG_NOSIGNAL);
        if (i == MESSAGES / 2)
            before = resident_pages();
        if (i % 1000 == 0)
            assert_int_equal(client_get(member, "name", 5, text, sizeof text, &bytes), FSDP_OK);
    }
    assert_true(resident_pages() - before < MOST_GROWTH);
    server_counts counts = server_count(s);
    assert_int_equal(counts.admitted, 1);
    assert_int_equal(counts.clients, 1);
    assert_true(counts.strangers <= 256);
    for (int i = 0; i < OPEN; i++)
        close(open[i]);
    assert_int_equal(open_client(s, &key, "x", 1, 2, &again), FSDP_OK);
    client_close(again);
    client_close(member);
    server_close(s, 1);
}

/* A member whose messages make no sense is out, too. */
static void a_member_that_breaks_the_rules_is_dropped(void **state)
{
    (void)state;
    server *s = open_server(NULL);
    client *c;
    const void *body;
    uint32_t kind;
    size_t bytes;
    assert_int_equal(open_client(s, &key, "x", 0, 1, &c), FSDP_OK);
    client_send(c, WIRE_GATHER, "?", 1);
    double deadline = clock_seconds() + 10;
    line_state last = LINE_NOTHING;
    while (last == LINE_NOTHING && clock_seconds() < deadline)
        last = client_receive(c, &kind, &body, &bytes);
    assert_int_equal(last, LINE_BROKEN);
    assert_int_equal(server_count(s).clients, 0);
    client_close(c);
    server_close(s, 1);
}

static void silent_strangers_make_room_for_others(void **state)
{
    (void)state;
    enum { SILENT = 300 };
    server *s = open_server(NULL);
    int sockets[SILENT];
    client *c;
    for (int i = 0; i < SILENT; i++)
        assert_true((sockets[i] = connect_to(s)) >= 0);
    double start = clock_seconds();
    assert_int_equal(open_client(s, &key, "x", 0, 1, &c), FSDP_OK);
    assert_true(clock_seconds() - start < 9); /* before the first stranger is sent away for its silence */
    assert_true(server_count(s).strangers <= 256);
    for (int i = 0; i < SILENT; i++)
        close(sockets[i]);
    client_close(c);
    server_close(s, 1);
}

/* Without libcrypto this is the only way in: no secret, but the same user. */
static void a_unix_socket_admits_the_same_user(void **state)
{
    (void)state;
    server_config config = {.at = {.port = -1}, .key = &key, .job = "job"};
    server *s;
    client *c;
    snprintf(config.at.host, sizeof config.at.host, "fsdp-test-%d", (int)getpid());
    assert_int_equal(server_open(&config, &s), FSDP_OK);
    assert_int_equal(open_client(s, &key, "x", 0, 1, &c), FSDP_OK);
    assert_int_equal(client_barrier(c, "alone", 5), FSDP_OK);
    client_close(c);
    server_close(s, 1);
    if (geteuid() != 0)
        return; /* only root can be somebody else */
    assert_int_equal(server_open(&config, &s), FSDP_OK);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        int stranger = setuid(65534) == 0 ? connect_to(s) : -1;
        struct pollfd p = {.fd = stranger, .events = POLLIN};
        _exit(stranger < 0 || poll(&p, 1, 5000) != 1 || recv(stranger, &byte, 1, 0) != 0); /* not even a greeting */
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(server_count(s).refused, 1);
    server_close(s, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_set_awaited_and_added),
        cmocka_unit_test(a_value_wakes_all_who_wait_for_it),
        cmocka_unit_test(a_wrong_secret_is_refused_by_name),
        cmocka_unit_test(ten_thousand_hostile_messages_change_nothing),
        cmocka_unit_test(a_member_that_breaks_the_rules_is_dropped),
        cmocka_unit_test(silent_strangers_make_room_for_others),
        cmocka_unit_test(a_unix_socket_admits_the_same_user),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
