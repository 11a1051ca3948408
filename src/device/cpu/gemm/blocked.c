/* The blocked product: loops, threads and memory around a kernel's tile. What a tile computes is the kernel's business
 * (kernel.h).
 *
 * A super-block of op(a) and one of op(b) are packed into panels by all threads together; then the threads take blocks
 * of the result from a counter. A block's sums stay in the second-level cache in fp32 over the whole depth, are passed
 * over once per k_step with a panel of op(a) in the first-level cache, and are scaled, converted and stored at the end.
 * An element of the result is summed in the order of k by one thread, in steps that depend on the kernel alone: its
 * bits do not depend on blocks, super-blocks, chunks or threads. */
#include "device/cpu/gemm/blocked.h"

#include <omp.h>

#include "base/checked.h"
#include "device/cpu/parallel.h"

enum {
    A_PER_THREAD = 2 << 20,   /* bytes of packed op(a) that stay in the cache the cores share until they are used */
    A_BUDGET = 24 << 20,      /* and at most, all threads together */
    B_BUDGET = 16 << 20,      /* bytes of packed op(b) */
    B_CHUNK_BUDGET = 8 << 20, /* the same with chunks, where sums take room too */
    SUMS_BUDGET = 16 << 20,   /* bytes of sums */
    WHOLE_BYTES = 32 << 10,   /* a row's packed depth up to which it is packed whole, so that sums are visited once */
    CHUNK_BYTES = 8 << 10,    /* beyond, it goes through in chunks of this, with the sums of all blocks kept */
    PACK_BAND = 32,           /* a multiple of every k_unit */
    ALIGNMENT = 256,
    BLOCKS_PER_THREAD = 4, /* at least, where the result is large enough: evens out threads */
    TEAM_WORK = 1 << 18,   /* multiplications, per eight threads, below which waking them costs more than it saves */
    SOLO_WORK = 1 << 24,   /* multiplications below which a batch is shared out by whole products */
};

typedef struct block_plan {
    int64_t super_rows, super_columns, chunk; /* packed at a time */
    int64_t block_rows, block_columns;
    int64_t n_sums; /* one per thread; with several chunks, one per block of the super-block */
    size_t a_bytes, b_bytes, sums_bytes, bytes;
} block_plan;

/* The super-block's extent along one side: all of it, or equal parts that fit the budget. */
static int64_t plan_extent(int64_t extent, int64_t tile, size_t tile_bytes, size_t budget)
{
    int64_t n_tiles = ceil_div(extent, tile), fits = max_i64(1, (int64_t)(budget / tile_bytes));
    return ceil_div(n_tiles, ceil_div(n_tiles, fits)) * tile;
}

static int64_t halve(int64_t extent, int64_t tile)
{
    return max_i64(1, extent / tile / 2) * tile;
}

