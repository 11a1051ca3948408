/* Drawing cases, their data, and comparing what came out of them. */
#include "differential/support_case.h"
#include "support/draw.h"

#include <fnmatch.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const case_wraps[] = {"block", "block", "block", "linear", "block,linear", "", NULL};
const char *const case_freezing[] = {"", "blocks.0.*", "embed.*", "*.norm.weight", "blocks.1.up.*", "head.*", NULL};

int draw(uint64_t *state, int n)
{
    return (int)(draw_mixed(state) % (uint64_t)n);
}

bool chance(uint64_t *state, int percent)
{
    return draw(state, 100) < percent;
}

static float draw_float(uint64_t *state)
{
    return (float)(draw_mixed(state) >> 40) * 0x1p-23f - 1; /* [-1, 1) */
}

/* ---- Drawing ---- */

static int length_of(const char *const *list)
{
    int n = 0;
    while (list[n])
        n++;
    return n;
}

/* Sizes of the first dimension are where tails of vector loops and uneven shards show. */
static void draw_net(test_case *c, uint64_t *s)
{
    static const int hiddens[] = {3, 5, 8, 12}, inners[] = {4, 7, 9, 20};
    bool wide = chance(s, 8); /* inputs of blocks large enough to wait in host memory */
    c->hidden = wide ? MAX_HIDDEN : hiddens[draw(s, 4)];
    c->inner = inners[draw(s, 4)];
    c->vocabulary = 5 + draw(s, 19);
    c->n_blocks = 1 + draw(s, MAX_BLOCKS);
    for (int i = 0; i < MAX_BLOCKS; i++)
        c->kinds[i] = (block_kind)draw(s, BLOCK_KINDS);
    c->layernorm = chance(s, 30);
    c->bias = chance(s, 50);
    c->tied = chance(s, 50);
    c->features = chance(s, 40);
    c->fused_loss = chance(s, 40);
    c->dropout = chance(s, 15) ? 0.2f : 0;
}

/* Blocks in 8 bits: widths that have such products. Draws of their own, so that other cases stay what they were. */
static void draw_fp8(test_case *c)
{
    uint64_t s = c->seed * 0x9e3779b97f4a7c15u + 3;
    c->fp8 = chance(&s, 12);
    if (!c->fp8)
        return;
    c->hidden = chance(&s, 50) ? MAX_HIDDEN : 16;
    c->inner = chance(&s, 50) ? 48 : 16;
}

static const char *const optimizers[] = {"adamw", "adam", "sgd", "muon", "adafactor", NULL}; /* as their enum */

bool case_stays_on_device(const test_case *c)
{
    return c->optimizer == FSDP_MUON || c->optimizer == FSDP_ADAFACTOR;
}

static void draw_numbers(test_case *c, uint64_t *s)
{
    c->wrap = draw(s, length_of(case_wraps));
    c->frozen = chance(s, 30) ? draw(s, length_of(case_freezing)) : 0;
    c->param_dtype = chance(s, 25) ? (chance(s, 70) ? FSDP_BF16 : FSDP_F16) : FSDP_F32;
    c->reduce_dtype = chance(s, 15) ? FSDP_BF16 : FSDP_F32;
    if (c->param_dtype != FSDP_F32 && c->hidden < 8)
        c->hidden = 8; /* the norm of a few rounded numbers can be anything */
    c->sync = chance(s, 55);
    c->decay_vectors = chance(s, 20);
    c->weighted = chance(s, 10);
    c->bucket_bytes = chance(s, 15) ? 1500 : 0;
    c->optimizer = (fsdp_optimizer_kind)draw(s, length_of(optimizers));
    c->weight_decay = chance(s, 50) ? 0.1f : 0;
    c->momentum = chance(s, 50) ? 0.9f : 0;
    c->clip = chance(s, 50) ? 0.3f : 0;
}

/* Numbers of 16 bits, a loss scale that may be too large, what optimizers do by name and beside the weights, shadow
 * steps. Draws of their own, too. */
