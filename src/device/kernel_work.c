/* One function per kind of arguments. Bytes are those that must be read and written at least; numbers of a row or of a
 * whole call (row statistics, sums) do not count. */
#include "device/kernel_work.h"

#include <string.h>

#include "device/int8_block.h"

#define KERNEL_NAME(entry, args) [KERNEL_##entry] = #entry,
static const char *const names[KERNEL_COUNT] = {KERNELS(KERNEL_NAME, KERNEL_NAME)[KERNEL_COPY] = "copy"};

const char *kernel_name(kernel_id kernel)
{
    return names[kernel];
}

kernel_id kernel_find(const char *name)
{
    int i = 0;
    while (i < KERNEL_COUNT && strcmp(names[i], name) != 0)
        i++;
    return (kernel_id)i;
}

static double reads(buffer b, double n)
{
    return b.p ? n * (double)fsdp_dtype_size(b.dtype) : 0;
}

static double writes(buffer b, double n, bool add)
{
    return reads(b, n) * (add ? 2 : 1);
}

static void take_types(kernel_work *w, buffer in, buffer out)
{
    w->dtype = in.dtype;
    w->result = out.dtype;
}

static void take_shape(kernel_work *w, int64_t rows, int64_t columns)
{
    w->shape[0] = rows;
    w->shape[1] = columns;
}

/* One of four switches of a call, as bits. */
static uint32_t bits(bool a, bool b, bool c, bool d)
{
    return (uint32_t)a | (uint32_t)b << 1 | (uint32_t)c << 2 | (uint32_t)d << 3;
}

static void of_gemm_args(const gemm_args *a, kernel_work *w)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k, batch = (double)(a->batch > 1 ? a->batch : 1);
    const int64_t shape[] = {a->m, a->n, a->k, a->batch > 1 ? a->batch : 1};
    take_types(w, a->a, a->d);
    memcpy(w->shape, shape, sizeof shape);
    w->variant = bits(a->transpose_a, a->transpose_b, a->beta != 0, a->bias.p != NULL);
    w->flops = 2 * m * n * k * batch;
    w->bytes = batch * (reads(a->a, m * k) + reads(a->b, k * n) + writes(a->d, m * n, a->beta != 0));
}

/* By the first item; the others have its kind. */
static void of_symmetric_args(const symmetric_args *a, kernel_work *w)
{
    const int64_t shape[] = {a->items[0].n, a->items[0].n, a->items[0].k, a->n_items};
    w->dtype = w->result = FSDP_BF16;
    memcpy(w->shape, shape, sizeof shape);
    w->variant = bits(a->beta != 0, a->gamma != 0, false, false);
    for (int i = 0; i < a->n_items; i++) {
        double n = (double)a->items[i].n, k = (double)a->items[i].k;
        w->flops += n * n * k;
        w->bytes += 2 * (2 * n * k + (a->beta != 0 ? 2 : 1) * n * n);
    }
}

static void of_fp8_cast_args(const fp8_cast_args *a, kernel_work *w)
{
    double n = (double)a->rows * (double)a->columns;
    bool measures = !a->magnitude && a->x.dtype != a->qt.dtype, rounds = a->q.p || a->qt.p;
    take_types(w, a->x, a->q.p ? a->q : a->qt);
    take_shape(w, a->rows, a->columns);
    w->variant = bits(a->q.p != NULL, a->qt.p != NULL, a->magnitude != NULL, false);
    w->bytes = reads(a->x, (measures ? n : 0) + (rounds ? n : 0)) + reads(a->q, n) + reads(a->qt, n);
}

static void of_fp8_count_args(const fp8_count_args *a, kernel_work *w)
{
    take_types(w, a->x, a->q);
    take_shape(w, a->n, 0);
    w->bytes = reads(a->x, (double)a->n) + reads(a->q, (double)a->n);
}

static void of_column_sum_args(const column_sum_args *a, kernel_work *w)
{
    take_types(w, a->x, a->out);
    take_shape(w, a->rows, a->columns);
    w->bytes = reads(a->x, (double)a->rows * (double)a->columns);
}

/* Pairs of a query and a key that it sees. Where documents begin is not known before a step: rows count as whole. */
static double attended(const attention_args *a)
{
    double q = (double)a->q_length, kv = (double)a->kv_length;
    double seen = a->causal ? kv - (q - 1) / 2 : kv;
    if (a->causal && a->window > 0 && (double)a->window < seen)
        seen = (double)a->window;
    return (double)(a->batch * a->q_heads) * q * seen;
}

