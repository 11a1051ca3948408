/* What a collective asks for: the calls that start one, the check of their arguments, and the shapes of their spans.
 * Running them is left to the engine and the backends. */
#include "comm/engine.h"

#include "base/error.h"
#include "comm/direct.h"

static const char *const kind_names[] = {
    [COMM_ALL_GATHER] = "all_gather", [COMM_REDUCE_SCATTER] = "reduce_scatter",
    [COMM_ALL_REDUCE] = "all_reduce", [COMM_BARRIER] = "barrier",
    [COMM_EXCHANGE] = "exchange",
};

const char *comm_kind_name(comm_kind kind)
{
    size_t index = (size_t)kind; /* it may come from another rank */
    return index < sizeof kind_names / sizeof *kind_names ? kind_names[index] : "something unknown";
}

int64_t span_offset(const comm_span *p, int rank)
{
    if (!p->counts)
        return p->count * rank;
    int64_t offset = 0;
    for (int i = 0; i < rank; i++)
        offset += p->counts[i];
    return offset;
}

int64_t span_largest(const comm_span *p, int n_ranks)
{
    int64_t largest = p->counts ? 0 : p->count;
    for (int i = 0; p->counts && i < n_ranks; i++)
        if (p->counts[i] > largest)
            largest = p->counts[i];
    return largest;
}

/* Bytes of an element of the sums that all_reduce hands round. */
static int64_t sum_size(const comm_request *r, const comm_span *p)
{
    return (int64_t)fsdp_dtype_size(!direct_is(r, p) ? p->send.dtype : p->add ? FSDP_F32 : p->recv.dtype);
}

int64_t request_received(const comm_request *r)
{
    int64_t n = r->group->size, bytes = 0;
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        int64_t size = (int64_t)fsdp_dtype_size(p->send.dtype), mine = span_count(p, r->group->rank);
        if (r->kind == COMM_REDUCE_SCATTER)
            bytes += (n - 1) * mine * size;
        else if (r->kind == COMM_ALL_REDUCE)
            bytes += (n - 1) * p->count * (size + sum_size(r, p)) / n;
        else
            bytes += (span_offset(p, r->group->size) - mine) * size;
    }
    return bytes;
}

static bool is_reduction(comm_kind kind)
{
    return kind == COMM_REDUCE_SCATTER || kind == COMM_ALL_REDUCE;
}

static bool is_narrow_float(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16;
}

static const char *op_name(const comm_op *op)
{
    return op->unit ? op->unit : op->label ? op->label : "data";
}

static fsdp_status validate_dtypes(comm_kind kind, const comm_op *op, const comm_span *p)
{
    fsdp_dtype from = p->send.dtype, to = p->recv.dtype;
    if (!is_reduction(kind)) {
        if (from != to)
            return error_set(FSDP_ERR_INPUT, "%s of %s from %s into %s: both sides must have one dtype",
                             comm_kind_name(kind), op_name(op), fsdp_dtype_name(from), fsdp_dtype_name(to));
        return FSDP_OK;
    }
    if (is_narrow_float(from) && is_narrow_float(to))
        return FSDP_OK;
    if (from != to || from == FSDP_U8)
        return error_set(FSDP_ERR_INPUT,
                         "%s of %s from %s into %s: only fp32, bf16 and fp16 may differ, uint8 has no sum",
                         comm_kind_name(kind), op_name(op), fsdp_dtype_name(from), fsdp_dtype_name(to));
    return FSDP_OK;
}

/* Elements that this rank reads (send) and writes (recv). */
static void span_extent(const comm_group *g, comm_kind kind, const comm_span *p, int64_t *send, int64_t *recv)
{
    int64_t mine = span_count(p, g->rank), total = span_offset(p, g->size);
    switch (kind) {
    case COMM_ALL_GATHER:
    case COMM_EXCHANGE:
        *send = mine, *recv = total;
        break;
    case COMM_REDUCE_SCATTER:
        *send = total, *recv = mine;
        break;
    default:
        *send = *recv = p->count;
    }
}

fsdp_status request_validate(const comm_group *g, comm_kind kind, const comm_op *op)
{
    const char *name = comm_kind_name(kind), *what = op_name(op);
    if (op->n_spans < 0 || op->n_spans > COMM_MAX_PIECES)
        return error_set(FSDP_ERR_INPUT, "%s of %s has %d spans; 0 to %d are possible", name, what, op->n_spans,
                         COMM_MAX_PIECES);
    for (int i = 0; i < op->n_spans; i++) {
        const comm_span *p = &op->spans[i];
        bool parts = kind == COMM_ALL_GATHER || kind == COMM_REDUCE_SCATTER;
        if (p->counts && !parts)
            return error_set(FSDP_ERR_INPUT, "%s of %s: counts per rank make no sense here", name, what);
        for (int rank = 0; rank < g->size; rank++)
            if (span_count(p, rank) < 0)
                return error_set(FSDP_ERR_INPUT, "%s of %s: span %d has %lld elements for rank %d", name, what, i,
                                 (long long)span_count(p, rank), rank);
        FSDP_TRY(validate_dtypes(kind, op, p));
        int64_t send, recv;
        span_extent(g, kind, p, &send, &recv);
        if ((send > 0 && !p->send.p) || (recv > 0 && !p->recv.p))
            return error_set(FSDP_ERR_INPUT, "%s of %s: span %d has no %s buffer", name, what, i,
                             send > 0 && !p->send.p ? "send" : "recv");
    }
    return FSDP_OK;
}

fsdp_status comm_all_gather(comm_group *g, const comm_op *op, comm_request *r)
{
    return engine_start(g, COMM_ALL_GATHER, op, r);
}

fsdp_status comm_reduce_scatter(comm_group *g, const comm_op *op, comm_request *r)
{
    return engine_start(g, COMM_REDUCE_SCATTER, op, r);
}

fsdp_status comm_all_reduce(comm_group *g, const comm_op *op, comm_request *r)
{
    return engine_start(g, COMM_ALL_REDUCE, op, r);
}

fsdp_status comm_wait(comm_request *r, stream *s)
{
    FSDP_TRY(engine_wait(r));
    if (atomic_load(&r->state) == REQUEST_IDLE || r->group->size == 1 || !r->group->comm->backend->wait)
        return FSDP_OK; /* the host has waited, so every CPU stream has */
    return r->group->comm->backend->wait(r, s);
}

fsdp_status comm_wait_sent(comm_request *r, stream *s)
{
    FSDP_TRY(comm_wait(r, s));
    if (atomic_load(&r->state) == REQUEST_IDLE)
        return FSDP_OK;
    comm *c = r->group->comm;
    if (r->group->size == 1 || !c->backend->is_sent || c->backend->is_sent(r))
        return FSDP_OK;
    /* A peer may need what we have started and not yet run before it reaches the point we wait for. */
    engine_report_wait(r, HOOK_BEGIN);
    fsdp_status drained = engine_drain(c), status = drained == FSDP_OK ? c->backend->wait_sent(r) : drained;
    if (drained == FSDP_OK && status != FSDP_OK)
        status = engine_fail(c, status, engine_error_text(c)); /* while it waits: the flight file shows in what */
    engine_report_wait(r, HOOK_END);
    return status;
}

void comm_forget(comm_request *r)
{
    engine_await(r);
}
