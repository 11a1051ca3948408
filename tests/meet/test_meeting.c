/* The meeting of ranks at a store that rank 0 opens: who comes gets what the others gave, who does not belong is sent
 * away, who is missing is named, and messages arrive whole and in order. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fsdp/status.h>

#include "base/clock.h"
#include "comm/ports.h"
#include "meet/meeting.h"

enum { GIFT_BYTES = 128 };

typedef struct guest {
    job job;
    double timeout;
    char payload[GIFT_BYTES];
    meeting *meeting;
    fsdp_status status;
    char error[512];
} guest;

static job member(int rank, int world_size, int port, const char *token)
{
    job j = job_single();
    j.rank = rank;
    j.world_size = world_size;
    j.master_port = port;
    snprintf(j.token, sizeof j.token, "%s", token);
    return j;
}

static void *share_gift(void *argument)
{
    guest *g = argument;
    g->status = meeting_share(g->meeting, "gift", g->payload, sizeof g->payload);
    if (g->status != FSDP_OK)
        snprintf(g->error, sizeof g->error, "%s", fsdp_last_error());
    return NULL;
}

static void *come(void *argument)
{
    guest *g = argument;
    g->status = meeting_open(&g->job, g->timeout, &g->meeting);
    if (g->status == FSDP_OK)
        return share_gift(g);
    snprintf(g->error, sizeof g->error, "%s", fsdp_last_error());
    return NULL;
}

static void meet(guest *guests, int n)
{
    pthread_t threads[8];
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come, &guests[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

enum { GREETING = MEET_USER };

/* What a rank heard, one word a message: "2:out of cheese 2:left". */
typedef struct diary {
    char text[512];
} diary;

static void write_down(void *context, const meeting_message *m)
{
    diary *d = context;
    size_t used = strlen(d->text);
    snprintf(d->text + used, sizeof d->text - used, "%s%d:%.*s", used ? " " : "", m->rank,
             m->kind == GREETING ? (int)m->bytes : 4,
             m->kind == GREETING    ? (const char *)m->body
             : m->kind == MEET_LEFT ? "left"
                                    : "lost");
}

/* Listens until the diary says this; messages that were sent together may arrive apart. */
static void hears(guest *g, diary *d, const char *expected)
{
    for (int i = 0; i < 500 && strlen(d->text) < strlen(expected); i++)
        meeting_listen(g->meeting, 20, write_down, d);
    assert_string_equal(d->text, expected);
}

static void everybody_gets_the_gift_and_messages_go_both_ways(void **state)
{
    (void)state;
    guest guests[3] = {{.payload = ""}};
    diary at_0 = {""}, at_1 = {""}, at_2 = {""};
    int port = free_port();
    for (int i = 0; i < 3; i++)
        guests[i] = (guest){.job = member(i, 3, port, "seven"), .timeout = 10};
    memset(guests[0].payload, 42, sizeof guests[0].payload);
    meet(guests, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(guests[i].status, FSDP_OK);
        assert_memory_equal(guests[i].payload, guests[0].payload, GIFT_BYTES);
    }
    meeting_send(guests[2].meeting, GREETING, "cheese", 6, -1);
    meeting_flush(guests[2].meeting, 5);
    hears(&guests[0], &at_0, "2:cheese");
    meeting_send(guests[0].meeting, GREETING, "to all but 2", 12, 2);
    meeting_send(guests[0].meeting, GREETING, "to all", 6, -1);
    meeting_flush(guests[0].meeting, 5);
    hears(&guests[1], &at_1, "0:to all but 2 0:to all");
    hears(&guests[2], &at_2, "0:to all");
    for (int i = 2; i >= 0; i--)
        meeting_close(guests[i].meeting);
}

static void a_rank_that_closes_says_goodbye_after_its_last_message(void **state)
{
    (void)state;
    int port = free_port();
    diary at_0 = {""};
    guest guests[] = {{.job = member(0, 2, port, ""), .timeout = 10}, {.job = member(1, 2, port, ""), .timeout = 10}};
    meet(guests, 2);
    meeting_listen(guests[0].meeting, 10, write_down, &at_0);
    assert_string_equal(at_0.text, "");
    meeting_send(guests[1].meeting, GREETING, "last", 4, -1);
    meeting_close(guests[1].meeting);
    hears(&guests[0], &at_0, "1:last 1:left");
    meeting_close(guests[0].meeting);
}

