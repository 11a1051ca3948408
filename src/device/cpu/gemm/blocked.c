/* The blocked product: loops, threads and memory around a kernel's tile. What a tile computes is the kernel's business
 * (kernel.h).
 *
 * A super-block of op(a) and one of op(b) are packed into panels by all threads together; then the threads take blocks
 * of the result from a counter. Packing is time in which nothing is multiplied, so as little as possible is packed:
 * rows of op(a) that are contiguous in k stay in place, and an operand with many blocks is streamed: whoever takes one
 * of its blocks packs it into his second-level cache and multiplies it with all of the other operand. Where few blocks
 * need the same columns of op(b), and these lie side by side, each thread has panels of its own: the first row of tiles
 * reads op(b) where it lies and leaves a copy for the rows below. A block's sums stay in the second-level cache in fp32
 * over the whole depth, are passed over once per k_step with a panel of op(a) in the first-level cache, and are scaled,
 * converted and stored at the end. Where one pass is all and storing would only copy them, tiles write their sums into
 * the result.
 * An element of the result is summed in the order of k by one thread, in steps that depend on the kernel alone: its
 * bits do not depend on blocks, super-blocks, chunks or threads. */
#include "device/cpu/gemm/blocked.h"

#include <omp.h>

#include "base/checked.h"
#include "device/cpu/gemm/blocked_plan.h"
#include "device/cpu/parallel.h"

enum { PACK_BAND = 32 }; /* of k, read at a time; a multiple of every k_unit */

/* One thread's view of the product it works on. */
typedef struct worker {
    const gemm_kernel *kernel;
    const gemm_args *args;
    const block_plan *plan;
    int rank, team;
    int64_t *next; /* two counters of blocks taken, used in turn; shared by the team */
    unsigned phase;
    char *a_panels, *b_panels, *sums;
    const char *copied; /* the rows of op(b) that its own panels have a copy of */
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
    rows_at a;      /* its rows of op(a) in place, from the chunk's start on; NULL: packed */
    rows_at source; /* its columns of op(b) in place, likewise, a row for each k; NULL: packed */
    rows_at d;      /* its rows of the result, into which whole tiles write; NULL: into sums */
} block;

/* Where a block's element (0, 0) lies in the result. */
typedef struct place {
    int64_t index, row, column; /* product of the batch, row and column of d */
} place;

static rows_at result_rows(const gemm_args *g, const place *at, int64_t i, int64_t j)
{
    return rows_of(&g->d, at->index * g->stride_d + (at->row + i) * g->ldd + at->column + j, g->ldd);
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
    const char *source; /* its rows of op(b) in place; NULL: packed */
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
                        .b_share = depth_bytes * kernel->tile_columns / ceil_div(b->rows, kernel->tile_rows),
                        .source = b->source.p ? b->source.p + k * b->source.step : NULL};
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

/* The first tile's columns of op(b) in a block; with `copy`, they are yet to be copied. */
static gemm_columns first_columns(const worker *w, const block *b, const block_pass *p, bool copy)
{
    gemm_columns columns = {.panel = p->source ? w->b_panels : panel_at(w, true, p, b->column, p->k)};
    if (copy) {
        columns.rows = p->source;
        columns.stride = b->source.step;
        columns.ahead = w->plan->copy_ahead * b->source.step;
    }
    return columns;
}

/* What row number `row` of a block's tiles fetches of op(b): a share of the next pass's panel; or of the rows that the
 * next pass copies, a line of every fetch_step-th part, for which the row that copies has no time. */
static void plan_columns_ahead(const worker *w, const block *b, const block_pass *p, int64_t row, gemm_ahead *ahead)
{
    const gemm_kernel *kernel = w->kernel;
    if (!p->source) {
        ahead->b = panel_at(w, true, p, b->column, p->next_k) + row * p->b_share;
        ahead->b_step = ceil_div(p->b_share, max_i64(1, p->depth / kernel->k_unit));
        return;
    }
    int64_t part = (row - 1) % kernel->fetch_step, line = (row - 1) / kernel->fetch_step * 64;
    bool all_fetched = line >= kernel->tile_columns * (int64_t)kernel->element_bytes, stays = p->next_k == p->k;
    ahead->b = w->b_panels;
    if (row == 0 || all_fetched || stays)
        return;
    ahead->b = b->source.p + (p->next_k + part * p->depth / kernel->fetch_step) * b->source.step + line;
    ahead->b_step = b->source.step / kernel->fetch_step;
}

/* What the row of tiles at i fetches of op(a): of panels the next one, of which each tile brings a share; of rows in
 * place the next ones, as the processor, which fetches along a row by itself, does not know where the next begins. */