static block_plan plan_blocks(const gemm_kernel *kernel, const gemm_args *args, int team, int share)
{
    int64_t depth = (int64_t)round_up((size_t)args->k, (size_t)kernel->k_unit);
    bool chunked = depth * (int64_t)kernel->element_bytes > WHOLE_BYTES / share;
    int64_t steps = CHUNK_BYTES / share / (int64_t)kernel->element_bytes / kernel->k_step;
    int64_t longest = chunked ? max_i64(1, steps) * kernel->k_step : depth;
    block_plan p = {.chunk = max_i64(kernel->k_unit, min_i64(depth, longest))}; /* positive even when k is 0 */
    size_t row_bytes = (size_t)p.chunk * kernel->element_bytes;
    int tile_rows = kernel->tile_rows, tile_columns = kernel->tile_columns;
    /* In chunks, whatever is not packed at once is packed again for every super-block: the larger, the better. */
    int64_t a_budget = chunked ? A_BUDGET : min_i64(A_BUDGET, (int64_t)A_PER_THREAD * (team + 1));
    int64_t b_budget = chunked ? B_CHUNK_BUDGET : B_BUDGET;
    p.super_rows = plan_extent(args->m, tile_rows, row_bytes * (size_t)tile_rows, (size_t)(a_budget / share));
    p.super_columns = plan_extent(args->n, tile_columns, row_bytes * (size_t)tile_columns, (size_t)(b_budget / share));
    p.block_rows = min_i64(kernel->block_rows, p.super_rows);
    p.block_columns = min_i64(kernel->block_columns, p.super_columns);
    for (;;) {
        int64_t n_blocks = ceil_div(p.super_rows, p.block_rows) * ceil_div(p.super_columns, p.block_columns);
        p.n_sums = p.chunk < depth ? n_blocks : team;
        p.sums_bytes = round_up((size_t)(p.block_rows * p.block_columns) * sizeof(float), ALIGNMENT);
        bool too_few = team > 1 && n_blocks < (int64_t)BLOCKS_PER_THREAD * team;
        bool too_large = p.n_sums == team && p.sums_bytes * (size_t)team > (size_t)(SUMS_BUDGET / share);
        bool rows_halve = p.block_rows >= 4 * tile_rows, columns_halve = p.block_columns >= 4 * tile_columns;
        if (!(too_few || too_large) || !(rows_halve || columns_halve))
            break;
        if (columns_halve && (p.block_columns > p.block_rows || !rows_halve))
            p.block_columns = halve(p.block_columns, tile_columns);
        else
            p.block_rows = halve(p.block_rows, tile_rows);
    }
    p.a_bytes = round_up((size_t)p.super_rows * row_bytes, ALIGNMENT);
    p.b_bytes = round_up((size_t)p.super_columns * row_bytes, ALIGNMENT);
    p.bytes = p.a_bytes + p.b_bytes + p.sums_bytes * (size_t)p.n_sums;
    return p;
}

/* How the threads share the work: all of them as one `team` on each product, or each alone on products of its own. */
typedef struct division {
    int threads, team;
} division;

static division divide(int max_threads, const gemm_args *args)
{
    double work = (double)args->m * (double)args->n * (double)max_i64(args->k, 1);
    if (max_threads == 1 || work * (double)args->batch < TEAM_WORK * (double)max_i64(1, max_threads / 8))
        return (division){1, 1};
    if (args->batch > 1 && work < SOLO_WORK)
        return (division){(int)min_i64(max_threads, args->batch), 1};
    return (division){max_threads, max_threads};
}

size_t gemm_blocked_workspace(const gemm_kernel *kernel, int max_threads, const gemm_args *args)
{
    division d = divide(max_threads, args);
    int share = d.threads / d.team;
    return plan_blocks(kernel, args, d.team, share).bytes * (size_t)share;
}

/* One thread's view of the product it works on. */
typedef struct worker {
    const gemm_kernel *kernel;
    const gemm_args *args;
    const block_plan *plan;
    int rank, team;
    int64_t *next; /* two counters of blocks taken, used in turn; shared by the team */
    unsigned phase;
    char *a_panels, *b_panels, *sums;
} worker;

static void worker_wait(const worker *w)
{
    if (w->team > 1) {
#pragma omp barrier
    }
}

/* Packs `extent` rows of op(a) from `first` on (or columns of op(b)), over depth [k, k + depth). A source that runs
 * along the panels' width is read in bands of k, so that the cache lines and pages two panels share are visited once.
 */
