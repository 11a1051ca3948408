/* The blocked product: loops, threads and memory around a kernel's tile. What a tile computes is the kernel's business
 * (kernel.h).
 *
 * A super-block of op(a) and one of op(b) are packed into panels by all threads together; then the threads take blocks
 * of the result from a counter. Packing is time in which nothing is multiplied, so as little as possible is packed:
 * rows of op(a) that are contiguous in k stay in place, and an operand with many blocks is streamed: whoever takes one
 * of its blocks packs it into his second-level cache and multiplies it with all of the other operand. A block's sums
 * stay in the second-level cache in fp32 over the whole depth, are passed over once per k_step with a panel of op(a) in
 * the first-level cache, and are scaled, converted and stored at the end. Where one pass is all and storing would only
 * copy them, tiles write their sums into the result.
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
    CACHE_WAY = 4 << 10,     /* bytes: addresses so far apart share a line of the first-level cache */
    ROWS_ALIKE = 8,          /* so many of them fit */
    PIECE_BYTES = 768 << 10, /* of a streamed operand: what a thread packs at a time and keeps in its cache */
    PIECES_PER_THREAD = 8,   /* at least: evens out threads */
    PIECE_TILES = 4,         /* at least: fewer would read the other operand too often */
    BLOCKS_PER_THREAD = 8,   /* at least, where the result is large enough: evens out threads */
    TEAM_WORK = 1 << 18,     /* multiplications, per eight threads, below which waking them costs more than it saves */
    SOLO_WORK = 1 << 24,     /* multiplications below which a batch is shared out by whole products */
};

typedef enum streamed_operand { STREAM_NONE, STREAM_A, STREAM_B } streamed_operand;

