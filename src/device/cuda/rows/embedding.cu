/* Rows of a table by id, and the table's gradient without floating-point atomics: rows are sorted by id (a counting
 * sort whose ties are put into row order), then every row of the table that an id names is written once, summing its
 * rows of dy in an order that depends on nothing else. Ids are as frequent as words are, and padding more so: those
 * that come often are sorted and summed by whole blocks. */
#include "device/cuda/vector.cuh"

#define THREADS 256
/* An id that more rows have is frequent. */
#define FREQUENT 64

template <int D, int V> __global__ void __launch_bounds__(THREADS) embedding_forward(const embedding_args a)
{
    const int64_t n = a.columns / V;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int32_t id = a.ids[row];
        const bool known = id >= 0 && id < a.vocabulary;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            floats<V> x;
#pragma unroll
            for (int j = 0; j < V; j++)
                x.v[j] = 0;
            if (known)
                x = load<D, V>(a.table, (int64_t)id * a.columns + i * V);
            store<D, V>(a.y, row * a.columns + i * V, x);
        }
    }
}

extern "C" cudaError_t launch_embedding_forward(const launch *l, const embedding_args *a)
{
    if (a->rows == 0 || a->columns == 0)
        return cudaSuccess;
    const bool vectors = a->columns % 8 == 0 && is_aligned(a->table) && is_aligned(a->y);
    const int dtype = common_dtype(a->table, a->y, no_buffer, no_buffer);
#define CALL(D, V)                                                                                                     \
    embedding_forward<D, V>                                                                                            \
        <<<(unsigned)launch_min(a->rows, INT32_MAX), row_threads(a->columns / V, THREADS), 0, l->stream>>>(*a)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}

/* The workspace, in order. counts is cleared before use and counts up again while positions are handed out. */
struct lists {
    int32_t *counts;  /* (vocabulary) */
    int32_t *offsets; /* (vocabulary + 1): where an id's rows begin */
    int32_t *rows;    /* (rows): rows by id, ties in any order */
    int32_t *sorted;  /* (rows): the same, ties in row order */
};

static lists make_lists(const embedding_args *a)
{
    int32_t *p = (int32_t *)a->workspace;
    return {p, p + a->vocabulary, p + 2 * a->vocabulary + 1, p + 2 * a->vocabulary + 1 + a->rows};
}

/* The id of a row; -1 for what has no gradient. */
static __device__ __forceinline__ int32_t trained_id(const embedding_args &a, int64_t row)
{
    const int32_t id = row < a.rows ? a.ids[row] : -1;
    return id >= 0 && id < a.vocabulary && !(a.has_padding && id == a.padding) ? id : -1;
}

__global__ void __launch_bounds__(THREADS) count_ids(const embedding_args a, lists w)
{
    const int64_t row = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int32_t id = trained_id(a, row);
    if (id >= 0)
        atomicAdd(&w.counts[id], 1);
}

/* One block: exclusive sums of the counts, and the counts back to zero for the next pass. */
__global__ void __launch_bounds__(1024) scan_counts(int64_t vocabulary, lists w)
{
    __shared__ int32_t warps[32];
    __shared__ int32_t carry;
    if (threadIdx.x == 0)
        carry = 0;
    __syncthreads();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int64_t first = 0; first < vocabulary; first += 4096) {
        int32_t own[4], total = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int64_t id = first + threadIdx.x * 4 + j;
            own[j] = id < vocabulary ? w.counts[id] : 0;
            total += own[j];
        }
        int32_t inclusive = total;