static void of_attention_args(const attention_args *a, kernel_work *w)
{
    const int64_t shape[] = {a->batch, a->q_length, a->kv_length, a->q_heads, a->kv_heads, a->head_dim};
    bool backward = w->kernel == KERNEL_attention_backward;
    take_types(w, a->q, a->out);
    memcpy(w->shape, shape, sizeof shape);
    w->variant = bits(a->causal, a->window > 0, a->bias.p != NULL, a->key_mask != NULL) |
                 bits(a->starts != NULL, a->dropout > 0, a->deterministic && backward, a->d_bias != NULL) << 4;
    w->flops = attended(a) * (backward ? 10 : 4) * (double)a->head_dim;
    double q = (double)(a->batch * a->q_length * a->q_heads * a->head_dim),
           kv = (double)(a->batch * a->kv_length * a->kv_heads * a->head_dim);
    w->bytes = (reads(a->q, q) + reads(a->k, kv)) * 2 * (backward ? 2 : 1);
}

static void of_rope_args(const rope_args *a, kernel_work *w)
{
    take_types(w, a->x, a->x);
    take_shape(w, a->rows, a->heads * a->head_dim);
    w->variant = bits(a->magnitude != NULL, false, false, false);
    w->bytes = 2 * reads(a->x, (double)a->rows * (double)(a->heads * a->head_dim));
    if (a->magnitude)
        w->bytes += reads(a->x, (double)a->rows * (double)(a->row - a->heads * a->head_dim));
}

static void of_rmsnorm_args(const rmsnorm_args *a, kernel_work *w)
{
    double n = (double)a->rows * (double)a->columns;
    bool backward = w->kernel == KERNEL_rmsnorm_backward;
    take_types(w, a->x, backward ? a->d_weight : a->y);
    take_shape(w, a->rows, a->columns);
    w->variant = bits(backward && a->add_dx, backward && a->d_weight.p != NULL, a->magnitude != NULL, false);
    w->bytes = reads(a->x, n) + (backward ? reads(a->dy, n) + writes(a->dx, n, a->add_dx) : reads(a->y, n));
}

static void of_layernorm_args(const layernorm_args *a, kernel_work *w)
{
    double n = (double)a->rows * (double)a->columns;
    bool backward = w->kernel == KERNEL_layernorm_backward;
    take_types(w, a->x, backward ? a->d_weight : a->y);
    take_shape(w, a->rows, a->columns);
    w->variant = bits(backward && a->add_dx, backward && a->d_weight.p != NULL, a->magnitude != NULL, false);
    w->bytes = reads(a->x, n) + (backward ? reads(a->dy, n) + writes(a->dx, n, a->add_dx) : reads(a->y, n));
}

static void of_batchnorm_args(const batchnorm_args *a, kernel_work *w)
{
    double n = (double)(a->batch * a->channels) * (double)a->area;
    bool backward = w->kernel == KERNEL_batchnorm_backward_reduce || w->kernel == KERNEL_batchnorm_backward_apply;
    bool applies = w->kernel == KERNEL_batchnorm_forward_apply || w->kernel == KERNEL_batchnorm_backward_apply;
    take_types(w, a->x, a->x);
    take_shape(w, a->batch * a->channels, a->area);
    w->bytes = reads(a->x, n) + (backward ? reads(a->dy, n) : 0);
    if (applies)
        w->bytes += backward ? writes(a->dx, n, a->add_dx) : reads(a->y, n);
}

static void of_embedding_args(const embedding_args *a, kernel_work *w)
{
    double rows = (double)a->rows * (double)a->columns, table = (double)a->vocabulary * (double)a->columns;
    bool backward = w->kernel == KERNEL_embedding_backward;
    take_types(w, backward ? a->dy : a->table, backward ? a->d_table : a->y);
    take_shape(w, a->rows, a->columns);
    w->shape[2] = a->vocabulary;
    w->variant = bits(backward && a->add_table, false, false, false);
    w->bytes = backward ? reads(a->dy, rows) + (a->add_table ? 2 * reads(a->d_table, rows) : reads(a->d_table, table))
                        : reads(a->table, rows) + reads(a->y, rows);
}

