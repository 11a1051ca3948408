/* Rounds of direct sums: who sums what, where it waits, and the kernels that add. */
#include "comm/direct.h"

#include <math.h>

#include "base/checked.h"
#include "base/log.h"

/* What arrives in a round, at most. 128 MiB take 0.3 ms at 450 GB/s, beside which starting a round costs little. */
static const size_t round_bytes = (size_t)128 << 20;

/* Values and sums lie at multiples of 256 bytes. */
enum { LINE = 128, VECTOR = 8 };

static const int64_t value_bytes = 2, sum_bytes = sizeof(float);

bool direct_is(const comm_request *r, const comm_span *p)
{
    bool reduces = r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_REDUCE;
    bool is_short = p->send.dtype == FSDP_BF16 || p->send.dtype == FSDP_F16;
    if (!reduces || !is_short || r->op.reduction != FSDP_REDUCE_SUM)
        return false;
    const comm *c = r->group->comm;
    return c->backend->enqueues && c->config.accumulation == FSDP_ACCUMULATE_FP32;
}

/* An all_reduce also keeps the sums of its round there while they are added to what is in recv. */
static int64_t round_each(const comm_config *config, comm_kind kind, int64_t n)
{
    int64_t bytes = (int64_t)(config->staging_bytes ? config->staging_bytes : round_bytes);
    int64_t element = (n - 1) * value_bytes + (kind == COMM_ALL_REDUCE ? n * sum_bytes : 0);
    return max_i64(bytes / element / LINE, 1) * LINE;
}

static int64_t slot_stride(comm_kind kind, int64_t n, int64_t each, int64_t numel)
{
    int64_t most = kind == COMM_ALL_REDUCE ? min_i64(each, numel / n) + (VECTOR + 1) * n : min_i64(each, numel);
    return ceil_div(most, LINE) * LINE;
}

size_t direct_staging_bytes(const comm_config *config, comm_kind kind, int n_ranks, int64_t numel)
{
    int64_t n = n_ranks, each = round_each(config, kind, n);
    int64_t sums = kind == COMM_ALL_REDUCE ? min_i64(n * each, numel) * sum_bytes : 0;
    if (numel == 0)
        return 0;
    return (size_t)((n - 1) * slot_stride(kind, n, each, numel) * value_bytes) + round_up((size_t)sums, 256);
}

direct_sum direct_begin(const comm_request *r, const comm_span *p)
{
    const comm_group *g = r->group;
    direct_sum d = {.group = g, .span = p, .scatters = r->kind == COMM_REDUCE_SCATTER};
    d.each = round_each(&g->comm->config, r->kind, g->size);
    int64_t round = d.scatters ? d.each : d.each * g->size;
    d.n_rounds = ceil_div(d.scatters ? span_largest(p, g->size) : p->count, round);
    d.stride = slot_stride(r->kind, g->size, d.each, d.scatters ? span_count(p, g->rank) : p->count);
    return d;
}

direct_part direct_part_of(const direct_sum *d, int64_t round, int rank)
{
    const comm_span *p = d->span;
    int64_t n = d->group->size;
    if (d->scatters) {
        int64_t begin = min_i64(round * d->each, span_count(p, rank));
        return (direct_part){span_offset(p, rank) + begin, min_i64(d->each, span_count(p, rank) - begin)};
    }
    int64_t begin = round * d->each * n, length = min_i64(d->each * n, p->count - begin);
    int64_t part = length / n / VECTOR * VECTOR;
    return (direct_part){begin + rank * part, rank == n - 1 ? length - rank * part : part};
}

void *direct_slot(const direct_sum *d, void *staging, int peer)
{
    return (char *)staging + (peer - (peer > d->group->rank)) * d->stride * value_bytes;
}

static buffer at(buffer b, int64_t index)
{
    return (buffer){(char *)b.p + index * (int64_t)fsdp_dtype_size(b.dtype), b.dtype};
}

static fsdp_status sum_part(const direct_sum *d, const direct_carrier *c, void *staging, direct_part mine, buffer out,
                            bool add)
{
    const comm_span *p = d->span;
    sum_parts_args a = {.n = mine.n,
                        .n_parts = d->group->size,
                        .own = d->group->rank,
                        .parts = {staging, p->send.dtype},
                        .stride = d->stride,
                        .mine = at(p->send, mine.first),
                        .out = out,
                        .add = add};
    return mine.n > 0 ? d->group->comm->config.device->kernels->sum_parts(c->stream, &a) : FSDP_OK;
}

/* Sums that are added to what is in recv stay unrounded until then. */
static fsdp_status share_round(const direct_sum *d, const direct_carrier *c, int64_t round, void *staging)
{
    const comm_span *p = d->span;
    direct_part first = direct_part_of(d, round, 0), mine = direct_part_of(d, round, d->group->rank),
                last = direct_part_of(d, round, d->group->size - 1);
    buffer recv = at(p->recv, first.first), sums = {direct_slot(d, staging, d->group->size), FSDP_F32},
           whole = p->add ? sums : recv;
    FSDP_TRY(sum_part(d, c, staging, mine, at(whole, mine.first - first.first), false));
    FSDP_TRY(c->gather(c->context, d, round, whole));
    axpby_args a = {.n = last.first + last.n - first.first, .alpha = 1, .a = sums, .b = recv, .beta = 1, .out = recv};
    return p->add ? d->group->comm->config.device->kernels->axpby(c->stream, &a) : FSDP_OK;
}

/* Bytes of a sum as it is handed round. */
static int64_t sum_size(const direct_sum *d)
{
    return d->span->add ? sum_bytes : (int64_t)fsdp_dtype_size(d->span->recv.dtype);
}

/* Members on the host of rank 0, where it has the first ranks. */
static int members_of_first_host(const comm_group *g)
{
    int n = 0;
    for (int i = 0; i < g->size; i++)
        n += g->members[i] < g->comm->local_world_size;
    return n;
}

/* Where several ranks of a host share the way to other hosts, a ring sends partial sums there, and direct sums all
 * values: worth a line, once. The second half of an all_reduce, which gathers the sums, is a ring's. */
static void say_cost(const direct_sum *d)
{
    const comm_group *g = d->group;
    comm *c = g->comm;
    if (c->said_cost || c->rank != 0 || c->n_nodes < 2)
        return;
    double n = g->size, here = members_of_first_host(g);
    if (here < 2 || n <= here)
        return;
    double values = (n - here) * here / (n - 1), sums = (double)sum_size(d) / (double)value_bytes;
    c->said_cost = true;
    log_write(
        FSDP_LOG_WARNING,
        "sums of 16-bit gradients over %d ranks on %d hosts, made in fp32, take %.1f times the bytes between hosts "
        "that NCCL's own sums take; --sharding_strategy hybrid, --reduce_dtype fp32 or --reduce_accumulation "
        "library is faster",
        g->size, (int)ceil(n / here), d->scatters ? values : (values + sums) / 2);
}

fsdp_status direct_run(const direct_sum *d, const direct_carrier *c, void *staging)
{
    say_cost(d);
    for (int64_t round = 0; round < d->n_rounds; round++) {
        direct_part mine = direct_part_of(d, round, d->group->rank);
        FSDP_TRY(c->scatter(c->context, d, round, staging));
        if (d->scatters)
            FSDP_TRY(sum_part(d, c, staging, mine, at(d->span->recv, round * d->each), d->span->add));
        else
            FSDP_TRY(share_round(d, c, round, staging));
    }
    return FSDP_OK;
}