#pragma unroll
        for (int offset = 1; offset < 32; offset <<= 1) {
            const int32_t other = __shfl_up_sync(0xffffffffu, inclusive, offset);
            if (lane >= offset)
                inclusive += other;
        }
        if (lane == 31)
            warps[warp] = inclusive;
        __syncthreads();
        if (warp == 0) {
            int32_t sum = warps[lane];
#pragma unroll
            for (int offset = 1; offset < 32; offset <<= 1) {
                const int32_t other = __shfl_up_sync(0xffffffffu, sum, offset);
                if (lane >= offset)
                    sum += other;
            }
            warps[lane] = sum;
        }
        __syncthreads();
        int32_t at = carry + (warp > 0 ? warps[warp - 1] : 0) + inclusive - total;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int64_t id = first + threadIdx.x * 4 + j;
            if (id < vocabulary) {
                w.offsets[id] = at;
                w.counts[id] = 0;
            }
            at += own[j];
        }
        __syncthreads();
        if (threadIdx.x == 1023)
            carry = at;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        w.offsets[vocabulary] = carry;
}

__global__ void __launch_bounds__(THREADS) place_rows(const embedding_args a, lists w)
{
    const int64_t row = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int32_t id = trained_id(a, row);
    if (id >= 0)
        w.rows[w.offsets[id] + atomicAdd(&w.counts[id], 1)] = (int32_t)row;
}

/* A row's place among its equals is how many of them come before it. */
__global__ void __launch_bounds__(THREADS) order_rows(const embedding_args a, lists w)
{
    const int64_t row = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int32_t id = trained_id(a, row);
    if (id < 0)
        return;
    const int32_t first = w.offsets[id], last = w.offsets[id + 1];
    if (last - first > FREQUENT)
        return;
    int32_t before = 0;
    for (int32_t i = first; i < last; i++)
        before += w.rows[i] < (int32_t)row;
    w.sorted[first + before] = (int32_t)row;
}

/* Every FREQUENT-th place of the rows by id has a block. The first of them that lies among a frequent id's rows works
 * for that id. -1: this block has nothing to do. */
static __device__ __forceinline__ int32_t frequent_id(const embedding_args &a, const lists &w, const int32_t *rows)
{
    const int32_t at = (int32_t)blockIdx.x * FREQUENT;
    if (at >= w.offsets[a.vocabulary])
        return -1;
    const int32_t id = a.ids[rows[at]], first = w.offsets[id];
    return w.offsets[id + 1] - first > FREQUENT && at - first < FREQUENT ? id : -1;
}

/* Walks through all rows and takes those of its id, in order. */
__global__ void __launch_bounds__(1024) order_frequent(const embedding_args a, lists w)
{
    __shared__ int32_t warps[32];
    const int32_t id = frequent_id(a, w, w.rows);
    if (id < 0)
        return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int32_t last = w.offsets[id + 1];
    int32_t at = w.offsets[id];
    for (int64_t first = 0; at < last && first < a.rows; first += 1024) {
        const int64_t row = first + threadIdx.x;
        const bool taken = row < a.rows && a.ids[row] == id;
        const unsigned found = __ballot_sync(0xffffffffu, taken);
        if (lane == 0)
            warps[warp] = __popc(found);
        __syncthreads();
        int32_t before = at;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            before += i < warp ? warps[i] : 0;
            at += warps[i];
        }
        if (taken)
            w.sorted[before + __popc(found & ((1u << lane) - 1))] = (int32_t)row;
        __syncthreads();
    }
}

#define SUM_LANES 8
#define SUM_PARTS 32

/* Of a frequent id's rows each part of the block sums every SUM_PARTS-th, then the parts are summed in pairs. */
template <int DY, int V>
__global__ void __launch_bounds__(SUM_LANES *SUM_PARTS) sum_frequent(const embedding_args a, lists w)
{
    __shared__ float sums[SUM_PARTS][SUM_LANES * V];
    const int32_t id = frequent_id(a, w, w.sorted);
    if (id < 0)
        return;
    const int lane = threadIdx.x % SUM_LANES, part = threadIdx.x / SUM_LANES;
    const int64_t column = (blockIdx.y * (int64_t)SUM_LANES + lane) * V;
    const int32_t last = w.offsets[id + 1];
    floats<V> sum;
#pragma unroll
    for (int j = 0; j < V; j++)
        sum.v[j] = 0;
#pragma unroll 4
    for (int32_t i = w.offsets[id] + part; i < last && column < a.columns; i += SUM_PARTS) {
        floats<V> dy = load<DY, V>(a.dy, (int64_t)w.sorted[i] * a.columns + column);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum.v[j] += dy.v[j];
    }
    for (int half = SUM_PARTS / 2; half > 0; half /= 2) {
        if (part >= half && part < 2 * half)
#pragma unroll
            for (int j = 0; j < V; j++)
                sums[part][lane * V + j] = sum.v[j];
        __syncthreads();
        if (part < half)
#pragma unroll
            for (int j = 0; j < V; j++)
                sum.v[j] += sums[part + half][lane * V + j];
    }
    if (part == 0 && column < a.columns)
        store_or_add<DYNAMIC, V>(a.d_table, (int64_t)id * a.columns + column, sum, a.add_table);
}

