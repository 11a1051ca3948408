/* Symmetric products of bf16 matrices on Hopper: d = alpha a b^T + beta c + gamma I, of which only tiles that reach
 * below the diagonal are computed; each is written twice, as it is and mirrored. One launch works on several products,
 * so that the last tiles of one run beside the first of the next. A block has one warpgroup that loads (the tensor copy
 * engine, four stages ahead, also across tiles) and two that multiply 64 x 256 numbers each. symmetric.c makes the
 * maps and decides what comes here. */
#include "device/cuda/gemm/symmetric.h"

#include <cuda_bf16.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#endif

enum {
    ROWS = SYMMETRIC_BOX_ROWS,   /* of a tile of d: rows, */
    COLUMNS = 2 * ROWS,          /* columns, */
    DEPTH = SYMMETRIC_BOX_DEPTH, /* and how much of k one stage holds */
    STAGES = 4,
    WORKERS = 2, /* warpgroups that multiply */
    WARPGROUP = 128,
    THREADS = (1 + WORKERS) * WARPGROUP,
    CHUNK = 64,        /* results are written in squares of this side */
    PITCH = CHUNK + 8, /* elements from one row of a square to the next in shared memory: no bank conflicts */
    A_BYTES = ROWS * DEPTH * 2,
    STAGE_BYTES = A_BYTES + COLUMNS * DEPTH * 2,
    SQUARE_BYTES = CHUNK * PITCH * 2,
    SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + WORKERS * SQUARE_BYTES + 2 * STAGES * 8,
};

#ifdef HAS_WGMMA
static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* A box of the matrix, from column `depth` and row `row` on. What lies outside reads as 0. */
static __device__ __forceinline__ void load_box(void *to, const CUtensorMap *map, uint64_t *barrier, int depth, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(depth), "r"(row)
                 : "memory");
}

/* Rows of 128 bytes, swizzled by 128 bytes; eight of them are 1024 bytes. */
static __device__ __forceinline__ uint64_t operand_of(const void *p)
{
    return (uint64_t)((shared_address(p) & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* d (64, 256) (+)= a (64, 16) b^T (256, 16) */
static __device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, p, 1, 1, 0, 0;\n}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
                   "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
                   "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
                   "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
                   "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
                   "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),
                   "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]),
                   "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]),
                   "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
                   "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]),
                   "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]),
                   "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
                   "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "l"(a), "l"(b), "r"(add));
}

/* Tile number t of the lower triangle: its rows and columns begin at row and column. */
typedef struct place {
    int item, row, column;
} place;

static __device__ __forceinline__ place find_tile(const symmetric_launch &l, int tile)
{
    place p = {0, 0, 0};
    while (tile >= l.items[p.item].tiles)
        tile -= l.items[p.item++].tiles;
    int i = 0;
    for (; tile > i / 2; i++)
        tile -= i / 2 + 1;
    p.row = i * ROWS;
    p.column = tile * COLUMNS;
    return p;
}

typedef struct ring {
    int stage;
    uint32_t phase;
} ring;

static __device__ __forceinline__ void ring_next(ring *r)
{
    if (++r->stage == STAGES) {
        r->stage = 0;
        r->phase ^= 1;
    }
}

static __device__ __forceinline__ void load_tiles(const symmetric_launch &l, uint8_t *stages, uint64_t *full,
                                                  uint64_t *empty)
{
    ring r = {0, 1}; /* the first round finds all stages empty */
    for (int tile = (int)blockIdx.x; tile < l.tiles; tile += (int)gridDim.x) {
        const place p = find_tile(l, tile);
        const symmetric_matrix *m = &l.items[p.item];
        for (int depth = 0; depth < m->k; depth += DEPTH, ring_next(&r)) {
            uint8_t *a = stages + r.stage * STAGE_BYTES, *b = a + A_BYTES;
            barrier_wait(&empty[r.stage], r.phase);
            barrier_expect(&full[r.stage], STAGE_BYTES);
            load_box(a, &l.a[p.item], &full[r.stage], depth, p.row);
            load_box(b, &l.b[p.item], &full[r.stage], depth, p.column);
            load_box(b + A_BYTES, &l.b[p.item], &full[r.stage], depth, p.column + ROWS);
        }
    }
}

/* The sums of one tile. A stage is free once the products that read it are done, which is known one stage later. */
static __device__ __forceinline__ void sum_tile(float (&d)[128], int k, const uint8_t *stages, int worker,
                                                uint64_t *full, uint64_t *empty, ring *r)
{
    int before = -1;
    for (int depth = 0; depth < k; depth += DEPTH, ring_next(r)) {
        const uint8_t *a = stages + r->stage * STAGE_BYTES;
        barrier_wait(&full[r->stage], r->phase);
        const uint64_t left = operand_of(a + worker * (A_BYTES / WORKERS)), right = operand_of(a + A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) /* 16 numbers are 32 bytes */
            multiply(d, left + 2 * i, right + 2 * i, depth > 0 || i > 0);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (before >= 0 && threadIdx.x % WARPGROUP == 0)
            barrier_arrive(&empty[before]);
        before = r->stage;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (before >= 0 && threadIdx.x % WARPGROUP == 0)
        barrier_arrive(&empty[before]);
}

static __device__ __forceinline__ void worker_barrier(int worker)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + worker), "r"((int)WARPGROUP) : "memory");
}

