/* The meeting place of NCCL's ranks, which needs no GPU: who comes gets the gift, who does not belong is sent away, who
 * is missing is named, and bad news reaches everybody. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <fsdp/status.h>

#include "comm/nccl_meet.h"

typedef struct guest {
    job job;
    double timeout;
    char gift[MEET_GIFT_BYTES];
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

static int some_port(void)
{
    static int next;
    return 20000 + (int)(getpid() % 20000) + next++;
}

static void *come(void *argument)
{
    guest *g = argument;
    g->status = meeting_open(&g->job, g->timeout, g->gift, &g->meeting);
    if (g->status != FSDP_OK)
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

static void everybody_gets_the_gift_and_hears_of_failures(void **state)
{
    (void)state;
    guest guests[3] = {{.gift = ""}};
    int port = some_port();
    for (int i = 0; i < 3; i++)
        guests[i] = (guest){.job = member(i, 3, port, "seven"), .timeout = 10};
    memset(guests[0].gift, 42, sizeof guests[0].gift);
    meet(guests, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(guests[i].status, FSDP_OK);
        assert_memory_equal(guests[i].gift, guests[0].gift, MEET_GIFT_BYTES);
    }
    meeting_tell(guests[2].meeting, "out of cheese");
    for (int i = 0; i < 2; i++) { /* rank 0 first: it passes the news on to rank 1 */
        int rank = -1;
        char text[MEET_TEXT_BYTES] = "";
        assert_true(meeting_listen(guests[i].meeting, 5000, &rank, text));
        assert_int_equal(rank, 2);
        assert_string_equal(text, "out of cheese");
    }
    for (int i = 2; i >= 0; i--)
        meeting_close(guests[i].meeting);
}

static void a_rank_that_says_goodbye_is_no_failure(void **state)
{
    (void)state;
    int port = some_port(), rank = -1;
    char text[MEET_TEXT_BYTES];
    guest guests[] = {{.job = member(0, 2, port, ""), .timeout = 10}, {.job = member(1, 2, port, ""), .timeout = 10}};
    meet(guests, 2);
    assert_false(meeting_listen(guests[0].meeting, 10, &rank, text));
    meeting_close(guests[1].meeting);
    assert_false(meeting_listen(guests[0].meeting, 1000, &rank, text));
    meeting_close(guests[0].meeting);
}

static void a_missing_rank_is_named(void **state)
{
    (void)state;
    int port = some_port();
    guest guests[] = {{.job = member(0, 3, port, ""), .timeout = 0.5}, {.job = member(1, 3, port, ""), .timeout = 1}};
    meet(guests, 2);
    assert_int_equal(guests[0].status, FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(guests[0].error, "rank 2"));
    assert_int_equal(guests[1].status, FSDP_ERR_PEER);
    assert_non_null(strstr(guests[1].error, "rank 2"));
}

static void a_rank_of_another_job_is_refused(void **state)
{
    (void)state;
    int port = some_port();
    guest guests[] = {{.job = member(0, 2, port, "mine"), .timeout = 1.5},
                      {.job = member(1, 2, port, "yours"), .timeout = 1}};
    meet(guests, 2);
    assert_int_equal(guests[0].status, FSDP_ERR_TIMEOUT);
    assert_int_equal(guests[1].status, FSDP_ERR_PEER);
    assert_non_null(strstr(guests[1].error, "another job"));
}

static void nobody_at_the_address_ends_in_a_timeout_that_names_it(void **state)
{
    (void)state;
    guest alone = {.job = member(1, 2, some_port(), ""), .timeout = 0.3};
    meet(&alone, 1);
    assert_int_equal(alone.status, FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(alone.error, "127.0.0.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_gets_the_gift_and_hears_of_failures),
        cmocka_unit_test(a_rank_that_says_goodbye_is_no_failure),
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(a_rank_of_another_job_is_refused),
        cmocka_unit_test(nobody_at_the_address_ends_in_a_timeout_that_names_it),
    };
    return cmocka_run_group_tests_name("meeting", tests, NULL, NULL);
}