static void pack_panels(const worker *w, bool is_b, int64_t index, int64_t first, int64_t extent, int64_t k,
                        int64_t depth)
{
    const gemm_args *g = w->args;
    const gemm_kernel *kernel = w->kernel;
    bool i_contiguous = is_b ? !g->transpose_b : g->transpose_a;
    int64_t ld = is_b ? g->ldb : g->lda, width = is_b ? kernel->tile_columns : kernel->tile_rows;
    panel_source s = {.dtype = g->a.dtype, .stride_i = i_contiguous ? 1 : ld, .stride_k = i_contiguous ? ld : 1};
    const char *base = is_b ? g->b.p : g->a.p;
    int64_t batch_start = index * (is_b ? g->stride_b : g->stride_a);
    int64_t n_panels = ceil_div(extent, width), band = i_contiguous ? PACK_BAND : max_i64(depth, 1);
    size_t unit_bytes = (size_t)width * kernel->element_bytes; /* a panel's bytes per k */
    size_t panel_bytes = round_up((size_t)depth, (size_t)kernel->k_unit) * unit_bytes;
    for (int64_t from = 0; from < depth; from += band)
        for (int64_t i = n_panels * w->rank / w->team; i < n_panels * (w->rank + 1) / w->team; i++) {
            int64_t start = batch_start + (first + i * width) * s.stride_i + (k + from) * s.stride_k;
            s.p = base + (size_t)start * fsdp_dtype_size(s.dtype);
            s.count = min_i64(width, extent - i * width);
            s.depth = min_i64(band, depth - from);
            char *panel = (is_b ? w->b_panels : w->a_panels) + (size_t)i * panel_bytes + (size_t)from * unit_bytes;
            (is_b ? kernel->pack_b : kernel->pack_a)(&s, panel);
        }
}

/* A block of sums, (rows, columns) of it valid, at (row, column) of the super-block. */
typedef struct block {
    int64_t row, column, rows, columns;
    float *sums;
} block;

/* Where a block's element (0, 0) lies in the result. */
typedef struct place {
    int64_t index, row, column; /* product of the batch, row and column of d */
} place;

/* A result row's memory and the bytes from one row to the next; NULL where the matrix takes no part. */
typedef struct rows_at {
    char *p;
    int64_t step;
} rows_at;

static rows_at rows_of(const buffer *b, int64_t start, int64_t ld)
{
    int64_t size = (int64_t)fsdp_dtype_size(b->dtype);
    return (rows_at){(char *)b->p + start * size, ld * size};
}

static rows_at result_rows(const gemm_args *g, const place *at, int64_t i, int64_t j)
{
    return rows_of(&g->d, at->index * g->stride_d + (at->row + i) * g->ldd + at->column + j, g->ldd);
}

/* Fetches the lines that a finished tile is about to be stored to. */
static void expect_rows(const gemm_args *g, const place *at, int64_t i, int64_t rows, int64_t j, int64_t columns)
{
    rows_at to = result_rows(g, at, i, j);
    int64_t bytes = columns * (int64_t)fsdp_dtype_size(g->d.dtype);
    for (; rows > 0; rows--, to.p += to.step)
        for (int64_t line = 0; line < bytes; line += 64)
            __builtin_prefetch(to.p + line, 1);
}

/* Scales and stores rows i .. i + rows - 1 of a block's sums. */
static void store_rows(const worker *w, const block *b, const place *at, int64_t i, int64_t rows)
{
    const gemm_args *g = w->args;
    result_row r = {.alpha = g->alpha, .beta = g->beta, .d_dtype = g->d.dtype, .c_dtype = g->c.dtype};
    rows_at d = result_rows(g, at, i, 0), c = {NULL, 0};
    if (g->beta != 0.0f)
        c = rows_of(&g->c, at->index * g->stride_c + (at->row + i) * g->ldc + at->column, g->ldc);
    if (g->bias.p) {
        r.bias = rows_of(&g->bias, at->column, 0).p;
        r.bias_dtype = g->bias.dtype;
    }
    for (; rows > 0; rows--, i++) {
        r.sum = b->sums + i * w->plan->block_columns;
        r.d = d.p;
        r.c = c.p;
        w->kernel->store(&r, b->columns);
        d.p += d.step;
        if (c.p)
            c.p += c.step;
    }
}

