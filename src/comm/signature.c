/* Makes, compares and words the signatures of collectives. */
#include "comm/signature.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/direct.h"

/* Beside the values of fsdp_reduction. */
enum { SUM_DIRECT = FSDP_REDUCE_MIN + 1, SUM_ADDED };

static bool has_parts(comm_kind kind)
{
    return kind == COMM_ALL_GATHER || kind == COMM_REDUCE_SCATTER || kind == COMM_EXCHANGE;
}

void signature_make(const comm_request *r, signature *out)
{
    const comm_op *op = &r->op;
    memset(out, 0, sizeof *out);
    snprintf(out->unit, sizeof out->unit, "%s", op->unit ? op->unit : "");
    snprintf(out->label, sizeof out->label, "%s", op->label ? op->label : "");
    out->kind = r->kind;
    out->step = op->step;
    out->n_spans = op->n_spans;
    out->reduction = op->reduction;

    uint64_t hash = hash_u64(HASH_START, (uint64_t)r->kind);
    hash = hash_text(hash, out->unit);
    hash = hash_text(hash_u64(hash, (uint64_t)op->step), out->label);
    hash = hash_u64(hash, (uint64_t)op->n_spans << 16 | (uint64_t)op->reduction << 8);
    for (int i = 0; i < op->n_spans; i++) {
        const comm_span *p = &op->spans[i];
        if (direct_is(r, p)) /* other calls of the library; added sums come in fp32 */
            out->reduction = p->add && r->kind == COMM_ALL_REDUCE ? SUM_ADDED : SUM_DIRECT;
        hash = hash_u64(hash, (uint64_t)out->reduction << 16 | (uint64_t)p->send.dtype << 8 | (uint64_t)p->recv.dtype);
        for (int rank = 0; rank < (p->counts ? r->group->size : 1); rank++)
            hash = hash_u64(hash, (uint64_t)span_count(p, rank));
        out->elements += has_parts(r->kind) ? span_offset(p, r->group->size) : p->count;
    }
    if (op->n_spans > 0) {
        out->from = op->spans[0].send.dtype;
        out->to = op->spans[0].recv.dtype;
    }
    out->hash = hash;
}

const char *signature_text(const signature *s, char *text, size_t bytes)
{
    const char *kind = comm_kind_name((comm_kind)s->kind);
    if (s->unit[0])
        snprintf(text, bytes, "%s of unit %s", kind, s->unit);
    else if (s->label[0])
        snprintf(text, bytes, "%s of %s", kind, s->label);
    else
        snprintf(text, bytes, "%s", kind);
    return text;
}

const char *signature_place(const signature *s, char *text, size_t bytes)
{
    char name[2 * COMM_NAME_BYTES];
    if (s->hash == 0)
        snprintf(text, bytes, "has not reached any collective");
    else if (s->unit[0])
        snprintf(text, bytes, "last reached %s (step %lld)", s->unit, (long long)s->step);
    else
        snprintf(text, bytes, "last reached %s (step %lld)", signature_text(s, name, sizeof name), (long long)s->step);
    return text;
}

/* What differs when both are called the same. */
static void detail(const signature *s, const signature *other, char *text, size_t bytes)
{
    static const char *const reductions[] = {"sum", "max", "min", "sum in fp32 by its owner",
                                             "sum in fp32 by its owner, to be added"};
    if (s->step != other->step)
        snprintf(text, bytes, " at step %lld", (long long)s->step);
    else if (s->n_spans != other->n_spans)
        snprintf(text, bytes, " in %d spans", s->n_spans);
    else if (s->from != other->from || s->to != other->to)
        snprintf(text, bytes, " from %s into %s", fsdp_dtype_name((fsdp_dtype)s->from),
                 fsdp_dtype_name((fsdp_dtype)s->to));
    else if (s->elements != other->elements)
        snprintf(text, bytes, " with %lld elements", (long long)s->elements);
    else if (s->reduction != other->reduction)
        snprintf(text, bytes, " as %s",
                 (uint32_t)s->reduction <= SUM_ADDED ? reductions[s->reduction] : "something unknown");
    else
        snprintf(text, bytes, " with %lld elements cut in another way", (long long)s->elements);
}

fsdp_status signature_mismatch(const signature *a, int rank_a, const signature *b, int rank_b)
{
    char text_a[192], text_b[192], detail_a[96] = "", detail_b[96] = "";
    signature_text(a, text_a, sizeof text_a);
    signature_text(b, text_b, sizeof text_b);
    if (strcmp(text_a, text_b) == 0) {
        detail(a, b, detail_a, sizeof detail_a);
        detail(b, a, detail_b, sizeof detail_b);
    }
    return error_set(FSDP_ERR_PEER,
                     "rank %d called %s%s where rank %d called %s%s; all ranks must take the same path (same flags, "
                     "model and number of batches)",
                     rank_a, text_a, detail_a, rank_b, text_b, detail_b);
}
