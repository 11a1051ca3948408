/* From a request to figures. */
#include "plan/predict/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "device/gpu.h"
#include "device/peak.h"

fsdp_status profile_find(const char *named, const plan_world *world, kernel_profile *out, bool *found)
{
    static const char *const known[] = {"h200", "h100", "a100"};
    int here = world->n_ranks < world->ranks_per_node ? world->n_ranks : world->ranks_per_node;
    for (size_t i = 0; !named && world->dev->gpu && i < sizeof known / sizeof *known; i++)
        if (strcasestr(world->dev->gpu->name, known[i]))
            named = known[i];
    char *measured = named ? NULL : profile_default_path(world->dev->description, here);
    *found = named || (measured && file_exists(measured));
    fsdp_status status = *found ? profile_open(named ? named : measured, out) : FSDP_OK;
    *found = *found && status == FSDP_OK;
    free(measured);
    return status;
}

static double fastest_product(const kernel_profile *p, fsdp_dtype dtype)
{
    double most = 0;
    for (int i = 0; i < p->n_rows; i++) {
        const profile_row *r = &p->rows[i];
        if (r->work.kernel == KERNEL_gemm && r->work.dtype == dtype)
            most = fmax(most, r->work.flops / r->seconds * p->compute);
    }
    return most;
}

static void count(const prediction_request *r, const memory_plan *plan, prediction *out)
{
    const workload *w = r->work;
    double seconds = out->step.seconds, micro = (double)max_i64(w->micro_batches, 1);
    double samples = (double)w->batch * micro * r->world.n_ranks;
    double peak = peak_tflops(r->world.dev, r->config->param_dtype) * 1e12;
    if (peak == 0)
        peak = fastest_product(r->profile, r->config->param_dtype);
    out->n_ranks = r->world.n_ranks;
    out->ranks_per_node = r->world.ranks_per_node;
    out->memory = (int64_t)plan->total;
    if (seconds <= 0)
        return;
    out->samples_per_second = samples / seconds;
    out->tokens_per_second = workload_flops(w) > 0 ? samples * (double)(w->width + w->target) / seconds : 0;
    out->tflops = workload_flops(w) * micro / seconds / 1e12;
    out->utilization = peak > 0 ? out->tflops * 1e12 / peak : 0;
}

fsdp_status prediction_make(const prediction_request *r, prediction *out)
{
    plan_script script = {.n_items = 0};
    memory_plan plan;
    *out = (prediction){.n_ranks = 0};
    FSDP_TRY(workload_script(r->work, r->config, &r->world, &plan, &script));
    fsdp_status status = player_play(&script, r->profile, r->world.ranks_per_node, &out->step);
    if (status == FSDP_OK)
        count(r, &plan, out);
    plan_script_clear(&script);
    return status;
}
