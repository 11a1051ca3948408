/* X' = Q X with Q = a + b A + c A A and A = X X^T, five times, from X of norm 1. Everything that multiplies X from the
 * left is a polynomial of the first A, so X itself is needed only for A and at the end: A' = Q A Q, and X' = R X with R
 * the product of all Q. These products are squares of X's smaller side, and symmetric, so half of each is enough
 * (device/kernels.h). A tall X is transposed first.
 *
 * In bf16 A has an error that is small beside its largest eigenvalue, not beside its smallest, which it can turn
 * negative. Q A Q makes such an eigenvalue grow twelvefold a step, and after five steps nothing else is left. So the
 * steps are cut into legs: at the end of each X' is computed, and A from it anew. With legs of 2, 1 and 2 steps the
 * result is as near to the exact one as that of the usual form, in which every step computes A from X; with 3 and 2 it
 * is not, where singular values fall slowly. Small matrices take legs of one step: their products cost nothing, and one
 * eigenvalue that is off is a larger part of them (squares of 2 to 6: a mean error of 0.015 instead of 0.023). */
#include "optim/orthogonal.h"

#include "base/checked.h"

enum { SMALL = 16, SQUARES = 4, GROUP_BYTES = 384 << 20 };

/* An odd number of legs: the last writes into out. */
typedef struct plan {
    int n_legs, steps_of_leg[5];
} plan;

static const plan plan_of_small = {5, {1, 1, 1, 1, 1}}, plan_of_others = {3, {2, 1, 2}};

static const float a = 3.4445f, b = -4.7750f, c = 2.0315f; /* steepest at 0 of those that keep [0, 1] near 1 */

/* One matrix and its part of the workspace. */
typedef struct matrix {
    orthogonal_item given;
    int64_t small, large;
    uint16_t *x;                /* (small, large) */
    uint16_t *gram, *q, *r, *t; /* (small, small) */
    double *squares;            /* one, and what it is summed from */
} matrix;

typedef struct group {
    device *dev;
    stream *s;
    const plan *plan;
    matrix items[ORTHOGONAL_ITEMS];
    int n;
    void *of_products; /* what the products want */
    size_t bytes;
} group;

static uint8_t *take(uint8_t *base, size_t *at, size_t bytes)
{
    uint8_t *memory = base ? base + *at : NULL;
    *at += round_up(bytes, 256);
    return memory;
}

static size_t cut_item(const orthogonal_item *given, uint8_t *base, size_t at, matrix *m)
{
    int64_t numel = given->rows * given->columns;
    *m = (matrix){
        .given = *given, .small = min_i64(given->rows, given->columns), .large = max_i64(given->rows, given->columns)};
    size_t square = (size_t)(m->small * m->small) * sizeof(uint16_t);
    m->x = (void *)take(base, &at, (size_t)numel * sizeof(uint16_t));
    uint16_t **const squares[SQUARES] = {&m->gram, &m->q, &m->r, &m->t};
    for (int i = 0; i < SQUARES; i++)
        *squares[i] = (void *)take(base, &at, square);
    m->squares = (void *)take(base, &at, (1 + (size_t)ceil_div(numel, NORM_BLOCK)) * sizeof(double));
    return at;
}

int orthogonal_group(const orthogonal_item *items, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n && i < ORTHOGONAL_ITEMS; i++) {
        matrix m;
        bytes = cut_item(&items[i], NULL, bytes, &m);
        if (i > 0 && bytes > GROUP_BYTES)
            return i;
    }
    return n < ORTHOGONAL_ITEMS ? n : ORTHOGONAL_ITEMS;
}

/* ---- Products ---- */

/* left and right: of each item the operands of a symmetric product, (small, depth). */
typedef struct operands {
    const uint16_t *left, *right, *add;
    uint16_t *out;
    int64_t depth;
} operands;

typedef operands (*operands_of)(const matrix *m);

/* Of what even legs begin with, and of what odd ones do. */
static operands gram_of_x(const matrix *m)
{
    return (operands){m->x, m->x, NULL, m->gram, m->large};
}

static operands gram_of_out(const matrix *m)
{
    return (operands){m->given.out, m->given.out, NULL, m->gram, m->large};
}

static operands polynomial(const matrix *m)
{
    return (operands){m->gram, m->gram, m->gram, m->q, m->small};
}

static operands q_times_gram(const matrix *m)
{
    return (operands){m->q, m->gram, NULL, m->t, m->small};
}

static operands times_q(const matrix *m)
{
    return (operands){m->t, m->q, NULL, m->gram, m->small};
}

static operands q_times_r(const matrix *m)
{
    return (operands){m->q, m->r, NULL, m->t, m->small};
}

static symmetric_args symmetric(const group *g, operands_of of, float alpha, float beta, float gamma)
{
    symmetric_args all = {.n_items = g->n, .alpha = alpha, .beta = beta, .gamma = gamma, .workspace = g->of_products};
    for (int i = 0; i < g->n; i++) {
        operands o = of(&g->items[i]);
        all.items[i] =
            (symmetric_item){.n = g->items[i].small, .k = o.depth, .a = o.left, .b = o.right, .c = o.add, .d = o.out};
    }
    return all;
}

static fsdp_status multiply(group *g, operands_of of)
{
    symmetric_args all = symmetric(g, of, 1, 0, 0);
    return g->dev->kernels->symmetric(g->s, &all);
}