typedef struct counter {
    int n, n_wrong;
} counter;

static void count_messages(void *context, const meeting_message *m)
{
    counter *c = context;
    const char *body = m->body;
    for (size_t i = 0; i < m->bytes; i += 999)
        c->n_wrong += body[i] != (char)(c->n % 251);
    c->n_wrong += m->bytes != 100000;
    c->n++;
}

/* More than sockets hold: sending does not wait for a reader, and all of it arrives in order. */
static void sending_never_waits_for_the_reader(void **state)
{
    (void)state;
    enum { MESSAGES = 300, BYTES = 100000 };
    int port = free_port();
    guest guests[] = {{.job = member(0, 2, port, ""), .timeout = 10}, {.job = member(1, 2, port, ""), .timeout = 10}};
    char *body = malloc(BYTES);
    meet(guests, 2);
    double start = clock_seconds(), before = start, longest = 0;
    for (int i = 0; i < MESSAGES; i++) { /* the reader is this thread, and listens later */
        memset(body, i % 251, BYTES);
        meeting_send(guests[1].meeting, GREETING, body, BYTES, -1);
        double now = clock_seconds();
        longest = now - before > longest ? now - before : longest;
        before = now;
    }
    assert_true(longest < 2); /* whoever waits for one that does not listen waits longer, once or every time */
    assert_true(before - start < MESSAGES * 0.2);
    counter seen = {0};
    for (double end = clock_seconds() + 60; clock_seconds() < end && seen.n < MESSAGES;) {
        meeting_flush(guests[1].meeting, 0);
        meeting_listen(guests[0].meeting, 5, count_messages, &seen);
    }
    assert_int_equal(seen.n, MESSAGES);
    assert_int_equal(seen.n_wrong, 0);
    free(body);
    meeting_close(guests[1].meeting);
    meeting_close(guests[0].meeting);
}

/* Two of three ranks. Returns how many of them name the third alone. */
static int miss_rank_2(double seconds)
{
    int port = free_port(), n = 0;
    guest guests[] = {{.job = member(0, 3, port, ""), .timeout = seconds},
                      {.job = member(1, 3, port, ""), .timeout = 2 * seconds}};
    meet(guests, 2);
    for (int i = 1; i >= 0; i--) {
        assert_int_equal(guests[i].status, FSDP_ERR_TIMEOUT);
        n += strstr(guests[i].error, "rank 2 of 3 did not come") != NULL;
        meeting_close(guests[i].meeting);
    }
    return n;
}

/* Where the machine is busy, rank 1 may come too late as well: then both get more time. */
static void a_missing_rank_is_named(void **state)
{
    (void)state;
    int named = 0;
    for (double seconds = 0.5; seconds < 10 && named < 2; seconds *= 4)
        named = miss_rank_2(seconds);
    assert_int_equal(named, 2);
}

/* Rank 0 is there before the other looks for it, and until both have given up. */
static void a_rank_of_another_job_is_refused(void **state)
{
    (void)state;
    int port = free_port();
    guest guests[] = {{.job = member(0, 2, port, "mine")}, {.job = member(1, 2, port, "yours"), .timeout = 1}};
    assert_int_equal(meeting_open(&guests[0].job, 1.5, &guests[0].meeting), FSDP_OK);
    meet(&guests[1], 1);
    assert_int_equal(meeting_share(guests[0].meeting, "gift", guests[0].payload, GIFT_BYTES), FSDP_ERR_TIMEOUT);
    assert_int_equal(guests[1].status, FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(guests[1].error, "another job"));
    meeting_close(guests[0].meeting);
}

