/* Forking, environment, waiting. */
#include "api/support_ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 8 };

static void set_number(const char *name, int value)
{
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* cmocka's handlers would take a crash of this process for one of the test and go on with the other tests, here too. */
static void crash_plainly(void)
{
    const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], SIG_DFL);
}

static int run_rank(int rank, int ranks, int serial, rank_body *body, void *context)
{
    fsdp_world *world = NULL;
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    config.device = "cpu";
    config.threads = 1;
    config.comm_timeout = 60;
    crash_plainly();
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_WORLD_SIZE", ranks);
    set_number("MASTER_PORT", 20000 + (getppid() * 7 + serial) % 12000); /* below those that connections are given */
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("FSDP_JOB_TOKEN", serial * 100000 + getppid());
    fsdp_status status = fsdp_world_open(&config, &world);
    if (status == FSDP_OK)
        status = body(world, context);
    if (status != FSDP_OK)
        fprintf(stderr, "rank %d: %s\n", rank, fsdp_last_error());
    if (status != FSDP_OK && world)
        fsdp_world_abort(world);
    fsdp_world_close(world);
    return status == FSDP_OK ? 0 : 1;
}

bool ranks_run(int ranks, rank_body *body, void *context)
{
    static int serial;
    pid_t processes[MAX_RANKS];
    bool good = ranks <= MAX_RANKS;
    serial++;
    fflush(NULL);
    for (int r = 0; good && r < ranks; r++) {
        processes[r] = fork();
        if (processes[r] == 0)
            exit(run_rank(r, ranks, serial, body, context));
    }
    for (int r = 0; ranks <= MAX_RANKS && r < ranks; r++) {
        int state = 1;
        waitpid(processes[r], &state, 0);
        good &= state == 0;
    }
    return good;
}

void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}