static gemm_ahead plan_ahead(const worker *w, const block *b, const block_pass *p, int64_t i, int64_t row,
                             const rows_at *a)
{
    const gemm_kernel *kernel = w->kernel;
    int64_t units = max_i64(1, p->depth / kernel->k_unit), n_tiles = ceil_div(b->columns, kernel->tile_columns);
    bool last = i + kernel->tile_rows >= b->rows;
    gemm_ahead ahead = {.a = NULL};
    plan_columns_ahead(w, b, p, row, &ahead);
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
static void sum_row(worker *w, const block *b, const block_pass *p, int64_t i, int64_t row, int rows, bool add,
                    const place *finish)
{
    const gemm_kernel *kernel = w->kernel;
    int64_t across = kernel->tile_columns, row_bytes = across * (int64_t)kernel->element_bytes;
    int64_t panel_bytes = (p->source ? p->depth : p->packed) * row_bytes;
    bool copy = i == 0 && p->source && p->source != w->copied;
    rows_at a = tile_rows_at(w, b, p, i, p->k), sums = tile_sums_at(w, b, i, rows);
    gemm_columns columns = first_columns(w, b, p, copy);
    gemm_ahead ahead = plan_ahead(w, b, p, i, row, &a);
    for (int64_t j = 0; j < b->columns; j += across) {
        columns.valid = (int)min_i64(across, b->columns - j);
        kernel->tile(p->depth, a.p, a.step, &columns, &ahead, (float *)sums.p + j, sums.step / (int64_t)sizeof(float),
                     rows, add);
        columns.panel = (char *)columns.panel + panel_bytes;
        columns.rows += copy ? row_bytes : 0;
        ahead.a += a.step ? ahead.a_rows * a.step : p->a_share;
        ahead.b += p->source ? row_bytes : panel_bytes;
    }
    if (copy)
        w->copied = p->source;
    if (finish && !sums_in_result(w, b, rows))
        store_rows(w, b, finish, i, rows);
}

/* Adds the packed chunk's part to a block's sums; with a place (the last chunk), stores each row of tiles there as soon
 * as it is finished, so that memory takes the result in while the next tiles are computed. */
static void block_sum(worker *w, const block *b, int64_t depth, bool add, const place *at)
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
static void compute_block(worker *w, const super_block *s, int64_t index, int64_t down, int64_t across, int64_t i)
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
    if (p->copy_ahead)
        b.source = rows_of(&g->b, index * g->stride_b + s->k * g->ldb + at.column, g->ldb);
    if (p->in_place)
        b.a = rows_of(&g->a, index * g->stride_a + at.row * g->lda + s->k, g->lda);
    block_sum(w, &b, s->depth, s->k > 0, s->k + s->depth >= g->k ? &at : NULL);
}

/* Packs block i of the streamed operand and multiplies it with all of the other. */
static void compute_piece(worker *w, const super_block *s, int64_t index, int64_t i)
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

/* What the team packs together: rows of op(a) that are neither in place nor streamed, columns of op(b) that are neither
 * copied nor streamed. */
static void pack_super_block(const worker *w, const super_block *s, int64_t index, bool with_a, bool with_b)
{
    const block_plan *p = w->plan;
    int64_t whole = p->in_place ? s->rows - s->rows % w->kernel->tile_rows : 0;
    panel_range a = {s->row + whole, s->rows - whole, s->k, s->depth}, b = {s->column, s->columns, s->k, s->depth};
    if (with_a && p->streamed != STREAM_A)
        pack_panels(w, false, index, a, w->rank, w->team);
    if (with_b && p->streamed != STREAM_B && !p->copy_ahead)
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
    if (plan->streamed == STREAM_B || plan->copy_ahead)
        w.b_panels += plan->b_bytes / (size_t)plan->team * (size_t)w.rank;
    for (int64_t i = args->batch * team_index / n_teams; i < args->batch * (team_index + 1) / n_teams; i++)
        compute_product(&w, i);
}

size_t gemm_blocked_workspace(const gemm_kernel *kernel, int max_threads, const gemm_args *args)
{
    block_division d = divide_blocked(max_threads, args);
    return blocked_bytes(kernel, args, d) * (size_t)(d.threads / d.team);
}

void gemm_blocked(const gemm_kernel *kernel, int max_threads, const gemm_args *args)
{
    block_division d = divide_blocked(max_threads, args);
    int pool = (int)min_i64(max_threads, omp_get_max_threads());
    job j = {.kernel = kernel, .args = args, .plan = plan_blocked(kernel, args, d)};
    j.as_team = d.team > 1;
    parallel_team(pool, (int)min_i64(pool, d.threads), work, &j);
}