static __device__ __forceinline__ uint32_t pack(float x, float y)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *(const uint32_t *)&pair;
}

static __device__ __forceinline__ void store_matrices(void *to, const uint32_t (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

static __device__ __forceinline__ void store_transposed(void *to, const uint32_t (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* A square of shared memory to d, at (row, column). On the diagonal only what lies below it, or, of a mirrored square,
 * above. */
static __device__ __forceinline__ void write_square(const symmetric_matrix *m, const uint16_t *square, int row,
                                                    int column, bool mirrored)
{
    const int thread = (int)threadIdx.x % WARPGROUP, n = m->n;
    for (int i = thread / 8; i < CHUNK; i += WARPGROUP / 8) {
        const int j = thread % 8 * 8;
        if (row + i >= n || column + j >= n)
            continue;
        uint16_t *to = m->d + (int64_t)(row + i) * n + column + j;
        const uint16_t *from = square + i * PITCH + j;
        if (row != column) {
            *(uint4 *)to = *(const uint4 *)from;
            continue;
        }
        for (int e = 0; e < 8; e++)
            if (mirrored ? j + e > i : j + e <= i)
                to[e] = from[e];
    }
}

/* Scales the sums of a worker's 64 x 256 and writes them, square by square. */
static __device__ __forceinline__ void finish_tile(const symmetric_launch &l, const symmetric_matrix *m,
                                                   float (&d)[128], int row, int column, uint16_t *square, int worker)
{
    const int thread = (int)threadIdx.x % WARPGROUP, warp = thread / 32, lane = thread % 32, n = m->n;
    const int own_row = row + warp * 16 + lane / 4, own_column = column + lane % 4 * 2;
    const int matrix_row = warp * 16 + (lane / 8 & 1) * 8, matrix_column = lane / 16 * 8;
#pragma unroll
    for (int part = 0; part < COLUMNS / CHUNK; part++) {
        const int first = column + part * CHUNK;
        if (first > row || row >= n) /* above the diagonal, or outside */
            continue;
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float *v = &d[(part * 8 + j) * 4 + half * 2];
                const int r = own_row + half * 8, c = own_column + part * CHUNK + j * 8;
                v[0] *= l.alpha;
                v[1] *= l.alpha;
                if (l.beta != 0.0f && r < n && c < n) {
                    const __nv_bfloat162 was = *(const __nv_bfloat162 *)(m->c + (int64_t)r * n + c);
                    v[0] += l.beta * __low2float(was);
                    v[1] += l.beta * __high2float(was);
                }
                v[0] += r == c ? l.gamma : 0.0f;
                v[1] += r == c + 1 ? l.gamma : 0.0f;
            }
        }
#pragma unroll
        for (int mirrored = 0; mirrored < 2; mirrored++) {
            worker_barrier(worker); /* the square was read */
#pragma unroll
            for (int j = 0; j < CHUNK / 8; j += 2) {
                const float *v = &d[(part * 8 + j) * 4];
                const uint32_t x[4] = {pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])};
                if (mirrored)
                    store_transposed(square + (j * 8 + matrix_column + lane % 8) * PITCH + matrix_row, x);
                else
                    store_matrices(square + (matrix_row + lane % 8) * PITCH + j * 8 + matrix_column, x);
            }
            worker_barrier(worker);
            write_square(m, square, mirrored ? first : row, mirrored ? row : first, mirrored);
        }
    }
}

