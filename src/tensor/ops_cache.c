/* Writing rows into a cache. The kernel is that of an embedding's gradient, which adds rows to rows of a table by id:
 * ids are device data, so neither the program nor a captured graph depends on where rows go. */
#include "tensor/cache.h"

#include "tensor/op.h"

enum { ROWS, PLACES, CACHE, N_INPUTS };

static embedding_args describe(const node *n)
{
    const fsdp_tensor *cache = n->inputs[CACHE], *x = n->inputs[ROWS];
    return (embedding_args){.rows = tensor_rows(x),
                            .columns = cache->shape[1],
                            .vocabulary = cache->shape[0],
                            .dy = {NULL, x->dtype},
                            .d_table = {NULL, cache->dtype},
                            .add_table = true};
}

static fsdp_status cache_write_forward(const run_context *c, const node *n)
{
    embedding_args a = describe(n);
    a.ids = run_data(c, n->inputs[PLACES]).p;
    a.dy = run_data(c, n->inputs[ROWS]);
    a.d_table = run_data(c, n->inputs[CACHE]);
    a.workspace = c->workspace;
    return c->dev->kernels->embedding_backward(c->compute, &a);
}

static size_t cache_write_workspace(const device *d, const node *n, bool backward)
{
    embedding_args a = describe(n);
    return backward ? 0 : d->kernels->embedding_backward_workspace(d, &a);
}

static const op_def cache_write_op = {
    .name = "cache_write", .forward = cache_write_forward, .workspace = cache_write_workspace};

void cache_write(fsdp_tape *t, const row_cache *cache, fsdp_tensor *x, fsdp_tensor *places)
{
    int64_t shape[] = {cache->capacity, cache->columns};
    if (!x || !places)
        return;
    if (tensor_columns(x) != cache->columns || places->dtype != FSDP_I32 || places->numel != tensor_rows(x)) {
        tape_refuse(t, "cache: rows %s and places %s do not fit a cache of %lld columns", tape_shape_text(t, x),
                    tape_shape_text(t, places), (long long)cache->columns);
        return;
    }
    fsdp_tensor *inputs[N_INPUTS] = {x, places, tape_buffer(t, cache->dtype, 2, shape, cache->memory)};
    if (inputs[CACHE])
        tape_record(t, &cache_write_op, N_INPUTS, inputs, 0, NULL, NULL, 0, 0, 0);
}

fsdp_tensor *cache_read(fsdp_tape *t, const row_cache *cache, int64_t length)
{
    int64_t shape[] = {1, length, cache->columns};
    if (length < 1 || length > cache->capacity)
        return tape_refuse(t, "cache: %lld rows of a cache of %lld", (long long)length, (long long)cache->capacity);
    return tape_buffer(t, cache->dtype, 3, shape, cache->memory);
}

fsdp_tensor *cache_read_parts(fsdp_tape *t, const row_cache *cache, int64_t n)
{
    int64_t shape[] = {n, cache->capacity / n, cache->columns};
    return tape_buffer(t, cache->dtype, 3, shape, cache->memory);
}
