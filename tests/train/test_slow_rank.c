/* Two ranks train, and one sleeps whenever it asks for data: the progress line and metrics.jsonl name it and its phase
 * within ten steps. Laps in metrics.jsonl add up to the time that the steps took. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/record/hooks.h"
#include "comm/ports.h"
#include "support_job.h"

enum { STEPS = 16, SLEEP_MILLISECONDS = 300 };

static void sleep_in_the_loader(void *context, const hook_event *e)
{
    (void)context;
    if (e->moment == HOOK_BEGIN && strcmp(e->name, "data") == 0)
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_MILLISECONDS * 1000000}, NULL);
}

static void run_rank(job *j, int rank, int port)
{
    char text[16], steps[32];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    snprintf(steps, sizeof steps, "--max_steps=%d", STEPS);
    if (rank == 1 && hooks_add_kind(HOOK_PHASE, sleep_in_the_loader, NULL) != FSDP_OK)
        exit(2);
    RUN(j, steps, "--logging_freq=1", "--sample_tokens=0");
    if (rank == 0)
        job_write(j, "said.txt", j->said);
    if (j->status != FSDP_OK)
        fprintf(stderr, "rank %d: %s\n", rank, j->error);
    exit(j->status != FSDP_OK);
}

static const json_t *field(const json_t *o, const char *a, const char *b)
{
    return json_object_get(json_object_get(o, a), b);
}

static void check_laps(const json_t *line)
{
    static const char *const always[] = {"data", "forward", "backward", "optimizer"};
    const char *name;
    json_t *lap;
    double sum = 0, waits = 0, exposed = json_number_value(json_object_get(field(line, "times", "exposed"), "mean"));
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        assert_non_null(field(line, "times", always[i]));
    json_object_foreach(json_object_get(line, "times"), name, lap)
    {
        double mean = json_number_value(json_object_get(lap, "mean"));
        bool wait = strchr(name, '_') || strcmp(name, "exchange") == 0;
        sum += strcmp(name, "exposed") == 0 ? 0 : mean;
        waits += wait ? mean : 0;
        assert_true(json_number_value(json_object_get(lap, "min")) <= mean * 1.001);
        assert_true(json_number_value(json_object_get(lap, "max")) >= mean * 0.999);
    }
    assert_true(waits <= exposed * 1.01 && waits >= exposed * 0.99);
    assert_true(sum >= 0.98 * json_number_value(json_object_get(line, "seconds")));
}

static void a_rank_that_sleeps_in_its_loader_is_named(void **state)
{
    job *j = *state;
    int port = free_port(), status, named = 0, n = 0;
    pid_t ranks[2];
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank] = fork();
        if (ranks[rank] == 0)
            run_rank(j, rank, port);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(waitpid(ranks[rank], &status, 0), ranks[rank]);
        assert_int_equal(status, 0);
    }
    char *text = job_file(j, "run/metrics.jsonl"), *rest = text, *said = job_file(j, "said.txt");
    for (char *words; text && (words = strsep(&rest, "\n")) && *words;) {
        json_t *line = json_loads(words, 0, NULL);
        assert_non_null(line);
        n++;
        check_laps(line);
        if (json_object_get(line, "slow_rank")) {
            named = named ? named : n;
            assert_int_equal(json_integer_value(field(line, "slow_rank", "rank")), 1);
            assert_string_equal(json_string_value(field(line, "slow_rank", "phase")), "data");
            assert_true(json_number_value(field(line, "slow_rank", "seconds")) > 0.2);
        }
        json_decref(line);
    }
    assert_int_equal(n, STEPS);
    assert_in_range(named, 2, 12); /* ten, and two for a machine that is busy elsewhere */
    assert_non_null(said);
    assert_non_null(strstr(said, ", slow: rank 1 (data, +"));
    free(text);
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_rank_that_sleeps_in_its_loader_is_named, job_setup, job_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