static void of_cross_entropy_args(const cross_entropy_args *a, kernel_work *w)
{
    double n = (double)a->rows * (double)a->vocabulary;
    take_types(w, a->logits, a->d_logits.p ? a->d_logits : a->logits);
    take_shape(w, a->rows, a->vocabulary);
    w->variant = bits(a->d_logits.p != NULL, a->add_logits, false, false);
    w->bytes = reads(a->logits, n) + writes(a->d_logits, n, a->add_logits);
}

static void of_count_right_args(const count_right_args *a, kernel_work *w)
{
    take_types(w, a->logits, a->logits);
    take_shape(w, a->rows, a->vocabulary);
    w->bytes = reads(a->logits, (double)a->rows * (double)a->vocabulary);
}

static void of_activation_args(const activation_args *a, kernel_work *w)
{
    double n = (double)a->n;
    bool backward = w->kernel == KERNEL_activation_backward;
    take_types(w, a->x, backward ? a->dx : a->y);
    take_shape(w, a->n, 0);
    w->variant = bits(backward && a->add_dx, false, false, false);
    w->bytes = reads(a->x, n) + (backward ? reads(a->dy, n) + writes(a->dx, n, a->add_dx) : reads(a->y, n));
}

static void of_gated_args(const gated_args *a, kernel_work *w)
{
    double n = (double)a->rows * (double)a->columns;
    bool backward = w->kernel == KERNEL_gated_backward;
    take_types(w, a->x, backward ? a->dx : a->y);
    take_shape(w, a->rows, a->columns);
    w->variant = bits(backward && a->add_dx, a->magnitude != NULL, false, false);
    w->bytes = reads(a->x, 2 * n) + (backward ? reads(a->dy, n) + writes(a->dx, 2 * n, a->add_dx) : reads(a->y, n));
}

static void of_axpby_args(const axpby_args *a, kernel_work *w)
{
    take_types(w, a->a, a->out);
    take_shape(w, a->n, 0);
    w->variant = bits(a->b.p != NULL, false, false, false);
    w->bytes = reads(a->a, (double)a->n) + reads(a->b, (double)a->n) + reads(a->out, (double)a->n);
}

static void of_multiply_args(const multiply_args *a, kernel_work *w)
{
    take_types(w, a->a, a->out);
    take_shape(w, a->n, 0);
    w->variant = bits(a->add, false, false, false);
    w->bytes = reads(a->a, (double)a->n) + reads(a->b, (double)a->n) + writes(a->out, (double)a->n, a->add);
}

static void of_fill_args(const fill_args *a, kernel_work *w)
{
    take_types(w, a->out, a->out);
    take_shape(w, a->n, 0);
    w->bytes = writes(a->out, (double)a->n, a->add);
}

static int64_t product(const int64_t *shape, int n)
{
    int64_t all = 1;
    for (int i = 0; i < n; i++)
        all *= shape[i];
    return all;
}

static void of_strided_copy_args(const strided_copy_args *a, kernel_work *w)
{
    int64_t n = product(a->shape, a->n_dims);
    take_types(w, a->from, a->to);
    take_shape(w, n, 0);
    w->variant = bits(a->add, false, false, false);
    w->bytes = reads(a->from, (double)n) + writes(a->to, (double)n, a->add);
}

static void of_map_args(const map_args *a, kernel_work *w)
{
    double n = (double)a->n;
    bool backward = w->kernel == KERNEL_map_backward;
    take_types(w, a->x, backward ? a->dx : a->y);
    take_shape(w, a->n, 0);
    w->variant = bits(backward && a->add_dx, false, false, false);
    w->bytes = reads(a->x, n) + (backward ? reads(a->dy, n) + writes(a->dx, n, a->add_dx) : reads(a->y, n));
}

static void of_combine_args(const combine_args *a, kernel_work *w)
{
    int64_t n = product(a->shape, a->n_dims);
    take_types(w, a->a, a->out);
    take_shape(w, n, 0);
    w->variant = bits(a->add, a->b.p != NULL, a->c.p != NULL, false);
    w->bytes =
        reads(a->a, (double)n) + reads(a->b, (double)n) + reads(a->c, (double)n) + writes(a->out, (double)n, a->add);
}

static void of_reduce_dims_args(const reduce_dims_args *a, kernel_work *w)
{
    int64_t kept = product(a->kept, a->n_kept), reduced = product(a->reduced, a->n_reduced);
    bool backward = w->kernel == KERNEL_reduce_backward;
    take_types(w, backward ? a->dy : a->x, backward ? a->dx : a->y);
    take_shape(w, kept, reduced);
    w->bytes = (backward ? writes(a->dx, (double)(kept * reduced), a->add) + reads(a->dy, (double)kept)
                         : reads(a->x, (double)(kept * reduced)) + reads(a->y, (double)kept));
}

