/* Collectives against a serial loop over ranks, bit for bit: the same cases for every backend. Conversions here are
 * written another way than the library's (in double arithmetic), so that both can be wrong only apart. */
#ifndef TESTS_COMM_CASES_H
#define TESTS_COMM_CASES_H

#include <math.h>
#include <stdint.h>

#include "ranks.h"

/* ---- numbers ---- */

static inline double half_to_double(uint16_t half)
{
    int exponent = (half >> 10) & 31, fraction = half & 1023;
    double value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -value : value;
}

/* Finite values only; to the nearest, ties to even (nearbyint in the default rounding mode). */
static inline uint16_t round_to_half(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    int exponent;
    if (magnitude < ldexp(1, -14))
        return (uint16_t)(sign | (uint16_t)nearbyint(ldexp(magnitude, 24)));
    frexp(magnitude, &exponent);
    double units = nearbyint(ldexp(magnitude, 11 - exponent)); /* 1024 .. 2048 */
    if (units == 2048)
        units = 1024, exponent++;
    if (exponent > 16)
        return sign | 0x7c00;
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)units - 1024));
}

static inline uint16_t round_to_bf16(float value)
{
    int exponent;
    float magnitude = fabsf(value);
    if (magnitude == 0)
        return signbit(value) ? 0x8000 : 0;
    frexpf(magnitude, &exponent);
    double rounded = ldexp(nearbyint(ldexp(magnitude, 8 - exponent)), exponent - 8);
    float exact = (float)(signbit(value) ? -rounded : rounded);
    uint32_t bits;
    memcpy(&bits, &exact, 4);
    return (uint16_t)(bits >> 16);
}

/* A number of this rank, span and index; between -4 and 4, all of its bits in use. */
static inline float test_value(int rank, int span, int64_t index)
{
    uint64_t x = (uint64_t)rank * 0x9e3779b97f4a7c15ull + (uint64_t)span * 0xbf58476d1ce4e5b9ull + (uint64_t)index + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    return ((float)(int32_t)(x >> 32) * 0x1p-29f) * ((x & 3) == 0 ? 0.001f : 1.0f);
}

static inline void store(void *to, fsdp_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case FSDP_F32:
        ((float *)to)[index] = (float)value;
        break;
    case FSDP_BF16:
        ((uint16_t *)to)[index] = round_to_bf16((float)value);
        break;
    case FSDP_F16:
        ((uint16_t *)to)[index] = round_to_half((float)value);
        break;
    case FSDP_F64:
        ((double *)to)[index] = value;
        break;
    case FSDP_I32:
        ((int32_t *)to)[index] = (int32_t)(value * 1000);
        break;
    case FSDP_I64:
        ((int64_t *)to)[index] = (int64_t)(value * 1e9);
        break;
    default:
        ((uint8_t *)to)[index] = (uint8_t)(int)(value * 30);
    }
}

static inline double load(const void *from, fsdp_dtype dtype, int64_t index)
{
    float value;
    uint32_t bits;
    switch (dtype) {
    case FSDP_F32:
        return ((const float *)from)[index];
    case FSDP_BF16:
        bits = (uint32_t)((const uint16_t *)from)[index] << 16;
        memcpy(&value, &bits, 4);
        return value;
    case FSDP_F16:
        return half_to_double(((const uint16_t *)from)[index]);
    default:
        return ((const double *)from)[index];
    }
}

/* ---- one case ---- */

typedef struct collective_case {
    comm_kind kind;
    fsdp_dtype from, to;
    int64_t count; /* of each rank's part; the last span has a few more */
    int n_spans;
    bool unequal; /* rank r's part has (r * 37) % (count + 1) elements */
    bool shared;  /* send lies in comm_allocate memory */
    bool in_place, add;
    fsdp_reduction reduction;
} collective_case;

enum { CASE_PIECES = 3 };

typedef struct case_memory {
    char *shared;
    size_t shared_bytes, used;
} case_memory;

static inline void *case_take(case_memory *m, bool shared, size_t bytes)
{
    bytes = (bytes + 71) / 64 * 64 + 8; /* odd starts: 8 past a multiple of 64 */
    if (!shared)
        return calloc(1, bytes);
    RANK_CHECK(m->used + bytes <= m->shared_bytes);
    void *memory = m->shared + m->used;
    m->used += bytes;
    memset(memory, 0, bytes);
    return memory;
}

static inline bool case_is_reduction(const collective_case *k)
{
    return k->kind == COMM_REDUCE_SCATTER || k->kind == COMM_ALL_REDUCE;
}

