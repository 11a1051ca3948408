/* A world for each forked rank, on the CPU or on the GPU that FSDP_TEST_DEVICE asks for. */
#include "api/support_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

#include "support/forked_ranks.h"

typedef struct rank_task {
    rank_body *body;
    void *context;
} rank_task;

bool ranks_are_on_gpu(void)
{
    const char *device = getenv("FSDP_TEST_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

fsdp_config ranks_config(void)
{
    fsdp_config config = FSDP_CONFIG_INIT;
    config.deterministic = ranks_are_on_gpu();
    return config;
}

static fsdp_status run_rank(int rank, void *context)
{
    const rank_task *task = context;
    fsdp_world *world = NULL;
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    config.device = ranks_are_on_gpu() ? "cuda" : "cpu";
    config.threads = 1;
    config.comm_timeout = 60;
    if (ranks_are_on_gpu())
        forked_rank_share_gpu(rank);
    fsdp_status status = fsdp_world_open(&config, &world);
    if (status == FSDP_OK)
        status = task->body(world, task->context);
    if (status != FSDP_OK && world)
        fsdp_world_abort(world);
    fsdp_world_close(world);
    return status;
}

bool ranks_run(int ranks, rank_body *body, void *context)
{
    if (ranks_are_on_gpu() && access("/dev/nvidiactl", R_OK) != 0) {
        printf("no CUDA device\n");
        skip();
    }
    return forked_ranks_run(ranks, run_rank, &(rank_task){body, context});
}

void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}