static void of_softmax_args(const softmax_args *a, kernel_work *w)
{
    double n = (double)a->rows * (double)a->columns;
    bool backward = w->kernel == KERNEL_softmax_backward;
    take_types(w, a->y, a->y);
    take_shape(w, a->rows, a->columns);
    w->bytes = reads(a->y, n) + (backward ? reads(a->dy, n) + writes(a->dx, n, a->add_dx) : reads(a->x, n));
}

static void of_gather_args(const gather_args *a, kernel_work *w)
{
    double taken = (double)(a->outer * a->count) * (double)a->inner, all = (double)(a->outer * a->n) * (double)a->inner;
    bool backward = w->kernel == KERNEL_gather_backward;
    take_types(w, backward ? a->dy : a->x, backward ? a->dx : a->y);
    take_shape(w, a->outer * a->count, a->inner);
    w->bytes = backward ? reads(a->dy, taken) + writes(a->dx, all, a->add_dx) : reads(a->x, taken) + reads(a->y, taken);
}

static void of_one_hot_args(const one_hot_args *a, kernel_work *w)
{
    take_types(w, a->y, a->y);
    take_shape(w, a->rows, a->classes);
    w->bytes = reads(a->y, (double)a->rows * (double)a->classes);
}

static void of_dropout_args(const dropout_args *a, kernel_work *w)
{
    double n = (double)a->samples * (double)a->sample_numel;
    take_types(w, a->x, a->y);
    take_shape(w, a->samples, a->sample_numel);
    w->bytes = reads(a->x, n) + writes(a->y, n, a->add);
}

static void of_conv2d_args(const conv2d_args *a, kernel_work *w)
{
    bool backward = w->kernel == KERNEL_conv2d_backward;
    double depth = (double)(a->in_channels * a->kernel_h * a->kernel_w), in = (double)(a->in_h * a->in_w),
           out = (double)(a->out_h * a->out_w), batch = (double)a->batch;
    const int64_t shape[] = {a->batch,          a->in_channels,      a->out_channels,
                             a->in_h * a->in_w, a->out_h * a->out_w, a->kernel_h * a->kernel_w};
    int gradients = (a->dx.p != NULL) + (a->d_weight.p != NULL);
    take_types(w, a->x, backward ? a->d_weight : a->y);
    memcpy(w->shape, shape, sizeof shape);
    w->variant = bits(backward && a->dx.p, backward && a->d_weight.p, false, false);
    w->flops = 2 * batch * (double)a->out_channels * out * depth * (backward ? gradients : 1);
    w->bytes = (reads(a->x, batch * (double)a->in_channels * in) + reads(a->x, batch * (double)a->out_channels * out)) *
               (backward ? 2 : 1);
}

static void of_pool2d_args(const pool2d_args *a, kernel_work *w)
{
    double in = (double)a->planes * (double)(a->in_h * a->in_w),
           out = (double)a->planes * (double)(a->out_h * a->out_w);
    bool backward = w->kernel == KERNEL_pool2d_backward;
    take_types(w, backward ? a->dy : a->x, backward ? a->dx : a->y);
    take_shape(w, a->planes, a->in_h * a->in_w);
    w->bytes = backward ? reads(a->dy, out) + writes(a->dx, in, a->add_dx) : reads(a->x, in) + reads(a->y, out);
}

static void of_sum_args(const sum_args *a, kernel_work *w)
{
    take_types(w, a->x, a->x);
    take_shape(w, a->n, 0);
    w->bytes = reads(a->x, (double)a->n) + reads(a->y, (double)a->n);
}

static void of_squared_error_backward_args(const squared_error_backward_args *a, kernel_work *w)
{
    take_types(w, a->x, a->dx);
    take_shape(w, a->n, 0);
    w->bytes = reads(a->x, (double)a->n) + reads(a->y, (double)a->n) + writes(a->dx, (double)a->n, a->add);
}

static void of_norm_blocks_args(const norm_blocks_args *a, kernel_work *w)
{
    take_types(w, a->x, a->x);
    take_shape(w, a->n, 0);
    w->bytes = reads(a->x, (double)a->n);
}