/* One pass over a block's tiles: the packed depth [k, k + depth) of a chunk, where the pass after it starts, and what
 * each tile fetches of the panels to come, in bytes. */
typedef struct block_pass {
    int64_t packed, k, depth, next_k;
    int64_t a_share, b_share;
} block_pass;

static block_pass plan_pass(const gemm_kernel *kernel, const block *b, int64_t packed, int64_t k)
{
    int64_t depth = min_i64(kernel->k_step, packed - k), next_k = k + depth < packed ? k + depth : 0;
    int64_t depth_bytes = depth * (int64_t)kernel->element_bytes;
    return (block_pass){.packed = packed,
                        .k = k,
                        .depth = depth,
                        .next_k = next_k,
                        .a_share = depth_bytes * kernel->tile_rows / ceil_div(b->columns, kernel->tile_columns),
                        .b_share = depth_bytes * kernel->tile_columns / ceil_div(b->rows, kernel->tile_rows)};
}

static const char *panel_at(const worker *w, bool is_b, const block_pass *p, int64_t first, int64_t k)
{
    int64_t width = is_b ? w->kernel->tile_columns : w->kernel->tile_rows;
    return (is_b ? w->b_panels : w->a_panels) + (size_t)(first * p->packed + k * width) * w->kernel->element_bytes;
}

/* Adds a pass's part to row `row` of a block's tiles, `rows` high, at i. A tile fetches its share of the next panel of
 * op(a), which the tiles of a row bring together, and of the next pass's panel of op(b), which those of a column do: a
 * burst of fetches at the beginning of a pass would be waited for. */
static void sum_row(const worker *w, const block *b, const block_pass *p, int64_t i, int64_t row, int rows, bool add,
                    const place *finish)
{
    const gemm_kernel *kernel = w->kernel;
    int64_t across = kernel->tile_columns, units = max_i64(1, p->depth / kernel->k_unit), ld = w->plan->block_columns;
    const char *a = panel_at(w, false, p, b->row + i, p->k);
    bool last = i + kernel->tile_rows >= b->rows;
    gemm_ahead ahead = {.a_step = ceil_div(p->a_share, units), .b_step = ceil_div(p->b_share, units)};
    ahead.a = panel_at(w, false, p, last ? b->row : b->row + i + kernel->tile_rows, last ? p->next_k : p->k);
    for (int64_t j = 0; j < b->columns; j += across, ahead.a += p->a_share) {
        ahead.b = panel_at(w, true, p, b->column + j, p->next_k) + row * p->b_share;
        if (finish)
            expect_rows(w->args, finish, i, rows, j, min_i64(across, b->columns - j));
        kernel->tile(p->depth, a, panel_at(w, true, p, b->column + j, p->k), &ahead, b->sums + i * ld + j, ld, rows,
                     add);
    }
    if (finish)
        store_rows(w, b, finish, i, rows);
}

/* Adds the packed chunk's part to a block's sums; with a place (the last chunk), stores each row of tiles there as soon
 * as it is finished, so that memory takes the result in while the next tiles are computed. */
static void block_sum(const worker *w, const block *b, int64_t depth, bool add, const place *at)
{
    const gemm_kernel *kernel = w->kernel;
    int64_t packed = (int64_t)round_up((size_t)depth, (size_t)kernel->k_unit);
    for (int64_t k = 0; k == 0 || k < packed; k += kernel->k_step) {
        block_pass p = plan_pass(kernel, b, packed, k);
        const place *finish = p.next_k == 0 ? at : NULL;
        int64_t row = 0;
        for (int64_t i = 0; i < b->rows; i += kernel->tile_rows, row++)
            sum_row(w, b, &p, i, row, (int)min_i64(kernel->tile_rows, b->rows - i), add || k > 0, finish);
    }
}

/* The range [row, row + rows) x [column, column + columns) of the result and the chunk [k, k + depth). */
typedef struct super_block {
    int64_t row, rows, column, columns, k, depth;
} super_block;

