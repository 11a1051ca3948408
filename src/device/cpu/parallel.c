/* OpenMP regions for the CPU device; see parallel.h for what keeps them from taking memory. Loops are shared out by
 * hand: clang's runtime allocates in every `omp for`. */
#include "device/cpu/parallel.h"

#include <omp.h>

#include "base/checked.h"

void parallel_team(int pool, int threads, parallel_member *member, void *context)
{
    if (threads <= 1 || omp_in_parallel()) {
        member(context, 0, 1);
        return;
    }
#pragma omp parallel num_threads(pool)
    {
        int rank = omp_get_thread_num(), given = omp_get_num_threads();
        int size = given < threads ? given : threads;
        if (rank < size)
            member(context, rank, size);
    }
}

typedef struct loop {
    int64_t n_items, step;
    parallel_body *body;
    const void *context;
} loop;

static void run_share(void *context, int rank, int size)
{
    const loop *l = context;
    int64_t share = l->n_items / size, rest = l->n_items % size;
    int64_t first = rank * share + min_i64(rank, rest), end = first + share + (rank < rest);
    for (int64_t item = first; item < end; item++)
        l->body(l->context, item * l->step);
}

void parallel_for(int threads, int64_t n, int64_t step, parallel_body *body, const void *context)
{
    loop l = {.n_items = ceil_div(n, step), .step = step, .body = body, .context = context};
    parallel_team(threads, threads, run_share, &l);
}