/* What element `index` (of the whole) comes to, by a loop over ranks; `before` is what recv held. */
static inline void expect(const collective_case *k, int n, int span, int64_t index, void *out, int64_t at,
                          double before)
{
    if (k->from == FSDP_I32 || k->from == FSDP_I64) {
        int64_t sum = 0;
        for (int rank = 0; rank < n; rank++) {
            int64_t value = 0;
            store(&value, k->from, 0, test_value(rank, span, index));
            sum += k->from == FSDP_I32 ? (int32_t)value : value;
        }
        if (k->from == FSDP_I32)
            ((int32_t *)out)[at] = (int32_t)sum;
        else
            ((int64_t *)out)[at] = sum;
        return;
    }
    double wide = 0;
    float narrow = 0;
    for (int rank = 0; rank < n; rank++) {
        double cell[1], value;
        store(cell, k->from, 0, test_value(rank, span, index));
        value = load(cell, k->from, 0);
        bool better = k->reduction == FSDP_REDUCE_MAX ? value > wide : value < wide;
        if (rank == 0)
            wide = value, narrow = (float)value;
        else if (k->reduction == FSDP_REDUCE_MAX || k->reduction == FSDP_REDUCE_MIN)
            wide = better ? value : wide, narrow = (float)wide;
        else
            wide += value, narrow += (float)value;
    }
    if (k->from == FSDP_F64) {
        ((double *)out)[at] = k->add ? before + wide : wide;
        return;
    }
    store(out, k->to, at, k->add ? (float)before + narrow : narrow);
}

typedef struct case_span {
    comm_span span;
    int64_t counts[RANKS_MAX];
    int64_t send_numel, recv_numel;
    void *before; /* copy of recv as it was */
    void *kept;   /* recv, when it was calloc'd apart from send */
    void *kept_send;
} case_span;

static inline void case_prepare(const collective_case *k, comm_group *g, case_memory *m, int index, case_span *out)
{
    int n = comm_group_size(g), rank = comm_group_rank(g);
    int64_t count = k->count + (index == k->n_spans - 1 ? 3 * index : 0), total = 0, offset = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++) {
        out->counts[i] = k->unequal ? (i * 37 + index) % (count + 1) : count;
        total += out->counts[i];
        offset += i < rank ? out->counts[i] : 0;
    }
    bool gathers = k->kind == COMM_ALL_GATHER, scatters = k->kind == COMM_REDUCE_SCATTER;
    int64_t mine = out->counts[rank];
    out->send_numel = gathers ? mine : scatters ? total : count;
    out->recv_numel = gathers ? total : scatters ? mine : count;
    size_t from_size = fsdp_dtype_size(k->from), to_size = fsdp_dtype_size(k->to);
    int64_t largest = out->send_numel > out->recv_numel ? out->send_numel : out->recv_numel;
    char *send = case_take(m, k->shared, (size_t)(k->in_place ? largest : out->send_numel) * from_size), *recv;
    out->kept_send = k->shared ? NULL : send;
    if (k->in_place) {
        recv = scatters ? send + offset * (int64_t)to_size : send;
        if (gathers)
            send += offset * (int64_t)from_size;
    } else {
        recv = case_take(m, false, (size_t)out->recv_numel * to_size);
        out->kept = recv;
    }
    out->before = calloc((size_t)out->recv_numel + 1, 8);
    for (int64_t i = 0; k->add && i < out->recv_numel; i++)
        store(recv, k->to, i, test_value(100 + rank, index, i));
    if (!k->in_place)
        memcpy(out->before, recv, (size_t)out->recv_numel * to_size);
    for (int64_t i = 0; i < out->send_numel; i++)
        store(send, k->from, i, test_value(rank, index, gathers ? offset + i : i));
    out->span = (comm_span){.send = {send, k->from},
                            .recv = {recv, k->to},
                            .count = count,
                            .counts = k->unequal ? out->counts : NULL,
                            .add = k->add};
}

static inline void case_verify(const collective_case *k, comm_group *g, int index, const case_span *p)
{
    int n = comm_group_size(g), rank = comm_group_rank(g);
    int64_t offset = 0;
    for (int i = 0; i < rank; i++)
        offset += p->counts[i];
    size_t size = fsdp_dtype_size(k->to);
    char *wanted = calloc((size_t)p->recv_numel + 1, size);
    for (int64_t i = 0; i < p->recv_numel; i++) {
        if (case_is_reduction(k)) {
            bool floats = k->to != FSDP_I32 && k->to != FSDP_I64;
            expect(k, n, index, k->kind == COMM_REDUCE_SCATTER ? offset + i : i, wanted, i,
                   k->add && floats ? load(p->before, k->to, i) : 0);
        }
    }
    for (int64_t i = 0, owner = 0, left = p->counts[0]; k->kind == COMM_ALL_GATHER && i < p->recv_numel; i++, left--) {
        while (left == 0)
            left = p->counts[++owner];
        store(wanted, k->to, i, test_value((int)owner, index, i));
    }
    if (p->recv_numel > 0 && memcmp(wanted, p->span.recv.p, (size_t)p->recv_numel * size) != 0) {
        int64_t i = 0;
        while (memcmp(wanted + i * (int64_t)size, (char *)p->span.recv.p + i * (int64_t)size, size) == 0)
            i++;
        fprintf(stderr,
                "rank %d of %d: kind %d, %s to %s, count %lld, unequal %d, shared %d, in place %d, add %d, "
                "reduction %d: span %d differs from element %lld on\n",
                rank, n, k->kind, fsdp_dtype_name(k->from), fsdp_dtype_name(k->to), (long long)k->count, k->unequal,
                k->shared, k->in_place, k->add, k->reduction, index, (long long)i);
        _exit(1);
    }
    free(wanted);
}