static void compute_blocks(worker *w, const super_block *s, int64_t index)
{
    const block_plan *p = w->plan;
    int64_t down = ceil_div(s->rows, p->block_rows), across = ceil_div(s->columns, p->block_columns);
    int64_t *next = &w->next[w->phase & 1];
    bool chunked = w->args->k > p->chunk, last = s->k + s->depth >= w->args->k;
    if (w->kernel->enter)
        w->kernel->enter();
    for (;;) {
        int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= down * across)
            break;
        block b = {.row = i % down * p->block_rows, .column = i / down * p->block_columns};
        b.rows = min_i64(p->block_rows, s->rows - b.row);
        b.columns = min_i64(p->block_columns, s->columns - b.column);
        b.sums = (float *)(w->sums + (size_t)(chunked ? i : w->rank) * p->sums_bytes);
        place at = {index, s->row + b.row, s->column + b.column};
        block_sum(w, &b, s->depth, s->k > 0, last ? &at : NULL);
    }
    if (w->kernel->leave)
        w->kernel->leave();
}

/* Product `index` of the batch, by the whole team. */
static void compute_product(worker *w, int64_t index)
{
    const gemm_args *g = w->args;
    const block_plan *p = w->plan;
    int64_t packed_row = -1, packed_column = -1, packed_k[2] = {-1, -1};
    for (int64_t column = 0; column < g->n; column += p->super_columns)
        for (int64_t row = 0; row < g->m; row += p->super_rows)
            for (int64_t k = 0; k == 0 || k < g->k; k += p->chunk) {
                super_block s = {.row = row, .column = column, .k = k, .depth = min_i64(p->chunk, g->k - k)};
                s.rows = min_i64(p->super_rows, g->m - row);
                s.columns = min_i64(p->super_columns, g->n - column);
                if (row != packed_row || k != packed_k[0])
                    pack_panels(w, false, index, row, s.rows, k, s.depth);
                if (column != packed_column || k != packed_k[1])
                    pack_panels(w, true, index, column, s.columns, k, s.depth);
                packed_row = row, packed_column = column, packed_k[0] = packed_k[1] = k;
                if (w->rank == 0)
                    w->next[(w->phase + 1) & 1] = 0;
                worker_wait(w); /* panels are complete, the next phase's counter is clear */
                compute_blocks(w, &s, index);
                worker_wait(w); /* nobody reads the panels any more */
                w->phase++;
            }
}

/* What all threads have in common. */
typedef struct job {
    const gemm_kernel *kernel;
    const gemm_args *args;
    block_plan plan;
    bool as_team;
    int64_t next[2];
} job;

static void work(void *context, int thread, int n_threads)
{
    job *j = context;
    const gemm_args *args = j->args;
    const block_plan *plan = &j->plan;
    int64_t own[2] = {0, 0};
    int team = j->as_team ? n_threads : 1, team_index = thread / team, n_teams = n_threads / team;
    worker w = {.kernel = j->kernel, .args = args, .plan = plan, .rank = thread % team, .team = team};
    w.next = team > 1 ? j->next : own;
    w.a_panels = (char *)args->workspace + (size_t)team_index * plan->bytes;
    w.b_panels = w.a_panels + plan->a_bytes;
    w.sums = w.b_panels + plan->b_bytes;
    for (int64_t i = args->batch * team_index / n_teams; i < args->batch * (team_index + 1) / n_teams; i++)
        compute_product(&w, i);
}

void gemm_blocked(const gemm_kernel *kernel, int max_threads, const gemm_args *args)
{
    division d = divide(max_threads, args);
    int pool = (int)min_i64(max_threads, omp_get_max_threads());
    job j = {.kernel = kernel, .args = args, .plan = plan_blocks(kernel, args, d.team, d.threads / d.team)};
    j.as_team = d.team > 1;
    parallel_team(pool, (int)min_i64(pool, d.threads), work, &j);
}