/* Two jobs that were given one port: the second goes to the next, and its ranks find it there. */
static void two_jobs_at_one_port_both_meet(void **state)
{
    (void)state;
    int port = free_port();
    guest guests[] = {{.job = member(0, 2, port, "one"), .timeout = 20},
                      {.job = member(1, 2, port, "one"), .timeout = 20},
                      {.job = member(1, 2, port, "two"), .timeout = 20},
                      {.job = member(0, 2, port, "two"), .timeout = 20}};
    strcpy(guests[0].payload, "of one");
    strcpy(guests[3].payload, "of two");
    meet(guests, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(guests[i].status, FSDP_OK);
    assert_string_equal(guests[1].payload, "of one");
    assert_string_equal(guests[2].payload, "of two");
    meeting_close(guests[1].meeting);
    meeting_close(guests[2].meeting);
    meeting_close(guests[0].meeting);
    meeting_close(guests[3].meeting);
}

/* torchrun's own store may hold the master's port, or something else that never says a word. */
static void a_master_port_that_is_taken_is_passed_over(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(silent, (struct sockaddr *)&at, length), 0);
    assert_int_equal(listen(silent, 4), 0);
    assert_int_equal(getsockname(silent, (struct sockaddr *)&at, &length), 0);
    double seconds[2];
    for (int told = 0; told < 2; told++) {
        guest guests[2];
        double start = clock_seconds();
        for (int i = 0; i < 2; i++) {
            guests[i] = (guest){.job = member(i, 2, ntohs(at.sin_port), "seven"), .timeout = 20};
            guests[i].job.master_port_taken = told;
        }
        meet(guests, 2);
        assert_int_equal(guests[0].status, FSDP_OK);
        assert_int_equal(guests[1].status, FSDP_OK);
        seconds[told] = clock_seconds() - start;
        meeting_close(guests[1].meeting);
        meeting_close(guests[0].meeting);
    }
    close(silent);
    assert_true(seconds[1] < seconds[0]); /* who was told does not wait for a greeting there */
}

/* A rank that ended while others wait for somebody else is known at once. Rank 0 is in before: where nobody is, nobody
 * remembers who ended. */
static void a_rank_that_ends_while_others_wait_is_named_at_once(void **state)
{
    (void)state;
    int port = free_port();
    guest first = {.job = member(0, 3, port, "")};
    pthread_t thread;
    double start = clock_seconds();
    assert_int_equal(meeting_open(&first.job, 30, &first.meeting), FSDP_OK);
    assert_int_equal(pthread_create(&thread, NULL, share_gift, &first), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        guest second = {.job = member(1, 3, port, "")};
        _exit(meeting_open(&second.job, 30, &second.meeting) != FSDP_OK);
    }
    int exit_status;
    assert_int_equal(waitpid(pid, &exit_status, 0), pid);
    assert_int_equal(exit_status, 0);
    pthread_join(thread, NULL);
    assert_int_equal(first.status, FSDP_ERR_PEER);
    assert_non_null(strstr(first.error, "rank 1 ended while ranks were meeting"));
    assert_true(clock_seconds() - start < 25);
    meeting_close(first.meeting);
}

static void two_with_one_number_are_named(void **state)
{
    (void)state;
    int port = free_port();
    guest guests[] = {{.job = member(0, 2, port, ""), .timeout = 20},
                      {.job = member(1, 2, port, ""), .timeout = 20},
                      {.job = member(1, 2, port, ""), .timeout = 20}};
    assert_int_equal(meeting_open(&guests[0].job, 20, &guests[0].meeting), FSDP_OK);
    assert_int_equal(meeting_open(&guests[1].job, 20, &guests[1].meeting), FSDP_OK);
    assert_int_equal(meeting_open(&guests[2].job, 20, &guests[2].meeting), FSDP_ERR_PEER);
    assert_non_null(strstr(fsdp_last_error(), "two processes call themselves rank 1"));
    meeting_close(guests[1].meeting);
    meeting_close(guests[0].meeting);
}

static int connect_to(const char *address, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    assert_int_equal(inet_pton(AF_INET, address, &to.sin_addr), 1);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int i = 0; i < 2000; i++) {
        if (connect(s, (struct sockaddr *)&to, sizeof to) == 0)
            return s;
        struct timespec pause = {.tv_nsec = 10000000};
        nanosleep(&pause, NULL);
    }
    close(s);
    return -1;
}

/* Whoever connects and says nothing, or too little, or nonsense, keeps nobody waiting. */
static void silent_visitors_keep_nobody_waiting(void **state)
{
    (void)state;
    enum { VISITORS = 100 };
    int port = free_port(), visitors[VISITORS];
    guest guests[] = {{.job = member(0, 2, port, "seven"), .timeout = 20},
                      {.job = member(1, 2, port, "seven"), .timeout = 20}};
    pthread_t host;
    assert_int_equal(pthread_create(&host, NULL, come, &guests[0]), 0);
    for (int i = 0; i < VISITORS; i++) {
        visitors[i] = connect_to("127.0.0.1", port);
        assert_true(visitors[i] >= 0);
        if (i % 3 == 1)
            assert_int_equal(send(visitors[i], "fsd", 3, MSG_NOSIGNAL), 3);
        if (i % 3 == 2)
            assert_true(send(visitors[i], "GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: everything\r\n\r\n", 56,
                             MSG_NOSIGNAL) > 0);
    }
    double start = clock_seconds();
    come(&guests[1]);
    pthread_join(host, NULL);
    double seconds = clock_seconds() - start;
    for (int i = 0; i < VISITORS; i++)
        close(visitors[i]);
    assert_int_equal(guests[0].status, FSDP_OK);
    assert_int_equal(guests[1].status, FSDP_OK);
    assert_true(seconds < 15); /* one greeting after the other would take 100 times 10 seconds */
    meeting_close(guests[1].meeting);
    meeting_close(guests[0].meeting);
}

