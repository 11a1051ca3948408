/* A world for each forked rank, on the CPU or on the GPU that FSDP_TEST_DEVICE asks for. */
#include "api/support_ranks.h"

#include <math.h>
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

typedef struct each {
    rank_body *body;
    char *contexts;
    int n;
    size_t size;
} each;

static fsdp_status run_each(fsdp_world *w, void *context)
{
    const each *e = context;
    for (int i = 0; i < e->n; i++) {
        fsdp_status status = e->body(w, e->contexts + (size_t)i * e->size);
        if (status != FSDP_OK) {
            fprintf(stderr, "rank %d, context %d of %d\n", fsdp_world_rank(w), i, e->n);
            return status;
        }
    }
    return FSDP_OK;
}

bool ranks_run_each(int ranks, rank_body *body, void *contexts, int n, size_t size)
{
    int together = ranks_are_on_gpu() ? n : 1;
    for (int i = 0; i < n; i += together) {
        each e = {body, (char *)contexts + (size_t)i * size, together, size};
        if (!ranks_run(ranks, run_each, &e))
            return false;
    }
    return true;
}

const void *ranks_run_copies(int ranks, rank_body *body, const void *contexts, int n, size_t size)
{
    void *shared = shared_memory((size_t)n * size);
    memcpy(shared, contexts, (size_t)n * size);
    return ranks_run_each(ranks, body, shared, n, size) ? shared : NULL;
}

int ranks_next_variant(int i, int n)
{
    return ranks_are_on_gpu() && i < n - 1 ? n - 1 : i + 1;
}

static bool are_close(const char *what, double a, double b, double tolerance)
{
    bool close = fabs(a - b) <= tolerance * fabs(b);
    if (!close)
        fprintf(stderr, "%s: %.9g instead of %.9g\n", what, a, b);
    return close;
}

bool outcomes_agree(const outcome *a, const outcome *b, double tolerance)
{
    bool gpu = ranks_are_on_gpu(), agree = are_close("norm", a->norm, b->norm, gpu ? tolerance : 0);
    for (int i = 0; i < OUTCOME_VALUES; i++)
        agree &= are_close("value", a->values[i], b->values[i], gpu ? tolerance : 0);
    return agree && (gpu || a->parameters == b->parameters);
}

void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}