static void draw_more_numbers(test_case *c)
{
    static const fsdp_dtype reductions[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    uint64_t s = c->seed * 0x9e3779b97f4a7c15u + 7;
    bool plain = c->optimizer == FSDP_MUON || c->optimizer == FSDP_ADAFACTOR;
    if (!plain && chance(&s, 25))
        c->state_dtype = FSDP_BF16;
    if (!plain && chance(&s, 12))
        c->gradient_dtype = c->reduce_dtype = FSDP_BF16;
    else if (chance(&s, 20))
        c->reduce_dtype = reductions[draw(&s, 3)];
    if (c->reduce_dtype != FSDP_F32 && c->hidden < 8)
        c->hidden = 8;
    c->loss_scale = chance(&s, 30) ? 0x1p24f : 64; /* overflows in fp16 */
    c->average = chance(&s, 15) ? 0.9f : 0;
    c->grouped = c->frozen == 0 && chance(&s, 15);
}

static void draw_more_steps(test_case *c)
{
    static const float bounds[] = {1e-9f, 0.02f, 0.04f, 1e9f}, factors[] = {1e-30f, 0.5f, 3};
    uint64_t s = c->seed * 0x9e3779b97f4a7c15u + 11;
    for (int i = 0; i < c->n_steps; i++) {
        case_step *t = &c->steps[i];
        bool all_have_data = true;
        if (c->gradient_dtype != FSDP_F32)
            t->n_micro = 1;
        for (int k = 0; k < t->n_micro; k++) { /* who has nothing repeats the micro-batch before, which may be gone */
            if (c->gradient_dtype != FSDP_F32)
                memset(t->micro[k].nothing, 0, sizeof t->micro[k].nothing);
            for (int r = 0; r < c->ranks && k == 0; r++)
                all_have_data &= !t->micro[k].nothing[r];
        }
        if (c->fp8 && all_have_data && chance(&s, 30))
            t->checks = bounds[draw(&s, 4)];
        if (chance(&s, 8))
            t->scales = factors[draw(&s, 3)];
        if (chance(&s, 5))
            t->lr = 0;
        for (int k = 0; k < t->n_micro; k++)
            if (t->scales == 0 && chance(&s, 6)) /* gradients of nothing cannot be asked for */
                t->micro[k].work.silent = chance(&s, 50) ? ~0u : 1u << draw(&s, c->ranks);
        t->averaged = c->average > 0 && chance(&s, 70);
    }
}

bool case_has_idle_ranks(const test_case *c)
{
    for (int i = 0; i < c->n_steps; i++)
        for (int k = 0; k < c->steps[i].n_micro; k++)
            for (int rank = 0; rank < c->ranks; rank++)
                if (c->steps[i].micro[k].nothing[rank])
                    return true;
    return false;
}

bool case_has_reference(const test_case *c)
{
    bool may_overflow = c->loss_scale > 64 && c->param_dtype == FSDP_F16;
    return c->dropout == 0 && !c->fp8 && c->average == 0 && !c->grouped && !may_overflow;
}

static unsigned draw_blocks(const test_case *c, uint64_t *s)
{
    unsigned all = (1u << c->n_blocks) - 1, some = chance(s, 55) ? all : (unsigned)draw(s, (int)all + 1);
    return c->fp8 ? some | 1 : some; /* a step without any layer in 8 bits would be refused */
}

static recording draw_recording(const test_case *c, uint64_t *s)
{
    recording r = {.blocks = draw_blocks(c, s), .data = draw(s, 1 << 20)};
    bool wide = c->hidden == MAX_HIDDEN;
    int samples = wide ? 5 + draw(s, 2) : 1 + draw(s, 3), tokens = wide ? 8 : 1 + draw(s, 3);
    for (int i = 0; i < MAX_RANKS; i++) {
        bool uneven = chance(s, 20);
        r.samples[i] = uneven ? 1 + draw(s, 3) : samples;
        r.tokens[i] = uneven ? 1 + draw(s, 3) : tokens;
    }
    return r;
}

/* A recording like an earlier one is found among the programs there are: half of them are. */
static recording draw_again(const test_case *c, const recording *earlier, uint64_t *s)
{
    recording r = draw_recording(c, s);
    if (earlier && chance(s, c->recorded ? 80 : 50)) {
        int data = r.data;
        r = *earlier;
        r.data = data;
        r.poisoned = false;
    }
    return r;
}

static void draw_step(test_case *c, case_step *t, const case_micro **last, bool *has_data, uint64_t *s)
{
    t->n_micro = chance(s, 40) ? 1 : 2 + draw(s, MAX_MICRO - 1);
    for (int i = 0; i < t->n_micro; i++) {
        case_micro *m = &t->micro[i];
        m->work = draw_again(c, *last ? &(*last)->work : NULL, s);
        m->loss = chance(s, 70) ? 0 : 1;
        m->work.poisoned = c->features && chance(s, 4);
        m->before = chance(s, 25) ? (chance(s, 50) ? LOOK_TRAINING : LOOK_EVALUATION) : LOOK_NONE;
        m->seen = m->before == LOOK_TRAINING ? m->work : draw_again(c, &m->work, s);
        /* Whoever has nothing repeats the collectives of its last program: only where the others' is like that one. */
        bool like_last = *last && (*last)->work.blocks == m->work.blocks && (*last)->loss == m->loss;
        for (int r = 1; r < c->ranks; r++) {
            m->nothing[r] = like_last && has_data[r] && chance(s, 20);
            has_data[r] = true;
        }
        *last = m;
    }
    t->lr = c->optimizer == FSDP_SGD ? 0.1f : 0.02f;
    t->lr *= 0.5f + 0.25f * (float)draw(s, 4);
    t->stepped_twice = chance(s, 5);
    t->reads = chance(s, 15) ? draw(s, 4) : -1;
    t->after = chance(s, 30) ? LOOK_EVALUATION : LOOK_NONE;
    t->seen = draw_again(c, &t->micro[t->n_micro - 1].work, s);
    t->halves = chance(s, 15) ? draw(s, 4) : -1;
    t->whole = chance(s, 50);
}

test_case case_draw(uint64_t seed)
{
    int kind = (int)(seed % CASE_CLASSES);
    test_case c = {.seed = seed, .ranks = 1 + kind % MAX_RANKS, .recorded = kind >= MAX_RANKS};
    uint64_t state = seed * 0x2545f4914f6cdd1du + 1;
    const case_micro *last = NULL;
    bool has_data[MAX_RANKS] = {false};
    draw_net(&c, &state);
    draw_numbers(&c, &state);
    draw_more_numbers(&c);
    draw_fp8(&c);
    case_parameter list[MAX_PARAMETERS];
    bool any = false;
    for (int i = 0, n = case_parameters(&c, list); i < n; i++)
        any |= case_freezes(&c, list[i].name);
    if (!any)
        c.frozen = 0;                                   /* a glob that matches nothing is refused */
    c.n_steps = (c.recorded ? 4 : 2) + draw(&state, 3); /* what is recorded is launched the third time */
    for (int i = 0; i < c.n_steps; i++)
        draw_step(&c, &c.steps[i], &last, has_data, &state);
    draw_more_steps(&c);
    return c;
}

/* ---- The net's parameters and data ---- */

static void add_parameter(case_parameter *list, int *n, const char *module, const char *name, int rows, int columns)
{
    case_parameter *p = &list[(*n)++];
    snprintf(p->name, sizeof p->name, "%s.%s", module, name);
    p->n_dims = columns > 0 ? 2 : 1;
    p->shape[0] = rows;
    p->shape[1] = columns;
    p->numel = (int64_t)rows * (columns > 0 ? columns : 1);
}

int case_parameters(const test_case *c, case_parameter *out)
{
    int n = 0;
    char module[24];
    add_parameter(out, &n, "embed", "weight", c->vocabulary, c->hidden);
    for (int i = 0; i < c->n_blocks; i++) {
        int up = c->kinds[i] == BLOCK_SWIGLU ? 2 * c->inner : c->inner;
        snprintf(module, sizeof module, "blocks.%d.norm", i);
        add_parameter(out, &n, module, "weight", c->hidden, 0);
        if (c->layernorm)
            add_parameter(out, &n, module, "bias", c->hidden, 0);
        snprintf(module, sizeof module, "blocks.%d.up", i);
        add_parameter(out, &n, module, "weight", up, c->hidden);
        if (c->bias)
            add_parameter(out, &n, module, "bias", up, 0);
        snprintf(module, sizeof module, "blocks.%d.down", i);
        add_parameter(out, &n, module, "weight", c->hidden, c->inner);
        if (c->bias)
            add_parameter(out, &n, module, "bias", c->hidden, 0);
    }
    add_parameter(out, &n, "norm", "weight", c->hidden, 0);
    if (!c->tied)
        add_parameter(out, &n, "head", "weight", c->vocabulary, c->hidden);
    add_parameter(out, &n, "second", "weight", TARGETS, c->hidden);
    add_parameter(out, &n, "second", "bias", TARGETS, 0);
    return n;
}

bool case_freezes(const test_case *c, const char *name)
{
    return fnmatch(case_freezing[c->frozen], name, 0) == 0;
}

void case_fill(const test_case *c, const recording *r, int rank, case_data *out)
{
    uint64_t s = c->seed * 31 + (uint64_t)r->data * 7 + (uint64_t)rank;
    out->rows = r->samples[rank] * r->tokens[rank];
    for (int i = 0; i < out->rows; i++) {
        out->ids[i] = draw(&s, c->vocabulary);
        out->labels[i] = i > 0 && chance(&s, 20) ? IGNORED : draw(&s, c->vocabulary);
        if (r->silent >> rank & 1)
            out->labels[i] = IGNORED;
        for (int k = 0; k < c->hidden; k++)
            out->features[i * c->hidden + k] = draw_float(&s);
        for (int k = 0; k < TARGETS; k++)
            out->targets[i * TARGETS + k] = draw_float(&s);
    }
    if (r->poisoned && rank == 0)
        out->features[0] = NAN;
}

/* ---- Printing ---- */

static void print_recording(const test_case *c, const recording *r)
{
    printf("blocks ");
    for (int i = 0; i < c->n_blocks; i++)
        putchar(r->blocks >> i & 1 ? '0' + i : '-');
    for (int i = 0; i < c->ranks; i++)
        printf(" %dx%d", r->samples[i], r->tokens[i]);
    printf("%s", r->poisoned ? " with NaN" : "");
    for (int i = 0; i < c->ranks; i++)
        if (r->silent >> i & 1)
            printf(", no labels on rank %d", i);
}

void case_print(const test_case *c)
{
    static const char *const kinds[] = {"gelu", "silu", "relu", "swiglu"};
    printf("seed %llu: %d rank%s%s; hidden %d, inner %d, vocabulary %d, blocks", (unsigned long long)c->seed, c->ranks,
           c->ranks > 1 ? "s" : "", c->recorded ? ", recorded" : "", c->hidden, c->inner, c->vocabulary);
    for (int i = 0; i < c->n_blocks; i++)
        printf(" %s", kinds[c->kinds[i]]);
    printf("%s%s%s%s%s%s", c->fp8 ? ", 8 bits" : "", c->layernorm ? ", layernorm" : "", c->bias ? ", bias" : "",
           c->tied ? ", tied" : "", c->features ? ", features" : "", c->fused_loss ? ", fused loss" : "");
    printf("; units \"%s\", freeze \"%s\", param %s, reduce %s, %s, %s lr by step, decay %g%s, momentum %g, clip %g, "
           "dropout %g, bucket %lld%s\n",
           case_wraps[c->wrap], case_freezing[c->frozen], fsdp_dtype_name(c->param_dtype),
           fsdp_dtype_name(c->reduce_dtype), c->sync ? "sync each micro-batch" : "no sync before the last",
           optimizers[c->optimizer], (double)c->weight_decay, c->decay_vectors ? " (vectors too)" : "",
           (double)c->momentum, (double)c->clip, (double)c->dropout, (long long)c->bucket_bytes,
           c->weighted ? ", unequal shards" : "");
    printf("  moments %s, gradients %s, average %g, loss scale %g%s\n", fsdp_dtype_name(c->state_dtype),
           fsdp_dtype_name(c->gradient_dtype), (double)c->average, (double)c->loss_scale,
           c->grouped ? ", rates by name" : "");
    for (int i = 0; i < c->n_steps; i++) {
        const case_step *t = &c->steps[i];
        printf("  step %d, lr %g:", i, (double)t->lr);
        if (t->checks > 0)
            printf(" [shadow step, bound %g]", (double)t->checks);
        for (int k = 0; k < t->n_micro; k++) {
            const case_micro *m = &t->micro[k];
            if (m->before != LOOK_NONE) {
                printf(" [evaluate %s: ", m->before == LOOK_TRAINING ? "the training recording" : "in evaluation mode");
                print_recording(c, &m->seen);
                printf("]");
            }
            printf(" (");
            print_recording(c, &m->work);
            printf(", loss %d", m->loss);
            for (int r = 0; r < c->ranks; r++)
                if (m->nothing[r])
                    printf(", rank %d nothing", r);
            printf(")");
        }
        if (t->scales != 0)
            printf(" [gradients of norms times %g]", (double)t->scales);
        printf("%s", t->stepped_twice ? " [a second step is refused]" : "");
        if (t->reads >= 0)
            printf(" [read parameter %d]", t->reads);
        if (t->halves >= 0)
            printf(" [halve parameter %d%s]", t->halves, t->whole ? " in its whole unit" : "");
        if (t->after != LOOK_NONE) {
            printf(" [evaluate%s: ", t->averaged ? " the average" : "");
            print_recording(c, &t->seen);
            printf("]");
        }
        printf("\n");
    }
}

/* ---- Outcomes ---- */

void outcome_add(outcome *o, entry e)
{
    if (o->n == o->capacity) {
        o->capacity = o->capacity ? 2 * o->capacity : 1024;
        o->list = realloc(o->list, (size_t)o->capacity * sizeof *o->list);
        if (!o->list)
            abort();
    }
    o->list[o->n++] = e;
}

void outcome_clear(outcome *o)
{
    o->n = 0;
    o->followed = INT_MAX;
}

void outcome_free(outcome *o)
{
    free(o->list);
    *o = (outcome){.list = NULL};
}

void entry_describe(const test_case *c, const entry *e, char *text, size_t bytes)
{
    static const char *const names[] = {"loss", "norm", "count", "skipping", "norm before", "errors in 8 bits before"};
    case_parameter list[MAX_PARAMETERS];
    case_parameters(c, list);
    if (e->kind <= ENTRY_CHECK)
        snprintf(text, bytes, "%s of step %d", names[e->kind], e->step);
    else if (e->kind == ENTRY_SEEN)
        snprintf(text, bytes, "number %lld of the evaluation %s micro-batch %d of step %d", (long long)e->at,
                 e->which < 0 ? "behind" : "before", e->which < 0 ? c->steps[e->step].n_micro - 1 : e->which, e->step);
    else if (e->kind == ENTRY_FIRST)
        snprintf(text, bytes, "%s[%lld] before training", list[e->which].name, (long long)e->at);
    else
        snprintf(text, bytes, "%s[%lld] after step %d", list[e->which].name, (long long)e->at,
                 e->step < c->n_steps ? e->step : c->n_steps - 1);
}

const char *outcome_differs(const test_case *c, const outcome *a, const outcome *b, char *text, size_t bytes)
{
    char what[128];
    for (int i = 0; i < a->n && i < b->n; i++) {
        double x = a->list[i].value, y = b->list[i].value;
        if (memcmp(&x, &y, sizeof x) == 0 || (isnan(x) && isnan(y)))
            continue;
        entry_describe(c, &a->list[i], what, sizeof what);
        snprintf(text, bytes, "%s: %.9g, not %.9g", what, y, x);
        return text;
    }
    if (a->n == b->n)
        return NULL;
    snprintf(text, bytes, "%d numbers, not %d", b->n, a->n);
    return text;
}