typedef struct block_plan {
    int64_t super_rows, super_columns, chunk; /* packed at a time */
    int64_t block_rows, block_columns;
    int team;       /* threads it is for */
    int64_t n_sums; /* one per thread; with several chunks, one per block of the super-block */
    bool in_place;  /* whole tiles of rows of op(a) are read where they lie; only what is left over is packed */
    streamed_operand streamed; /* packed a block at a time by the thread that takes it; its super-block is all of it */
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

/* As many blocks of an extent as before, but equal ones: a thread that takes a small one last waits for the others. */
static int64_t even_block(int64_t extent, int64_t tile, int64_t block)
{
    int64_t n_tiles = extent / tile;
    return ceil_div(n_tiles, ceil_div(n_tiles, block / tile)) * tile;
}

/* Rows that are contiguous in k need no packing: a tile reads them side by side. Where the distance between them puts
 * too many into the same lines of the first-level cache (a page is one way of it), they push each other out. */
static bool reads_in_place(const gemm_kernel *kernel, const gemm_args *args)
{
    int64_t size = (int64_t)fsdp_dtype_size(args->a.dtype), distance = args->lda * size, alike = distance & -distance;
    return kernel->reads_rows && !args->transpose_a && size == (int64_t)kernel->element_bytes && distance > 0 &&
           args->m >= kernel->tile_rows && args->k > 0 && args->k % kernel->k_unit == 0 &&
           min_i64(alike, CACHE_WAY) * kernel->tile_rows <= CACHE_WAY * ROWS_ALIKE;
}

/* The extent of a streamed operand's pieces, at most a block; 0 where blocks do not fit or would be too few. */
static int64_t plan_pieces(int64_t extent, int64_t tile, int64_t block, int64_t fits, int team)
{
    if (block > fits)
        return 0;
    int64_t n_tiles = ceil_div(extent, tile);
    int64_t n_pieces = (int64_t)round_up((size_t)ceil_div(n_tiles, block / tile), (size_t)team);
    int64_t piece = n_tiles / n_pieces;
    return n_pieces >= (int64_t)PIECES_PER_THREAD * team && piece >= PIECE_TILES ? piece * tile : 0;
}

/* Streams the longer operand, or the other, if it has enough pieces. `fits` rows or columns fit a thread's cache. */
static void plan_streamed(const gemm_kernel *kernel, const gemm_args *args, int64_t fits, block_plan *p)
{
    int64_t rows = plan_pieces(args->m, kernel->tile_rows, kernel->block_rows, fits, p->team);
    int64_t columns = plan_pieces(args->n, kernel->tile_columns, kernel->block_columns, fits, p->team);
    if (columns && (args->n > args->m || p->in_place || !rows)) {
        p->streamed = STREAM_B, p->block_columns = columns;
        p->super_columns = (int64_t)round_up((size_t)args->n, (size_t)kernel->tile_columns);
    } else if (rows && !p->in_place) {
        p->streamed = STREAM_A, p->block_rows = rows;
        p->super_rows = (int64_t)round_up((size_t)args->m, (size_t)kernel->tile_rows);
    }
}

/* Bytes of packed panels: of a super-block, or a block's for every thread. */
static size_t plan_panels(bool streamed, int team, int64_t block, int64_t super, size_t row_bytes)
{
    size_t one = round_up((size_t)(streamed ? block : super) * row_bytes, ALIGNMENT);
    return streamed ? one * (size_t)team : one;
}

/* With everything packed by the team, or `lean`: as little as possible. */
static block_plan plan_with(const gemm_kernel *kernel, const gemm_args *args, int team, int share, bool lean)
{
    int64_t depth = (int64_t)round_up((size_t)args->k, (size_t)kernel->k_unit);
    bool chunked = depth * (int64_t)kernel->element_bytes > WHOLE_BYTES / share;
    int64_t steps = CHUNK_BYTES / share / (int64_t)kernel->element_bytes / kernel->k_step;
    int64_t longest = chunked ? max_i64(1, steps) * kernel->k_step : depth;
    block_plan p = {.team = team,
                    .chunk = max_i64(kernel->k_unit, min_i64(depth, longest))}; /* chunk: positive even when k is 0 */
    size_t row_bytes = (size_t)p.chunk * kernel->element_bytes;
    int tile_rows = kernel->tile_rows, tile_columns = kernel->tile_columns;
    p.in_place = lean && reads_in_place(kernel, args);
    /* In chunks, whatever is not packed at once is packed again for every super-block: the larger, the better. Where
     * nothing is packed, fewer super-blocks are fewer waits. */
    bool large = chunked || p.in_place;
    int64_t a_budget = large ? A_BUDGET : min_i64(A_BUDGET, (int64_t)A_PER_THREAD * (team + 1));
    int64_t b_budget = chunked ? B_CHUNK_BUDGET : B_BUDGET;
    p.super_rows = plan_extent(args->m, tile_rows, row_bytes * (size_t)tile_rows, (size_t)(a_budget / share));
    p.super_columns = plan_extent(args->n, tile_columns, row_bytes * (size_t)tile_columns, (size_t)(b_budget / share));
    p.block_rows = min_i64(kernel->block_rows, p.super_rows);
    p.block_columns = min_i64(kernel->block_columns, p.super_columns);
    if (lean && !chunked && depth > 0)
        plan_streamed(kernel, args, min_i64(PIECE_BYTES, B_BUDGET / team / share) / (int64_t)row_bytes, &p);
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
    p.block_rows = even_block(p.super_rows, tile_rows, p.block_rows);
    p.block_columns = even_block(p.super_columns, tile_columns, p.block_columns);
    p.a_bytes =
        plan_panels(p.streamed == STREAM_A, team, p.block_rows, p.in_place ? tile_rows : p.super_rows, row_bytes);
    p.b_bytes = plan_panels(p.streamed == STREAM_B, team, p.block_columns, p.super_columns, row_bytes);
    p.bytes = p.a_bytes + p.b_bytes + p.sums_bytes * (size_t)p.n_sums;
    return p;
}

/* Packing little, unless that takes more memory: workspaces are as large as packing everything asks for, which depends
 * on the sizes alone, not on how the operands lie in memory. */
static block_plan plan_blocks(const gemm_kernel *kernel, const gemm_args *args, int team, int share)
{
    block_plan packed = plan_with(kernel, args, team, share, false);
    block_plan lean = plan_with(kernel, args, team, share, true);
    return lean.bytes <= packed.bytes ? lean : packed;
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
    return plan_with(kernel, args, d.team, share, false).bytes * (size_t)share;
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

/* Rows of op(a), or columns of op(b), over depth [k, k + depth). */
typedef struct panel_range {
    int64_t first, extent, k, depth;
} panel_range;

/* Packs a range, `rank`'s share among `team`. A source that runs along the panels' width is read in bands of k, so that
 * the cache lines and pages two panels share are visited once. */
static void pack_panels(const worker *w, bool is_b, int64_t index, panel_range r, int rank, int team)
{
    const gemm_args *g = w->args;
    const gemm_kernel *kernel = w->kernel;
    bool i_contiguous = is_b ? !g->transpose_b : g->transpose_a;
    int64_t ld = is_b ? g->ldb : g->lda, width = is_b ? kernel->tile_columns : kernel->tile_rows;
    panel_source s = {.dtype = g->a.dtype, .stride_i = i_contiguous ? 1 : ld, .stride_k = i_contiguous ? ld : 1};
    const char *base = is_b ? g->b.p : g->a.p;
    int64_t batch_start = index * (is_b ? g->stride_b : g->stride_a);
    int64_t n_panels = ceil_div(r.extent, width), band = i_contiguous ? PACK_BAND : max_i64(r.depth, 1);
    size_t unit_bytes = (size_t)width * kernel->element_bytes; /* a panel's bytes per k */
    size_t panel_bytes = round_up((size_t)r.depth, (size_t)kernel->k_unit) * unit_bytes;
    for (int64_t from = 0; from < r.depth; from += band)
        for (int64_t i = n_panels * rank / team; i < n_panels * (rank + 1) / team; i++) {
            int64_t start = batch_start + (r.first + i * width) * s.stride_i + (r.k + from) * s.stride_k;
            s.p = base + (size_t)start * fsdp_dtype_size(s.dtype);
            s.count = min_i64(width, r.extent - i * width);
            s.depth = min_i64(band, r.depth - from);
            char *panel = (is_b ? w->b_panels : w->a_panels) + (size_t)i * panel_bytes + (size_t)from * unit_bytes;
            (is_b ? kernel->pack_b : kernel->pack_a)(&s, panel);
        }
}

/* A row's memory and the bytes from one row to the next; NULL where the matrix takes no part. */
typedef struct rows_at {
    char *p;
    int64_t step;
} rows_at;

static rows_at rows_of(const buffer *b, int64_t start, int64_t ld)
{
    int64_t size = (int64_t)fsdp_dtype_size(b->dtype);
    return (rows_at){(char *)b->p + start * size, ld * size};
}

/* A block of sums, (rows, columns) of it valid; its panels begin with those at `row` and `column`. */
typedef struct block {
    int64_t row, column, rows, columns;
    float *sums;
    rows_at a; /* its rows of op(a) in place, from the chunk's start on; NULL: packed */
    rows_at d; /* its rows of the result, into which whole tiles write; NULL: into sums */
} block;

/* Where a block's element (0, 0) lies in the result. */
typedef struct place {
    int64_t index, row, column; /* product of the batch, row and column of d */
} place;

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

static char *panel_at(const worker *w, bool is_b, const block_pass *p, int64_t first, int64_t k)
{
    int64_t width = is_b ? w->kernel->tile_columns : w->kernel->tile_rows;
    return (is_b ? w->b_panels : w->a_panels) + (size_t)(first * p->packed + k * width) * w->kernel->element_bytes;
}

/* Whether a row of tiles, `rows` high, has its sums in the result. */
static bool sums_in_result(const worker *w, const block *b, int rows)
{
    return b->d.p && rows == w->kernel->tile_rows;
}

static rows_at tile_sums_at(const worker *w, const block *b, int64_t i, int rows)
{
    if (sums_in_result(w, b, rows))
        return (rows_at){b->d.p + i * b->d.step, b->d.step};
    int64_t ld = w->plan->block_columns;
    return (rows_at){(char *)(b->sums + i * ld), ld * (int64_t)sizeof(float)};
}

/* A tile's rows of op(a), from row i of a block and from k on: in place, or a panel (step 0). In place, what makes no
 * whole tile is the only panel. */
static rows_at tile_rows_at(const worker *w, const block *b, const block_pass *p, int64_t i, int64_t k)
{
    if (b->a.p && i + w->kernel->tile_rows <= b->rows)
        return (rows_at){b->a.p + i * b->a.step + k * (int64_t)w->kernel->element_bytes, b->a.step};
    return (rows_at){panel_at(w, false, p, b->a.p ? 0 : b->row + i, k), 0};
}

/* What the row of tiles at i fetches of op(a): of panels the next one, of which each tile brings a share; of rows in
 * place the next ones, as the processor, which fetches along a row by itself, does not know where the next begins. */
static gemm_ahead plan_ahead(const worker *w, const block *b, const block_pass *p, int64_t i, const rows_at *a)
{
    const gemm_kernel *kernel = w->kernel;
    int64_t units = max_i64(1, p->depth / kernel->k_unit), n_tiles = ceil_div(b->columns, kernel->tile_columns);
    bool last = i + kernel->tile_rows >= b->rows;
    gemm_ahead ahead = {.b_step = ceil_div(p->b_share, units)};
    if (!a->step) {
        ahead.a = tile_rows_at(w, b, p, last ? 0 : i + kernel->tile_rows, last ? p->next_k : p->k).p;
        ahead.a_step = ceil_div(p->a_share, units);
    } else {
        bool begins_again = last && p->next_k > 0; /* otherwise the next block's rows follow this one's */
        int64_t next_k = p->next_k * (int64_t)kernel->element_bytes;
        ahead.a = begins_again ? b->a.p + next_k : a->p + kernel->tile_rows * a->step;
        ahead.a_rows = ceil_div(kernel->tile_rows, n_tiles);
    }
    return ahead;
}

/* Adds a pass's part to row `row` of a block's tiles, `rows` high, at i. A tile fetches its share of what comes next of
 * op(a), and of the next pass's panel of op(b), which the tiles of a column bring together: a burst of fetches at the
 * beginning of a pass would be waited for. */
static void sum_row(const worker *w, const block *b, const block_pass *p, int64_t i, int64_t row, int rows, bool add,
                    const place *finish)
{
    const gemm_kernel *kernel = w->kernel;
    int64_t across = kernel->tile_columns;
    rows_at a = tile_rows_at(w, b, p, i, p->k), sums = tile_sums_at(w, b, i, rows);
    gemm_ahead ahead = plan_ahead(w, b, p, i, &a);
    for (int64_t j = 0; j < b->columns; j += across) {
        ahead.b = panel_at(w, true, p, b->column + j, p->next_k) + row * p->b_share;
        if (finish)
            expect_rows(w->args, finish, i, rows, j, min_i64(across, b->columns - j));
        kernel->tile(p->depth, a.p, a.step, panel_at(w, true, p, b->column + j, p->k), &ahead, (float *)sums.p + j,
                     sums.step / (int64_t)sizeof(float), rows, add);
        ahead.a += a.step ? ahead.a_rows * a.step : p->a_share;
    }
    if (finish && !sums_in_result(w, b, rows))
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

/* Whether all that is left to do with sums is to copy them into the result, after one pass. With more passes, sums that
 * lie side by side are quicker to add to. */
static bool stores_plainly(const worker *w)
{
    const gemm_args *g = w->args;
    return g->k <= w->kernel->k_step && g->d.dtype == FSDP_F32 && g->alpha == 1.0f && g->beta == 0.0f && !g->bias.p;
}

/* Block (down, across) of the super-block, which is number `i`. */
static void compute_block(const worker *w, const super_block *s, int64_t index, int64_t down, int64_t across, int64_t i)
{
    const gemm_args *g = w->args;
    const block_plan *p = w->plan;
    int64_t row = down * p->block_rows, column = across * p->block_columns;
    place at = {index, s->row + row, s->column + column};
    block b = {.row = p->streamed == STREAM_A ? 0 : row, .column = p->streamed == STREAM_B ? 0 : column};
    b.rows = min_i64(p->block_rows, s->rows - row);
    b.columns = min_i64(p->block_columns, s->columns - column);
    b.sums = (float *)(w->sums + (size_t)(g->k > p->chunk ? i : w->rank) * p->sums_bytes);
    if (stores_plainly(w) && b.columns % w->kernel->tile_columns == 0)
        b.d = result_rows(g, &at, 0, 0);
    if (p->in_place)
        b.a = rows_of(&g->a, index * g->stride_a + at.row * g->lda + s->k, g->lda);
    block_sum(w, &b, s->depth, s->k > 0, s->k + s->depth >= g->k ? &at : NULL);
}

/* Packs block i of the streamed operand and multiplies it with all of the other. */
static void compute_piece(const worker *w, const super_block *s, int64_t index, int64_t i)
{
    const block_plan *p = w->plan;
    bool is_b = p->streamed == STREAM_B;
    int64_t width = is_b ? p->block_columns : p->block_rows, extent = is_b ? s->columns : s->rows;
    panel_range range = {(is_b ? s->column : s->row) + i * width, min_i64(width, extent - i * width), s->k, s->depth};
    int64_t n = is_b ? ceil_div(s->rows, p->block_rows) : ceil_div(s->columns, p->block_columns);
    pack_panels(w, is_b, index, range, 0, 1);
    for (int64_t other = 0; other < n; other++)
        compute_block(w, s, index, is_b ? other : i, is_b ? i : other, 0);
}

static void compute_blocks(worker *w, const super_block *s, int64_t index)
{
    const block_plan *p = w->plan;
    int64_t down = ceil_div(s->rows, p->block_rows), across = ceil_div(s->columns, p->block_columns);
    int64_t *next = &w->next[w->phase & 1];
    int64_t n = p->streamed == STREAM_A ? down : p->streamed == STREAM_B ? across : down * across;
    if (w->kernel->enter)
        w->kernel->enter();
    for (;;) {
        int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= n)
            break;
        if (p->streamed != STREAM_NONE)
            compute_piece(w, s, index, i);
        else
            compute_block(w, s, index, i % down, i / down, i);
    }
    if (w->kernel->leave)
        w->kernel->leave();
}

/* What the team packs together: rows of op(a) that are neither in place nor streamed, columns of op(b) that are not. */
static void pack_super_block(const worker *w, const super_block *s, int64_t index, bool with_a, bool with_b)
{
    const block_plan *p = w->plan;
    int64_t whole = p->in_place ? s->rows - s->rows % w->kernel->tile_rows : 0;
    panel_range a = {s->row + whole, s->rows - whole, s->k, s->depth}, b = {s->column, s->columns, s->k, s->depth};
    if (with_a && p->streamed != STREAM_A)
        pack_panels(w, false, index, a, w->rank, w->team);
    if (with_b && p->streamed != STREAM_B)
        pack_panels(w, true, index, b, w->rank, w->team);
}

/* Product `index` of the batch, by the whole team. */
static void compute_product(worker *w, int64_t index)
{
    const gemm_args *g = w->args;
    const block_plan *p = w->plan;
    int64_t packed_row = -1, packed_column = -1, packed_k = -1;
    for (int64_t column = 0; column < g->n; column += p->super_columns)
        for (int64_t row = 0; row < g->m; row += p->super_rows)
            for (int64_t k = 0; k == 0 || k < g->k; k += p->chunk) {
                super_block s = {.row = row, .column = column, .k = k, .depth = min_i64(p->chunk, g->k - k)};
                s.rows = min_i64(p->super_rows, g->m - row);
                s.columns = min_i64(p->super_columns, g->n - column);
                pack_super_block(w, &s, index, row != packed_row || k != packed_k,
                                 column != packed_column || k != packed_k);
                packed_row = row, packed_column = column, packed_k = k;
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
    if (plan->streamed == STREAM_A)
        w.a_panels += plan->a_bytes / (size_t)plan->team * (size_t)w.rank;
    if (plan->streamed == STREAM_B)
        w.b_panels += plan->b_bytes / (size_t)plan->team * (size_t)w.rank;
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
