#include "device/cpu/gemm/blocked_plan.h"

#include "base/checked.h"

enum {
    A_PER_THREAD = 2 << 20,   /* bytes of packed op(a) that stay in the cache the cores share until they are used */
    A_BUDGET = 24 << 20,      /* and at most, all threads together */
    B_BUDGET = 16 << 20,      /* bytes of packed op(b) */
    B_CHUNK_BUDGET = 8 << 20, /* the same with chunks, where sums take room too */
    SUMS_BUDGET = 16 << 20,   /* bytes of sums */
    WHOLE_BYTES = 24 << 10,   /* a row's packed depth up to which it is packed whole, so that sums are visited once */
    CHUNK_BYTES = 8 << 10,    /* beyond, it goes through in chunks of this, with the sums of all blocks kept */
    COPIED_CHUNK_BYTES = 16 << 10, /* the same where nothing of op(b) is packed */
    ALIGNMENT = 256,
    CACHE_WAY = 4 << 10,     /* bytes: addresses so far apart share a line of the first-level cache */
    ROWS_ALIKE = 8,          /* so many of them fit */
    PIECE_BYTES = 768 << 10, /* of a streamed operand: what a thread packs at a time and keeps in its cache */
    PIECES_PER_THREAD = 8,   /* at least: evens out threads */
    PIECE_TILES = 4,         /* at least: fewer would read the other operand too often */
    COPIED_BLOCKS = 4,       /* at most, one below the other, each of which copies the same columns */
    COPY_AHEAD = 16,         /* rows of op(b) fetched before they are copied, if so many fit the first-level cache */
    BLOCKS_PER_THREAD = 8,   /* at least, where the result is large enough: evens out threads */
    TEAM_WORK = 1 << 18,     /* multiplications, per eight threads, below which waking them costs more than it saves */
    SOLO_WORK = 1 << 24,     /* multiplications below which a batch is shared out by whole products */
};

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

/* How many of rows so far apart fit the first-level cache side by side. Where the distance puts them into the same
 * lines of it (a page is one way), they push each other out. */
static int64_t rows_that_fit(int64_t distance)
{
    return CACHE_WAY * ROWS_ALIKE / min_i64(distance & -distance, CACHE_WAY);
}

/* Rows that are contiguous in k need no packing: a tile reads them side by side. */
static bool reads_in_place(const gemm_kernel *kernel, const gemm_args *args)
{
    int64_t size = (int64_t)fsdp_dtype_size(args->a.dtype), distance = args->lda * size;
    return kernel->reads_rows && !args->transpose_a && size == (int64_t)kernel->element_bytes && distance > 0 &&
           args->m >= kernel->tile_rows && args->k > 0 && args->k % kernel->k_unit == 0 &&
           rows_that_fit(distance) >= kernel->tile_rows;
}

/* Copying costs a block some of the time of its first row of tiles. Of one pass, the copy serves the thread's next
 * blocks, too. */
static bool copies_columns(const gemm_kernel *kernel, const gemm_args *args)
{
    bool few_copies = args->k <= kernel->k_step || args->m <= (int64_t)COPIED_BLOCKS * kernel->block_rows;
    return kernel->copies_columns && !args->transpose_b && fsdp_dtype_size(args->b.dtype) == kernel->element_bytes &&
           args->ldb > 0 && args->k > 0 && few_copies;
}

/* The extent of a streamed operand's pieces, at most a block; 0 where blocks do not fit or would be too few. With
 * `shrink`, pieces may be smaller than blocks to be enough. */
static int64_t plan_pieces(int64_t extent, int64_t tile, int64_t block, int64_t fits, int team, bool shrink)
{
    if (block > fits)
        return 0;
    int64_t n_tiles = ceil_div(extent, tile), n_blocks = ceil_div(n_tiles, block / tile);
    int64_t enough = (int64_t)PIECES_PER_THREAD * team;
    int64_t n_pieces = (int64_t)round_up((size_t)(shrink ? max_i64(n_blocks, enough) : n_blocks), (size_t)team);
    int64_t piece = n_tiles / n_pieces;
    return n_pieces >= enough && piece >= PIECE_TILES ? piece * tile : 0;
}