static inline void case_run(const collective_case *k, comm_group *g, case_memory *m, int64_t step)
{
    case_span spans[CASE_PIECES];
    comm_span given[CASE_PIECES];
    comm_request r = COMM_REQUEST_INIT;
    m->used = 0;
    for (int i = 0; i < k->n_spans; i++) {
        case_prepare(k, g, m, i, &spans[i]);
        given[i] = spans[i].span;
    }
    comm_op op = {.unit = "layers.0", .step = step, .n_spans = k->n_spans, .spans = given, .reduction = k->reduction};
    fsdp_status (*const start[])(comm_group *, const comm_op *, comm_request *) = {comm_all_gather, comm_reduce_scatter,
                                                                                   comm_all_reduce};
    RANK_CHECK(start[k->kind](g, &op, &r) == FSDP_OK);
    RANK_CHECK(comm_wait(&r, NULL) == FSDP_OK);
    for (int i = 0; i < k->n_spans; i++)
        case_verify(k, g, i, &spans[i]);
    RANK_CHECK(comm_wait_sent(&r, NULL) == FSDP_OK);
    for (int i = 0; i < k->n_spans; i++) {
        free(spans[i].before);
        free(spans[i].kept);
        free(spans[i].kept_send);
    }
}

/* Every collective, dtype, residence and odd count that makes sense together. Returns how many cases that were. */
static inline int cases_run_all(comm *c, comm_group *g)
{
    static const int64_t counts[] = {1, 7, 64, 1003, 9001};
    static const fsdp_dtype gathered[] = {FSDP_F32, FSDP_BF16, FSDP_U8, FSDP_I64};
    static const fsdp_dtype reduced[][2] = {{FSDP_F32, FSDP_F32}, {FSDP_BF16, FSDP_F32}, {FSDP_BF16, FSDP_BF16},
                                            {FSDP_F16, FSDP_F32}, {FSDP_F16, FSDP_F16},  {FSDP_F32, FSDP_BF16},
                                            {FSDP_F64, FSDP_F64}, {FSDP_I32, FSDP_I32},  {FSDP_I64, FSDP_I64}};
    int n = 0;
    case_memory m = {.shared_bytes = (size_t)4 << 20};
    void *memory;
    RANK_CHECK(comm_allocate(c, m.shared_bytes, &memory) == FSDP_OK);
    m.shared = memory;
    size_t n_counts = sizeof counts / sizeof *counts - (comm_group_size(g) > 4); /* the largest is for smaller groups */
    for (size_t at = 0; at < n_counts; at++) {
        for (int form = 0; form < 16; form++) { /* bits: shared, unequal, in place, add */
            bool shared = form & 1, unequal = form & 2, in_place = form & 4, add = form & 8;
            int n_spans = 1 + (int)(at + (size_t)form) % CASE_PIECES;
            for (size_t d = 0; !add && d < sizeof gathered / sizeof *gathered; d++) {
                collective_case k = {.kind = COMM_ALL_GATHER,
                                     .from = gathered[d],
                                     .to = gathered[d],
                                     .count = counts[at],
                                     .n_spans = n_spans,
                                     .unequal = unequal,
                                     .shared = shared,
                                     .in_place = in_place};
                case_run(&k, g, &m, n++);
            }
            for (size_t d = 0; d < sizeof reduced / sizeof *reduced; d++) {
                bool integer = reduced[d][0] == FSDP_I32 || reduced[d][0] == FSDP_I64;
                collective_case k = {.kind = COMM_REDUCE_SCATTER,
                                     .from = reduced[d][0],
                                     .to = reduced[d][1],
                                     .count = counts[at],
                                     .n_spans = n_spans,
                                     .unequal = unequal,
                                     .shared = shared,
                                     .in_place = in_place,
                                     .add = add,
                                     .reduction = integer ? FSDP_REDUCE_SUM : (fsdp_reduction)((at + d) % 3)};
                if ((in_place && (add || k.from != k.to)) || (add && integer))
                    continue;
                case_run(&k, g, &m, n++);
                k.kind = COMM_ALL_REDUCE;
                if (!unequal)
                    case_run(&k, g, &m, n++);
            }
        }
    }
    comm_release(c, memory);
    return n;
}

#endif
