/* Who may take part when the ranks of a host meet: other users' processes are not believed, whichever side they take,
 * and visitors that say nothing keep nobody waiting. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "comm/ranks.h"
#include "comm/shm/control.h"

enum { NOBODY = 65534 };

/* A socket at the job's name: connected to it, or listening there. */
static int at_name(const ranks *all, bool listening)
{
    comm named = {.config = ranks_config(all, 0)};
    struct sockaddr_un address;
    socklen_t length;
    shm_socket_name(&named, &address, &length);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listening) {
        RANK_CHECK(bind(s, (struct sockaddr *)&address, length) == 0);
        RANK_CHECK(setresuid(NOBODY, NOBODY, NOBODY) == 0); /* who listens is who asked for it */
        RANK_CHECK(listen(s, 16) == 0);
        return s;
    }
    for (int i = 0; i < 500; i++) {
        if (connect(s, (struct sockaddr *)&address, length) == 0)
            return s;
        sleep_seconds(0.01);
    }
    close(s);
    return -1;
}

/* ---- another user at the name ---- */

static pid_t start_squatter(const ranks *all)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int listener = at_name(all, true);
        all->shared->flags[0] = 1;
        for (;;) { /* welcomes everybody, and takes what they send */
            int s = accept(listener, NULL, NULL);
            char words[1024];
            if (s >= 0 && recv(s, words, sizeof words, 0) > 0) {
                ((int32_t *)words)[2] = 2; /* the type of the message: a welcome */
                send(s, words, 280, MSG_NOSIGNAL);
                all->shared->flags[1] = 1;
            }
        }
    }
    while (!all->shared->flags[0])
        sleep_seconds(0.005);
    return pid;
}

static void meet_a_squatter(ranks *all, int rank, void *context)
{
    (void)context;
    comm_config config = ranks_config(all, rank);
    comm *c;
    double start = clock_seconds();
    RANK_CHECK(comm_open(&config, &c) == FSDP_ERR_PEER);
    RANK_CHECK(clock_seconds() - start < 5);
    ranks_say(all, rank, fsdp_last_error());
}

static void another_user_at_the_meeting_point_is_not_believed(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can be somebody else */
    ranks all = ranks_make(2);
    pid_t squatter = start_squatter(&all);
    bool good = ranks_run(&all, meet_a_squatter, NULL);
    kill(squatter, SIGKILL);
    waitpid(squatter, NULL, 0);
    bool handed_over = all.shared->flags[1];
    for (int rank = 0; rank < 2; rank++)
        if (!strstr(all.shared->text[rank], "user 65534 holds the meeting point of this job"))
            fail_msg("rank %d says '%s'", rank, all.shared->text[rank]);
    ranks_free(&all);
    assert_true(good);
    assert_false(handed_over); /* not even a hello */
}

/* ---- visitors ---- */

static void meet_among_visitors(ranks *all, int rank, void *context)
{
    (void)context;
    enum { VISITORS = 80 };
    int visitors[VISITORS];
    double start = clock_seconds();
    for (int i = 0; i < VISITORS && rank == 1; i++) {
        visitors[i] = at_name(all, false);
        RANK_CHECK(visitors[i] >= 0);
        if (i % 2)
            RANK_CHECK(send(visitors[i], "hello?", 6, MSG_NOSIGNAL) == 6);
    }
    comm *c = ranks_open(all, rank);
    RANK_CHECK(clock_seconds() - start < 5);
    RANK_CHECK(comm_barrier(comm_world(c), "all here", 0) == FSDP_OK);
    comm_close(c);
    for (int i = 0; i < VISITORS && rank == 1; i++)
        close(visitors[i]);
}

static void silent_visitors_keep_nobody_waiting(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    bool good = ranks_run(&all, meet_among_visitors, NULL);
    ranks_free(&all);
    assert_true(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_user_at_the_meeting_point_is_not_believed),
        cmocka_unit_test(silent_visitors_keep_nobody_waiting),
    };
    return cmocka_run_group_tests_name("meeting of a host", tests, NULL, NULL);
}