/* A job on the loopback is not reachable from anywhere else: here, by another address of this host. */
static void a_master_on_the_loopback_is_heard_there_only(void **state)
{
    (void)state;
    int port = free_port();
    guest host = {.job = member(0, 2, port, "")};
    assert_int_equal(meeting_open(&host.job, 20, &host.meeting), FSDP_OK);
    int here = connect_to("127.0.0.1", port);
    assert_true(here >= 0);
    struct sockaddr_in elsewhere = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.2", &elsewhere.sin_addr);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(s, (struct sockaddr *)&elsewhere, sizeof elsewhere), -1);
    close(s);
    close(here);
    meeting_close(host.meeting);
}

/* Somebody else sits at the address and answers with all that is public. */
static void *answer_as_rank_0(void *argument)
{
    int listener = *(int *)argument, s = accept(listener, NULL, NULL);
    struct {
        uint32_t kind, bytes;
        uint64_t magic;
        uint8_t nonce[SECRET_NONCE_BYTES];
    } greeting = {WIRE_GREETING, sizeof(uint64_t) + SECRET_NONCE_BYTES, WIRE_MAGIC, {7}};
    struct {
        uint32_t kind, bytes;
        uint8_t proof[SECRET_PROOF_BYTES];
    } hello, welcome = {WIRE_WELCOME, SECRET_PROOF_BYTES, {0}};
    send(s, &greeting, sizeof greeting, MSG_NOSIGNAL);
    assert_int_equal(recv(s, &hello, sizeof hello, MSG_WAITALL), (int)sizeof hello);
    memcpy(welcome.proof, hello.proof, sizeof welcome.proof); /* the visitor's own */
    send(s, &welcome, sizeof welcome, MSG_NOSIGNAL);
    while (recv(s, &hello, sizeof hello, 0) > 0)
        continue;
    close(s);
    return NULL;
}

static void an_impostor_for_rank_0_is_not_believed(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, length), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    pthread_t impostor;
    assert_int_equal(pthread_create(&impostor, NULL, answer_as_rank_0, &listener), 0);
    guest victim = {.job = member(1, 2, ntohs(at.sin_port), "secret"), .timeout = 5};
    come(&victim);
    pthread_join(impostor, NULL);
    close(listener);
    assert_int_equal(victim.status, FSDP_ERR_PEER);
    assert_non_null(strstr(victim.error, "does not know this job's secret"));
}

static void nobody_at_the_address_ends_in_a_timeout_that_names_it(void **state)
{
    (void)state;
    guest alone = {.job = member(1, 2, free_port(), ""), .timeout = 0.3};
    meet(&alone, 1);
    assert_int_equal(alone.status, FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(alone.error, "127.0.0.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_gets_the_gift_and_messages_go_both_ways),
        cmocka_unit_test(a_rank_that_closes_says_goodbye_after_its_last_message),
        cmocka_unit_test(sending_never_waits_for_the_reader),
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(a_rank_of_another_job_is_refused),
        cmocka_unit_test(two_jobs_at_one_port_both_meet),
        cmocka_unit_test(a_master_port_that_is_taken_is_passed_over),
        cmocka_unit_test(a_rank_that_ends_while_others_wait_is_named_at_once),
        cmocka_unit_test(two_with_one_number_are_named),
        cmocka_unit_test(silent_visitors_keep_nobody_waiting),
        cmocka_unit_test(a_master_on_the_loopback_is_heard_there_only),
        cmocka_unit_test(an_impostor_for_rank_0_is_not_believed),
        cmocka_unit_test(nobody_at_the_address_ends_in_a_timeout_that_names_it),
    };
    return cmocka_run_group_tests_name("meeting", tests, NULL, NULL);
}
