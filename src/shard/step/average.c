/* Exchanges weights and their average through host memory, slice by slice: both keep every bit, whatever form the
 * masters have, and no memory is needed on the device. */
#include "shard/step/average.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

enum { AT_ONCE = 1 << 18 }; /* elements */

static fsdp_status fetch(fsdp_model *m, bool on_host, float *out, const float *from, size_t bytes)
{
    if (!on_host)
        return model_fetch(m, out, from, bytes);
    memcpy(out, from, bytes);
    return FSDP_OK;
}

static fsdp_status put(fsdp_model *m, bool on_host, float *to, const float *in, size_t bytes)
{
    if (!on_host)
        return model_put(m, to, in, bytes);
    memcpy(to, in, bytes);
    return FSDP_OK;
}

static bool is_on_host(const fsdp_model *m, const model_slice *slice)
{
    return !m->dev->own_memory || slice->segment->host_copy;
}

/* What is done to a slice; `memory` has room for two pieces. */
typedef fsdp_status (*slice_action)(fsdp_optimizer *o, const model_slice *slice, float *average, float *memory);

static fsdp_status swap_slice(fsdp_optimizer *o, const model_slice *slice, float *average, float *memory)
{
    fsdp_model *m = o->model;
    bool on_host = is_on_host(m, slice);
    float *weights = memory, *averages = memory + AT_ONCE;
    for (int64_t first = 0; first < slice->n; first += AT_ONCE) {
        int64_t n = min_i64(AT_ONCE, slice->n - first);
        size_t bytes = (size_t)n * sizeof(float);
        FSDP_TRY(model_read_slice(m, slice, first, n, weights));
        FSDP_TRY(fetch(m, on_host, averages, average + first, bytes));
        FSDP_TRY(model_write_slice(m, slice, first, n, averages));
        FSDP_TRY(put(m, on_host, average + first, weights, bytes));
    }
    return FSDP_OK;
}

static fsdp_status begin_slice(fsdp_optimizer *o, const model_slice *slice, float *average, float *memory)
{
    for (int64_t first = 0; first < slice->n; first += AT_ONCE) {
        int64_t n = min_i64(AT_ONCE, slice->n - first);
        FSDP_TRY(model_read_slice(o->model, slice, first, n, memory));
        FSDP_TRY(put(o->model, is_on_host(o->model, slice), average + first, memory, (size_t)n * sizeof(float)));
    }
    return FSDP_OK;
}

static fsdp_status for_all(fsdp_optimizer *o, slice_action action)
{
    float *memory = malloc(2 * AT_ONCE * sizeof *memory);
    fsdp_status status = memory ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "average: out of host memory");
    for (int i = 0; status == FSDP_OK && i < model_slices(o->model); i++) {
        model_slice slice = model_slice_at(o->model, i);
        if (slice.range >= 0)
            status = action(o, &slice, update_range_at(o->update, slice.range)->average + slice.at, memory);
    }
    free(memory);
    return status;
}

static bool has_begun(const fsdp_optimizer *o)
{
    return o->steps != o->average_from;
}

fsdp_status fsdp_optimizer_swap_average(fsdp_optimizer *o)
{
    if (!(o->config.average > 0))
        return error_set(FSDP_ERR_STATE, "this optimizer keeps no average of the weights: set `average`");
    if (!has_begun(o))
        return FSDP_OK; /* before the first step the average is the weights */
    FSDP_TRY(model_before_writes(o->model));
    FSDP_TRY(for_all(o, swap_slice));
    FSDP_TRY(model_refresh_copies(o->model));
    o->swapped = !o->swapped;
    return FSDP_OK;
}

fsdp_status average_before_save(fsdp_optimizer *o)
{
    FSDP_TRY(average_check_home(o, "a save"));
    return o->config.average > 0 && !has_begun(o) ? for_all(o, begin_slice) : FSDP_OK;
}

fsdp_status average_check_home(const fsdp_optimizer *o, const char *what)
{
    if (!o->swapped)
        return FSDP_OK;
    return error_set(FSDP_ERR_STATE, "%s: the weights are in the place of their average; swap them back first", what);
}