static void of_sum_f64_args(const sum_f64_args *a, kernel_work *w)
{
    w->dtype = w->result = FSDP_F64;
    take_shape(w, a->n, 0);
    w->bytes = 8 * (double)a->n;
}

static void of_sum_parts_args(const sum_parts_args *a, kernel_work *w)
{
    take_types(w, a->mine, a->out);
    take_shape(w, a->n, a->n_parts);
    w->variant = bits(a->add, false, false, false);
    w->bytes = reads(a->mine, (double)a->n * a->n_parts) + writes(a->out, (double)a->n, a->add);
}

static void of_loss_total_args(const loss_total_args *a, kernel_work *w)
{
    (void)a;
    w->bytes = 24;
}

static void of_clip_args(const clip_args *a, kernel_work *w)
{
    (void)a;
    w->bytes = 64;
}

static void of_muon_direction_args(const muon_direction_args *a, kernel_work *w)
{
    w->dtype = FSDP_F32;
    w->result = FSDP_BF16;
    take_shape(w, a->n, 0);
    w->bytes = 14 * (double)a->n;
}

static void of_normalize_args(const normalize_args *a, kernel_work *w)
{
    double n = (double)a->rows * (double)a->columns;
    take_types(w, a->x, a->out);
    take_shape(w, a->rows, a->columns);
    w->variant = a->transpose;
    w->bytes = reads(a->x, n) + reads(a->out, n);
}

/* Both passes read the gradient; the first reads the parameter too, the second leaves the update. */
static void of_adafactor_part(const adafactor_part *a, kernel_work *w)
{
    w->dtype = w->result = FSDP_F32;
    take_shape(w, a->n, 0);
    w->bytes = (a->moment2 ? 16 : 8) * (double)a->n;
}

static void of_adafactor_factors_args(const adafactor_factors_args *a, kernel_work *w)
{
    w->dtype = w->result = FSDP_F32;
    take_shape(w, a->matrices, a->rows + a->columns);
    w->bytes = 28 * (double)(a->matrices * (a->rows + a->columns));
}

static void of_adafactor_rate_args(const adafactor_rate_args *a, kernel_work *w)
{
    (void)a;
    w->bytes = 40;
}

static void of_int8_args(const int8_args *a, kernel_work *w)
{
    w->dtype = w->result = a->values.dtype;
    take_shape(w, a->n, 0);
    w->bytes = reads(a->values, (double)a->n) + (double)(a->n / INT8_BLOCK) * sizeof(int8_block);
}

static void of_optimizer_args(const optimizer_args *a, kernel_work *w)
{
    double n = (double)a->n, moments = (a->moment1 != NULL) + (a->moment2 != NULL);
    double kept = 2 * (moments * (double)fsdp_dtype_size(a->moment_dtype) + (a->average ? 4 : 0));
    double step = a->direction ? 2 : (double)fsdp_dtype_size(a->gradient_dtype);
    double master = a->low ? 8 : a->parameter ? 8 : 0;
    w->dtype = FSDP_F32;
    w->result = a->copy.p ? a->copy.dtype : FSDP_F32;
    take_shape(w, a->n, 0);
    w->variant = bits(a->low != NULL, a->moment1 != NULL, a->moment2 != NULL, a->average != NULL);
    w->variant |= a->direction ? 16 : 0;
    w->variant |= (a->moment_dtype != FSDP_F32 ? 32 : 0) | (a->gradient_dtype != FSDP_F32 ? 64 : 0);
    w->variant |= a->magnitude ? 128 : 0;
    w->bytes = n * (step + master + kept) + (a->low ? 0 : reads(a->copy, n));
}

#define KERNEL_WORK_CASE(entry, args)                                                                                  \
    case KERNEL_##entry:                                                                                               \
        of_##args(given, out);                                                                                         \
        break;

void kernel_work_of(kernel_id kernel, const void *given, kernel_work *out)
{
    *out = (kernel_work){.kernel = kernel};
    switch (kernel) {
        KERNELS(KERNEL_WORK_CASE, KERNEL_WORK_CASE)
    case KERNEL_COPY:
    case KERNEL_COUNT:
        break;
    }
}

kernel_work kernel_work_of_copy(double bytes)
{
    return (kernel_work){.kernel = KERNEL_COPY, .shape = {(int64_t)bytes}, .bytes = bytes};
}

bool kernel_work_same(const kernel_work *a, const kernel_work *b)
{
    return a->kernel == b->kernel && a->dtype == b->dtype && a->result == b->result && a->variant == b->variant &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}