/* Streams the longer operand, or the other, if it has enough pieces. `fits` rows or columns fit a thread's cache. Small
 * pieces of op(b) pay where the team packs nothing besides. Streaming op(a) is better than copying op(b) anew for each
 * of its pieces, copying better than streaming op(b). */
static void plan_streamed(const gemm_kernel *kernel, const gemm_args *args, int64_t fits, block_plan *p)
{
    int64_t rows = plan_pieces(args->m, kernel->tile_rows, kernel->block_rows, fits, p->team, false);
    int64_t columns = plan_pieces(args->n, kernel->tile_columns, kernel->block_columns, fits, p->team, p->in_place);
    bool prefers_columns = columns && (args->n > args->m || p->in_place || !rows);
    if (rows && !p->in_place && !prefers_columns) {
        p->streamed = STREAM_A, p->block_rows = rows, p->copy_ahead = 0;
        p->super_rows = (int64_t)round_up((size_t)args->m, (size_t)kernel->tile_rows);
    } else if (prefers_columns && !p->copy_ahead) {
        p->streamed = STREAM_B, p->block_columns = columns;
        p->super_columns = (int64_t)round_up((size_t)args->n, (size_t)kernel->tile_columns);
    }
}

/* Smaller blocks until there are enough for the threads and their sums fit; then equal ones. */
static void plan_block_size(const gemm_kernel *kernel, int64_t depth, int share, block_plan *p)
{
    int tile_rows = kernel->tile_rows, tile_columns = kernel->tile_columns, team = p->team;
    for (;;) {
        int64_t n_blocks = ceil_div(p->super_rows, p->block_rows) * ceil_div(p->super_columns, p->block_columns);
        p->n_sums = p->chunk < depth ? n_blocks : team;
        p->sums_bytes = round_up((size_t)(p->block_rows * p->block_columns) * sizeof(float), ALIGNMENT);
        bool too_few = team > 1 && n_blocks < (int64_t)BLOCKS_PER_THREAD * team;
        bool too_large = p->n_sums == team && p->sums_bytes * (size_t)team > (size_t)(SUMS_BUDGET / share);
        bool rows_halve = p->block_rows >= 4 * tile_rows, columns_halve = p->block_columns >= 4 * tile_columns;
        if (!(too_few || too_large) || !(rows_halve || columns_halve))
            break;
        if (columns_halve && (p->block_columns > p->block_rows || !rows_halve))
            p->block_columns = halve(p->block_columns, tile_columns);
        else
            p->block_rows = halve(p->block_rows, tile_rows);
    }
    p->block_rows = even_block(p->super_rows, tile_rows, p->block_rows);
    p->block_columns = even_block(p->super_columns, tile_columns, p->block_columns);
}

/* Bytes of packed panels: the team's, or as many for every thread. */
static size_t plan_panels(int64_t extent, size_t row_bytes, bool for_each, int team)
{
    size_t one = round_up((size_t)extent * row_bytes, ALIGNMENT);
    return for_each ? one * (size_t)team : one;
}

static void plan_bytes(const gemm_kernel *kernel, block_plan *p)
{
    size_t row_bytes = (size_t)p->chunk * kernel->element_bytes;
    size_t pass_bytes = (size_t)min_i64(p->chunk, kernel->k_step) * kernel->element_bytes;
    bool own_a = p->streamed == STREAM_A, own_b = p->streamed == STREAM_B || p->copy_ahead;
    int64_t a_packed = p->in_place ? kernel->tile_rows : p->super_rows;
    p->a_bytes = plan_panels(own_a ? p->block_rows : a_packed, row_bytes, own_a, p->team);
    p->b_bytes = plan_panels(own_b ? p->block_columns : p->super_columns, p->copy_ahead ? pass_bytes : row_bytes, own_b,
                             p->team);
    p->bytes = p->a_bytes + p->b_bytes + p->sums_bytes * (size_t)p->n_sums;
}