/* R X, by turns from x into out and from out into x; after the last leg out may be tall. */
static gemm_args product(const plan *p, const matrix *m, int leg)
{
    bool last = leg == p->n_legs - 1, tall = last && m->given.rows > m->given.columns;
    uint16_t *from = leg % 2 ? m->given.out : m->x, *to = leg % 2 ? m->x : m->given.out;
    buffer r = {m->r, FSDP_BF16}, x = {from, FSDP_BF16}, out = {to, FSDP_BF16};
    return (gemm_args){.transpose_a = tall, /* R is symmetric: (R X)^T = X^T R */
                       .m = tall ? m->large : m->small,
                       .n = tall ? m->small : m->large,
                       .k = m->small,
                       .alpha = 1,
                       .a = tall ? x : r,
                       .b = tall ? r : x,
                       .d = out,
                       .lda = tall ? m->large : m->small,
                       .ldb = tall ? m->small : m->large,
                       .ldc = tall ? m->small : m->large,
                       .ldd = tall ? m->small : m->large,
                       .batch = 1};
}

static void use_more(size_t *most, size_t bytes)
{
    *most = bytes > *most ? bytes : *most;
}

/* Those items that follow this plan: it is a matter of their own size, so that no neighbor changes it. */
static group that_follow(const plan *p, const group *all)
{
    group some = *all;
    some.plan = p;
    some.n = 0;
    for (int i = 0; i < all->n; i++) {
        if ((all->items[i].small <= SMALL) == (p == &plan_of_small))
            some.items[some.n++] = all->items[i];
    }
    return some;
}

static size_t products_workspace(const device *dev, const group *g)
{
    if (g->n == 0)
        return 0;
    symmetric_args grams = symmetric(g, gram_of_x, 1, 0, 0), squares = symmetric(g, polynomial, c, b, a);
    size_t most = 0;
    use_more(&most, dev->kernels->symmetric_workspace(dev, &grams));
    use_more(&most, dev->kernels->symmetric_workspace(dev, &squares));
    for (int i = 0; i < g->n; i++) {
        for (int leg = 0; leg < g->plan->n_legs; leg++) {
            gemm_args x = product(g->plan, &g->items[i], leg);
            use_more(&most, dev->kernels->gemm_workspace(dev, &x));
        }
    }
    return most;
}

static void cut(const device *dev, const orthogonal_item *items, int n, uint8_t *base, group *g)
{
    *g = (group){.n = n};
    for (int i = 0; i < n; i++)
        g->bytes = cut_item(&items[i], base, g->bytes, &g->items[i]);
    group small = that_follow(&plan_of_small, g), others = that_follow(&plan_of_others, g);
    size_t most = products_workspace(dev, &small);
    use_more(&most, products_workspace(dev, &others));
    g->of_products = take(base, &g->bytes, most);
}

size_t orthogonal_workspace(const device *dev, const orthogonal_item *items, int n)
{
    group g;
    cut(dev, items, n, NULL, &g);
    return g.bytes;
}

/* ---- The iteration ---- */

/* x = what is given / its norm, (small, large) */
static fsdp_status begin(group *g, const matrix *m)
{
    const kernel_table *k = g->dev->kernels;
    int64_t n = m->given.rows * m->given.columns;
    buffer given = {(void *)(uintptr_t)m->given.x, FSDP_BF16};
    norm_blocks_args blocks = {.n = n, .x = given, .blocks = m->squares + 1};
    sum_f64_args sum = {.n = ceil_div(n, NORM_BLOCK), .x = m->squares + 1, .out = m->squares};
    normalize_args scale = {.rows = m->given.rows,
                            .columns = m->given.columns,
                            .transpose = m->given.rows > m->given.columns,
                            .x = given,
                            .out = {m->x, FSDP_BF16},
                            .squares = m->squares,
                            .least = 1e-7f};
    FSDP_TRY(k->norm_blocks(g->s, &blocks));
    FSDP_TRY(k->sum_f64(g->s, &sum));
    return k->normalize(g->s, &scale);
}

static void swap(uint16_t **x, uint16_t **y)
{
    uint16_t *was = *x;
    *x = *y;
    *y = was;
}

/* r = the product of all Q so far. */
static fsdp_status collect(group *g, bool first)
{
    if (!first)
        FSDP_TRY(multiply(g, q_times_r));
    for (int i = 0; i < g->n; i++)
        swap(&g->items[i].r, first ? &g->items[i].q : &g->items[i].t);
    return FSDP_OK;
}

static fsdp_status run_leg(group *g, int leg)
{
    int steps = g->plan->steps_of_leg[leg];
    FSDP_TRY(multiply(g, leg % 2 ? gram_of_out : gram_of_x));
    for (int i = 0; i < steps; i++) {
        symmetric_args q = symmetric(g, polynomial, c, b, a);
        FSDP_TRY(g->dev->kernels->symmetric(g->s, &q));
        if (i + 1 < steps) {
            FSDP_TRY(multiply(g, q_times_gram));
            FSDP_TRY(multiply(g, times_q));
        }
        FSDP_TRY(collect(g, i == 0));
    }
    for (int i = 0; i < g->n; i++) {
        gemm_args x = product(g->plan, &g->items[i], leg);
        x.workspace = g->of_products;
        FSDP_TRY(g->dev->kernels->gemm(g->s, &x));
    }
    return FSDP_OK;
}

static fsdp_status follow(const plan *p, const group *all)
{
    group g = that_follow(p, all);
    for (int leg = 0; leg < p->n_legs && g.n > 0; leg++)
        FSDP_TRY(run_leg(&g, leg));
    return FSDP_OK;
}

fsdp_status orthogonalize(device *dev, stream *s, const orthogonal_item *items, int n, void *workspace)
{
    group g;
    cut(dev, items, n, workspace, &g);
    g.dev = dev;
    g.s = s;
    for (int i = 0; i < n; i++)
        FSDP_TRY(begin(&g, &g.items[i]));
    FSDP_TRY(follow(&plan_of_small, &g));
    return follow(&plan_of_others, &g);
}