static __device__ __forceinline__ void multiply_tiles(const symmetric_launch &l, uint8_t *stages, uint16_t *square,
                                                      int worker, uint64_t *full, uint64_t *empty)
{
    float d[128];
    ring r = {0, 0};
    for (int tile = (int)blockIdx.x; tile < l.tiles; tile += (int)gridDim.x) {
        const place p = find_tile(l, tile);
        const symmetric_matrix *m = &l.items[p.item];
        sum_tile(d, m->k, stages, worker, full, empty, &r);
        finish_tile(l, m, d, p.row + worker * (ROWS / WORKERS), p.column, square, worker);
    }
}
#endif

static __global__ void __launch_bounds__(THREADS, 1) symmetric_products(const __grid_constant__ symmetric_launch l)
{
#ifdef HAS_WGMMA
    extern __shared__ uint8_t memory[];
    uint8_t *stages = memory + (1024 - shared_address(memory) % 1024) % 1024; /* what a swizzled box wants */
    uint16_t *squares = (uint16_t *)(stages + STAGES * STAGE_BYTES);
    uint64_t *full = (uint64_t *)((uint8_t *)squares + WORKERS * SQUARE_BYTES), *empty = full + STAGES;
    const int group = (int)threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], WORKERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            load_tiles(l, stages, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles(l, stages, squares + (group - 1) * (CHUNK * PITCH), group - 1, full, empty);
    }
#else
    (void)l;
#endif
}

extern "C" cudaError_t launch_symmetric(const launch *l, const symmetric_launch *products)
{
    cudaError_t error =
        cudaFuncSetAttribute(symmetric_products, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    if (error != cudaSuccess)
        return error;
    const int blocks = products->tiles < l->n_multiprocessors ? products->tiles : l->n_multiprocessors;
    symmetric_products<<<blocks, THREADS, SHARED_BYTES, l->stream>>>(*products);
    return cudaGetLastError();
}

/* What a product that was computed whole lacks: d's upper triangle becomes the lower one's mirror. */
static __global__ void mirror(int64_t n, uint16_t *d)
{
    __shared__ uint16_t tile[32][33];
    const int64_t row = blockIdx.y * 32, column = blockIdx.x * 32;
    if (column > row)
        return;
    for (int i = (int)threadIdx.y; i < 32; i += (int)blockDim.y)
        if (row + i < n && column + threadIdx.x < n)
            tile[i][threadIdx.x] = d[(row + i) * n + column + threadIdx.x];
    __syncthreads();
    for (int i = (int)threadIdx.y; i < 32; i += (int)blockDim.y) {
        const int64_t r = column + i, c = row + threadIdx.x; /* of the mirrored element */
        if (c < n && r < c)
            d[r * n + c] = tile[threadIdx.x][i];
    }
}

static __device__ __forceinline__ float value_of(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

/* A warp for each number of the diagonal, which is rounded once: gamma may cancel most of the product. */
static __global__ void diagonal(const symmetric_item x, float alpha, float beta, float gamma)
{
    const int64_t i = blockIdx.x;
    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < x.k; j += 32)
        sum += value_of(x.a[i * x.k + j]) * value_of(x.b[i * x.k + j]);
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0)
        ((__nv_bfloat16 *)x.d)[i * x.n + i] =
            __float2bfloat16_rn(alpha * sum + (beta != 0.0f ? beta * value_of(x.c[i * x.n + i]) : 0.0f) + gamma);
}

extern "C" cudaError_t launch_mirror(const launch *l, const symmetric_args *a, const symmetric_item *x)
{
    const unsigned side = (unsigned)launch_ceil(x->n, 32);
    mirror<<<dim3(side, side), dim3(32, 8), 0, l->stream>>>(x->n, x->d);
    if (a->gamma != 0.0f)
        diagonal<<<(unsigned)x->n, 32, 0, l->stream>>>(*x, a->alpha, a->beta, a->gamma);
    return cudaGetLastError();
}