/* How little is packed. Less of it may take more memory: every thread has panels of its own then. */
typedef enum packing { PACK_ALL, PACK_LESS, PACK_LEAST } packing;

static block_plan plan_with(const gemm_kernel *kernel, const gemm_args *args, block_division d, packing how)
{
    int64_t depth = (int64_t)round_up((size_t)args->k, (size_t)kernel->k_unit), size = (int64_t)kernel->element_bytes;
    int share = d.threads / d.team, tile_rows = kernel->tile_rows, tile_columns = kernel->tile_columns;
    bool chunked = depth * size > WHOLE_BYTES / share;
    block_plan p = {.team = d.team, .in_place = how >= PACK_LESS && reads_in_place(kernel, args)};
    if (how == PACK_LEAST && copies_columns(kernel, args))
        p.copy_ahead = (int)min_i64(COPY_AHEAD, rows_that_fit(args->ldb * size));

    int64_t steps = (p.copy_ahead ? COPIED_CHUNK_BYTES : CHUNK_BYTES) / share / size / kernel->k_step;
    int64_t longest = chunked ? max_i64(1, steps) * kernel->k_step : depth;
    p.chunk = max_i64(kernel->k_unit, min_i64(depth, longest)); /* positive even when k is 0 */

    /* In chunks, whatever is not packed at once is packed again for every super-block: the larger, the better. Where
     * nothing is packed, fewer super-blocks are fewer waits. */
    int64_t row_bytes = p.chunk * size;
    bool large = chunked || p.in_place;
    int64_t a_budget = large ? A_BUDGET : min_i64(A_BUDGET, (int64_t)A_PER_THREAD * (d.team + 1));
    int64_t b_budget = chunked && !p.copy_ahead ? B_CHUNK_BUDGET : B_BUDGET;
    p.super_rows = plan_extent(args->m, tile_rows, (size_t)(row_bytes * tile_rows), (size_t)(a_budget / share));
    p.super_columns =
        plan_extent(args->n, tile_columns, (size_t)(row_bytes * tile_columns), (size_t)(b_budget / share));
    p.block_rows = min_i64(kernel->block_rows, p.super_rows);
    p.block_columns = min_i64(kernel->block_columns, p.super_columns);
    if (how >= PACK_LESS && !chunked && depth > 0)
        plan_streamed(kernel, args, min_i64(PIECE_BYTES, B_BUDGET / d.team / share) / row_bytes, &p);
    if (p.copy_ahead && !chunked) {
        p.super_columns = (int64_t)round_up((size_t)args->n, (size_t)tile_columns);
        p.block_columns = min_i64(kernel->block_columns, p.super_columns);
    }
    plan_block_size(kernel, depth, share, &p);
    plan_bytes(kernel, &p);
    return p;
}

size_t blocked_bytes(const gemm_kernel *kernel, const gemm_args *args, block_division d)
{
    return plan_with(kernel, args, d, PACK_ALL).bytes;
}

block_plan plan_blocked(const gemm_kernel *kernel, const gemm_args *args, block_division d)
{
    size_t bytes = blocked_bytes(kernel, args, d);
    block_plan least = plan_with(kernel, args, d, PACK_LEAST), less = plan_with(kernel, args, d, PACK_LESS);
    return least.bytes <= bytes ? least : less.bytes <= bytes ? less : plan_with(kernel, args, d, PACK_ALL);
}

block_division divide_blocked(int max_threads, const gemm_args *args)
{
    double work = (double)args->m * (double)args->n * (double)max_i64(args->k, 1);
    if (max_threads == 1 || work * (double)args->batch < TEAM_WORK * (double)max_i64(1, max_threads / 8))
        return (block_division){1, 1};
    if (args->batch > 1 && work < SOLO_WORK)
        return (block_division){(int)min_i64(max_threads, args->batch), 1};
    return (block_division){max_threads, max_threads};
}