/* A block stands at one place of the sorted rows, and works only where an id that is not frequent begins. */
template <int DY, int V> __global__ void __launch_bounds__(64) embedding_backward(const embedding_args a, lists w)
{
    const int64_t column = (blockIdx.y * 64ll + threadIdx.x) * V;
    const int32_t first = (int32_t)blockIdx.x;
    if (column >= a.columns || first >= w.offsets[a.vocabulary])
        return;
    const int32_t id = a.ids[w.sorted[first]];
    if (w.offsets[id] != first)
        return;
    const int32_t last = w.offsets[id + 1];
    if (last - first > FREQUENT)
        return;
    floats<V> sum;
#pragma unroll
    for (int j = 0; j < V; j++)
        sum.v[j] = 0;
#pragma unroll 4
    for (int32_t i = first; i < last; i++) {
        floats<V> dy = load<DY, V>(a.dy, (int64_t)w.sorted[i] * a.columns + column);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum.v[j] += dy.v[j];
    }
    store_or_add<DYNAMIC, V>(a.d_table, (int64_t)id * a.columns + column, sum, a.add_table);
}

template <int DY, int V> static void start_sums(const launch *l, const embedding_args *a, const lists &w)
{
    const dim3 each((unsigned)a->rows, (unsigned)launch_ceil(a->columns, 64 * V));
    const dim3 often((unsigned)launch_ceil(a->rows, FREQUENT), (unsigned)launch_ceil(a->columns, SUM_LANES * V));
    embedding_backward<DY, V><<<each, 64, 0, l->stream>>>(*a, w);
    if (a->rows > FREQUENT)
        sum_frequent<DY, V><<<often, SUM_LANES * SUM_PARTS, 0, l->stream>>>(*a, w);
}

extern "C" cudaError_t launch_embedding_backward(const launch *l, const embedding_args *a)
{
    if (a->vocabulary == 0 || a->columns == 0)
        return cudaSuccess;
    const lists w = make_lists(a);
    const unsigned blocks = (unsigned)launch_ceil(a->rows, THREADS);
    cudaError_t error = cudaMemsetAsync(w.counts, 0, (size_t)a->vocabulary * sizeof(int32_t), l->stream);
    if (error == cudaSuccess && !a->add_table) /* most rows have no id: cleared at full speed */
        error = cudaMemsetAsync(
            a->d_table.p, 0, (size_t)(a->vocabulary * a->columns) * (a->d_table.dtype == FSDP_F32 ? 4 : 2), l->stream);
    if (error != cudaSuccess)
        return error;
    if (blocks == 0)
        return cudaSuccess;
    count_ids<<<blocks, THREADS, 0, l->stream>>>(*a, w);
    scan_counts<<<1, 1024, 0, l->stream>>>(a->vocabulary, w);
    place_rows<<<blocks, THREADS, 0, l->stream>>>(*a, w);
    order_rows<<<blocks, THREADS, 0, l->stream>>>(*a, w);
    if (a->rows > FREQUENT)
        order_frequent<<<(unsigned)launch_ceil(a->rows, FREQUENT), 1024, 0, l->stream>>>(*a, w);
    const bool vectors = a->columns % 8 == 0 && is_aligned(a->dy) && is_aligned(a->d_table);
#define CALL(D, V) start_sums<D, V>(l, a, w)
    DISPATCH((int)a->dy.dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}
