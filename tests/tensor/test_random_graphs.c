/* Random recordings, planned with everything the planner can do (operations in place, shared gradients, values computed
 * again, packed memory) against the same recordings with all of it held off. Memory that the plan holds for dead is
 * poisoned before every instruction, so that a lifetime cut short shows in the bits. Some have layers in 8 bits, whose
 * magnitudes come from the operations beside them, or from nobody. */
#include "tensor/gradient_check.h"
#include "tensor/late_copies.h"
#include "tensor/linear.h"

#define BATCH 2
#define MAX_POOL 48

typedef struct graph_options {
    bool planned; /* regions, kept values and few outputs; otherwise every value is an output and nothing shares */
    bool zero_consumers; /* every value is read once more, by what gives it a zero gradient first */
    bool smooth;         /* nothing that finite differences cannot follow */
    bool forward_only;   /* no gradients: memory is given up at once */
    bool fp8;            /* linear layers in 8 bits */
    bool apart;          /* whatever may leave or want a magnitude is read through a view: everybody measures itself */
} graph_options;

typedef struct graph_builder {
    builder *b;
    graph_options options;
    uint64_t seed, drawn;
    int64_t length, width;
    fsdp_tensor *pool[MAX_POOL];
    int n;
    bool in_region, in_no_grad;
} graph_builder;

static uint32_t draw(graph_builder *g, uint32_t below)
{
    return rng_word(rng_key_make(g->seed), 77, g->drawn++) % below;
}

/* Every fourth graph: between values there is time to be away. */
static bool many_regions(const graph_builder *g)
{
    return g->seed % 4 == 0 && !g->options.smooth;
}

static fsdp_tensor *pick(graph_builder *g)
{
    int recent = g->n < 4 ? g->n : 4; /* mostly what is new, so that graphs grow deep */
    return draw(g, 3) ? g->pool[g->n - 1 - (int)draw(g, (uint32_t)recent)] : g->pool[draw(g, (uint32_t)g->n)];
}

/* One of a few shared weights: used again and again, they are added to. */
static fsdp_tensor *matrix(graph_builder *g)
{
    return tape_parameter(g->b->t, &g->b->rig->parameters[2 + draw(g, 2)]);
}

/* Twice as many outputs as inputs. */
static fsdp_tensor *wide_matrix(graph_builder *g)
{
    return tape_parameter(g->b->t, &g->b->rig->parameters[6]);
}

static fsdp_tensor *seen(graph_builder *g, fsdp_tensor *x)
{
    return g->options.apart && x ? fsdp_reshape(g->b->t, x, x->n_dims, x->shape) : x;
}

static fsdp_tensor *vector(graph_builder *g)
{
    return tape_parameter(g->b->t, &g->b->rig->parameters[4 + draw(g, 2)]);
}

static fsdp_tensor *views(graph_builder *g, fsdp_tensor *x)
{
    fsdp_tape *t = g->b->t;
    if (x->kind != TENSOR_VALUE)
        return fsdp_add(t, x, x); /* parameters have no views */
    if (draw(g, 2))
        return fsdp_reshape(t, x, DIMS(BATCH, g->length, g->width));
    fsdp_tensor *flat = fsdp_reshape(t, x, DIMS(-1));
    if (draw(g, 2))
        flat = fsdp_scale(t, flat, 0.75f);
    return fsdp_reshape(t, flat, DIMS(BATCH, g->length, g->width));
}

static fsdp_tensor *moved(graph_builder *g, fsdp_tensor *x)
{
    fsdp_tape *t = g->b->t;
    if (draw(g, 2))
        return fsdp_transpose(t, fsdp_silu(t, fsdp_transpose(t, x, 1, 2)), 1, 2);
    int64_t cut = 1 + draw(g, (uint32_t)g->width - 1);
    fsdp_tensor *parts[] = {fsdp_slice(t, x, 2, cut, g->width - cut), fsdp_slice(t, x, 2, 0, cut)};
    return fsdp_concat(t, parts, 2, -1);
}

static fsdp_tensor *rotated(graph_builder *g, fsdp_tensor *x)
{
    bool fresh;
    float *cosine, *sine;
    fsdp_tensor *c = buffer_of(g->b, 0.8f, &cosine, &fresh, DIMS(g->length, 1)),
                *s = buffer_of(g->b, 0.6f, &sine, &fresh, DIMS(g->length, 1));
    return fsdp_rope(g->b->t, x, c, s, 2, 2, 0);
}

static fsdp_tensor *attended(graph_builder *g, fsdp_tensor *x)
{
    fsdp_tensor *k = pick(g), *v = pick(g);
    if (k == x || v == x || k == v)
        return fsdp_add(g->b->t, x, x);
    fsdp_attention_config a = {.q = {x, 0},
                               .k = {k, 0},
                               .v = {v, 0},
                               .q_heads = g->width / 2,
                               .kv_heads = g->width / 2,
                               .head_dim = 2,
                               .scale = 0.5f,
                               .causal = true};
    return fsdp_attention(g->b->t, &a);
}

static fsdp_tensor *rms(graph_builder *g, fsdp_tensor *x)
{
    return seen(g, fsdp_rmsnorm(g->b->t, x, vector(g), 0.5f));
}

static fsdp_tensor *product(graph_builder *g, fsdp_tensor *x)
{
    return seen(g, fsdp_linear(g->b->t, x, matrix(g), NULL));
}

/* What can leave the magnitude of a layer's gradient: alone, before another reader and behind one. */
static fsdp_tensor *grow_in_8_bits(graph_builder *g, fsdp_tensor *x)
{
    fsdp_tape *t = g->b->t;
    fsdp_tensor *y = product(g, fsdp_scale(t, x, 0.25f)), *first, *second;
    switch (draw(g, 7)) {
    case 0:
        return seen(g, fsdp_swiglu(t, seen(g, fsdp_linear(t, x, wide_matrix(g), NULL))));
    case 1:
        return rotated(g, y);
    case 2: /* the norm's weight has a gradient from a layer, too, of which it takes no magnitude */
        return seen(g, fsdp_rmsnorm(t, y, product(g, vector(g)), 0.5f));
    case 3:
        first = rms(g, y);
        second = fsdp_scale(t, y, 0.5f);
        break;
    case 4:
        first = fsdp_scale(t, y, 3);
        second = seen(g, fsdp_layernorm(t, y, vector(g), vector(g), 0.5f));
        break;
    case 5: /* as an adapter does */
        return rms(g, linear_add_columns(t, x, matrix(g), y, 0));
    default:
        first = rotated(g, y);
        second = rms(g, y);
        break;
    }
    return rms(g, fsdp_add(t, first, second));
}

/* The next value of the graph. Magnitudes stay near one. */
static fsdp_tensor *grow(graph_builder *g)
{
    fsdp_tape *t = g->b->t;
    fsdp_tensor *x = pick(g);
    switch (draw(g, g->options.fp8 ? 22 : 16)) {
    case 0:
        return fsdp_add(t, x, pick(g));
    case 1:
        return rms(g, fsdp_mul(t, x, pick(g)));
    case 2:
        return fsdp_scale(t, x, 0.5f);
    case 3:
        return fsdp_silu(t, x);
    case 4:
        return g->options.smooth ? fsdp_gelu(t, x) : fsdp_relu(t, x);
    case 5: /* drops by its place in the recording, and views take places */
        return g->options.fp8 ? fsdp_gelu(t, x) : fsdp_dropout(t, x, 0.25f);
    case 6:
        return rms(g, x);
    case 7:
        return seen(g, fsdp_layernorm(t, x, vector(g), vector(g), 0.5f));
    case 8:
        return rms(g, product(g, x));
    case 9:
        return seen(g, fsdp_linear_add(t, fsdp_scale(t, x, 0.25f), matrix(g), vector(g), pick(g)));
    case 10:
        return views(g, x);
    case 11:
        return moved(g, x);
    case 12:
        return rotated(g, x);
    case 13:
        return attended(g, x);
    case 14:
        return g->options.smooth ? fsdp_gelu_tanh(t, x)
                                 : fsdp_cast(t, fsdp_scale(t, fsdp_cast(t, x, FSDP_BF16), 0.5f), FSDP_F32);
    case 15: {
        fsdp_tensor *both[] = {x, pick(g)};
        return seen(g, fsdp_swiglu(t, fsdp_concat(t, both, 2, -1)));
    }
    default:
        return grow_in_8_bits(g, x);
    }
}

/* Regions and kept values are the planner's; no-grad sections change the result, so all have them. */
static void toggle(graph_builder *g)
{
    fsdp_tape *t = g->b->t;
    if (draw(g, many_regions(g) ? 2 : 5) == 0) {
        if (g->options.planned)
            (g->in_region ? fsdp_checkpoint_end : fsdp_checkpoint_begin)(t);
        g->in_region = !g->in_region;
    }
    if (draw(g, g->in_no_grad ? 2 : 14) == 0 && !g->options.smooth) {
        (g->in_no_grad ? fsdp_no_grad_end : fsdp_no_grad_begin)(t);
        g->in_no_grad = !g->in_no_grad;
    }
}

static void choose_outputs(graph_builder *g, fsdp_tensor *y)
{
    bool wanted = draw(g, 8) == 0, kept = draw(g, 6) == 0;
    if (g->options.planned && kept)
        fsdp_keep(g->b->t, y);
    if (g->options.planned && wanted)
        fsdp_output(g->b->t, y);
}

static fsdp_tensor *record_graph(graph_builder *g)
{
    builder *b = g->b;
    g->length = g->options.fp8 && g->seed % 2 ? 8 : 4; /* 16 rows, or rows that are filled up */
    g->width = g->options.fp8 ? 16 : 6;
    g->pool[g->n++] = fsdp_scale(b->t, VARIABLE(b, BATCH, g->length, g->width), 1);
    g->pool[g->n++] = VARIABLE(b, BATCH, g->length, g->width);
    for (int i = 0; i < 2; i++)
        VARIABLE(b, g->width, g->width);
    for (int i = 0; i < 2; i++)
        VARIABLE(b, g->width);
    if (g->options.fp8)
        VARIABLE(b, 2 * g->width, g->width);
    for (int i = 0; i < b->rig->n_parameters && g->options.fp8; i++)
        b->rig->parameters[i].fp8 = g->seed % 3 ? FSDP_FP8_HYBRID : FSDP_FP8_E4M3;
    if (g->options.fp8 && g->seed % 5 == 0)
        b->rig->parameters[3].trainable = false;
    b->t->recompute_cheap = draw(g, 2) && g->options.planned;
    b->t->selective = draw(g, 2);
    int wanted = 6 + (int)draw(g, many_regions(g) ? 40 : 24);
    while (g->n < wanted) {
        toggle(g);
        fsdp_tensor *y = grow(g);
        assert_ok(fsdp_tape_status(b->t));
        choose_outputs(g, y);
        g->pool[g->n++] = y;
    }
    if (g->in_region && g->options.planned)
        fsdp_checkpoint_end(b->t);
    if (g->in_no_grad)
        fsdp_no_grad_end(b->t);
    fsdp_tensor *last = fsdp_add(b->t, g->pool[0], g->pool[g->n - 1]);
    return fsdp_add(b->t, fsdp_add(b->t, last, pick(g)), pick(g));
}

static void record(graph_builder *g, rig *r, uint64_t seed, graph_options options, fsdp_tensor **root)
{
    builder *b = g->b;
    *b = (builder){.rig = r, .t = rig_tape(r)};
    *g = (graph_builder){.b = b, .options = options, .seed = seed};
    b->out = record_graph(g);
    fsdp_tensor *loss = fsdp_sum(b->t, fsdp_mul(b->t, b->out, weights_of(b, b->out->n_dims, b->out->shape)));
    int n_values = b->t->n_tensors; /* before the extra consumers */
    for (int i = 0; i < n_values && !options.planned; i++) {
        if (b->t->tensors[i]->kind == TENSOR_VALUE)
            fsdp_output(b->t, b->t->tensors[i]);
    }
    for (int i = 0; i < n_values && options.zero_consumers; i++) {
        fsdp_tensor *x = b->t->tensors[i];
        if (x->kind == TENSOR_VALUE && x->requires_grad && x->dtype == FSDP_F32 && x != loss)
            loss = fsdp_add(b->t, loss, fsdp_scale(b->t, fsdp_sum(b->t, x), 0));
    }
    *root = loss;
}

/* The memory of every tensor and workspace, as far as it is planned. */
typedef struct storage_list {
    storage *items[4096];
    int n;
    const plan *plan;
} storage_list;

static void list_storage(storage_list *list, storage *s)
{
    while (s && s->shared)
        s = s->shared;
    if (!s || s->first < 0)
        return;
    for (int i = 0; i < list->n; i++) {
        if (list->items[i] == s)
            return;
    }
    assert_true(list->n < 4096);
    list->items[list->n++] = s;
}

static void list_storages(storage_list *list, const plan *p)
{
    const fsdp_tape *t = program_tape(p->program);
    *list = (storage_list){.plan = p};
    for (int i = 0; i < t->n_tensors; i++) {
        list_storage(list, t->tensors[i]->data);
        list_storage(list, t->tensors[i]->replay);
        list_storage(list, t->tensors[i]->grad);
    }
    for (int i = 0; i < program_length(p->program); i++)
        list_storage(list, program_at(p->program, i)->workspace);
}

static void check_no_overlap(const storage_list *list)
{
    for (int i = 0; i < list->n; i++) {
        const storage *a = list->items[i];
        assert_true(a->offset + a->bytes <= list->plan->slab_bytes);
        for (int k = 0; k < i; k++) {
            const storage *b = list->items[k];
            bool together = a->first <= b->last && b->first <= a->last;
            bool overlap = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            assert_false(together && overlap);
        }
    }
}

/* Host memory that no transfer holds at `index`. */
static void poison_idle_host_memory(const plan *p, int index)
{
    uint8_t *idle = malloc(p->host_bytes + 1);
    assert_non_null(idle);
    memset(idle, 1, p->host_bytes);
    for (int i = 0; i < index; i++) {
        const instruction *step = program_at(p->program, i);
        if (step->phase == PHASE_STORE || step->phase == PHASE_FETCHED)
            memset(idle + step->moved->host_offset, step->phase == PHASE_FETCHED, step->moved->from->bytes);
    }
    for (size_t i = 0; i < p->host_bytes; i++) {
        if (idle[i])
            p->host[i] = 0xFF;
    }
    free(idle);
}

/* Before an instruction: what nothing lives in is filled with NaN, in blocks of 256 bytes. Values that a program clears
 * share blocks. */
static fsdp_status poison_the_dead(void *context, int index)
{
    const storage_list *list = context;
    poison_idle_host_memory(list->plan, index);
    size_t blocks = list->plan->slab_bytes / 256;
    uint8_t *lives = calloc(blocks + 1, 1);
    assert_non_null(lives);
    for (int i = 0; i < list->n; i++) {
        const storage *s = list->items[i];
        if (s->first < index && index <= s->last)
            memset(lives + s->offset / 256, 1, (s->offset % 256 + s->bytes + 255) / 256);
    }
    for (size_t i = 0; index > 0 && i < blocks; i++) {
        if (!lives[i])
            memset(list->plan->slab + 256 * i, 0xFF, 256);
    }
    free(lives);
    return FSDP_OK;
}

typedef struct graph_result {
    plan plan;
    fsdp_tensor *values[MAX_POOL + 1]; /* what the graph grew, and the loss */
    int n_values, n_moved;             /* values that waited in host memory */
    int n_measured;                    /* layers in 8 bits that found the magnitude of their gradient */
    float *gradients;
    int64_t n_gradients;
} graph_result;

static graph_result run_graph(rig *r, uint64_t seed, graph_options options, bool staged)
{
    static storage_list list;
    builder b;
    graph_builder g = {.b = &b};
    fsdp_tensor *root;
    graph_result out = {.n_values = 0};
    record(&g, r, seed, options, &root);
    memcpy(out.values, g.pool, (size_t)g.n * sizeof *g.pool);
    out.n_values = g.n + 1;
    out.values[g.n] = root;
    if (options.forward_only)
        fsdp_output(b.t, root);
    out.plan = rig_compile(r, b.t, options.forward_only ? NULL : root, staged);
    list_storages(&list, &out.plan);
    check_no_overlap(&list);
    for (int i = 0; i < program_length(out.plan.program); i++)
        out.n_moved += program_at(out.plan.program, i)->phase == PHASE_STORE;
    for (int i = 0; i < b.t->n_tensors; i++)
        out.n_measured += b.t->tensors[i]->grad_measured;
    memset(out.plan.slab, 0xFF, out.plan.slab_bytes);
    for (int i = 0; i < r->n_parameters; i++)
        memset(r->parameters[i].grad, 0xFF, (size_t)r->parameters[i].numel * sizeof(float));
    program_run_args arguments = rig_arguments(r, &out.plan);
    arguments.before = poison_the_dead;
    arguments.before_context = &list;
    if (r->offload_bytes > 0 && seed % 2)
        arguments.dev = late_copies(r->dev, r->transfers);
    assert_ok(program_run(out.plan.program, b.t, &arguments));
    out.gradients = rig_gradients(r, &out.n_gradients);
    return out;
}

static void free_graph(rig *r, graph_result *x)
{
    rig_free(r, &x->plan);
    free(x->gradients);
}

/* Outputs of `a` have the bits that `b` gives the same values. */
static bool same_outputs(const graph_result *a, const graph_result *b, uint64_t seed)
{
    for (int i = 0; i < a->n_values; i++) {
        const fsdp_tensor *x = a->values[i], *y = b->values[i];
        buffer p, q;
        if (!x->wanted || x->kind != TENSOR_VALUE)
            continue;
        assert_ok(program_output(a->plan.program, x, a->plan.slab, &p));
        assert_ok(program_output(b->plan.program, y, b->plan.slab, &q));
        if (memcmp(p.p, q.p, tensor_bytes(x)) != 0) {
            print_error("seed %llu: output %d has other bits\n", (unsigned long long)seed, i);
            return false;
        }
    }
    return true;
}

/* What all graphs did. */
typedef struct tally {
    int n_moved, n_measured;
} tally;

static bool same_gradients(const graph_result *a, const graph_result *plain, const char *how, uint64_t seed)
{
    if (a->n_gradients == plain->n_gradients && same_bits(a->gradients, plain->gradients, plain->n_gradients))
        return true;
    print_error("seed %llu: %s, gradients have other bits (distance %g)\n", (unsigned long long)seed, how,
                relative_distance(a->gradients, plain->gradients, plain->n_gradients));
    return false;
}

static bool compare_plans(rig *r, uint64_t seed, bool fp8, tally *all)
{
    rig_clear(r);
    graph_result plain = run_graph(r, seed, (graph_options){.fp8 = fp8, .apart = fp8}, false);
    graph_result whole = run_graph(r, seed, (graph_options){.fp8 = fp8}, false);
    graph_result zeros = run_graph(r, seed, (graph_options){.fp8 = fp8, .zero_consumers = true}, false);
    graph_result planned = run_graph(r, seed, (graph_options){.fp8 = fp8, .planned = true}, seed % 2);
    graph_result forward =
        run_graph(r, seed, (graph_options){.fp8 = fp8, .planned = true, .forward_only = true}, false);
    r->offload_bytes = 1;
    graph_result offloaded = run_graph(r, seed, (graph_options){.fp8 = fp8, .planned = true}, seed % 3 == 0);
    r->offload_bytes = 0;
    bool good = same_outputs(&planned, &whole, seed) && same_outputs(&forward, &whole, seed) &&
                same_outputs(&offloaded, &whole, seed);
    assert_int_equal(planned.n_moved, 0);
    assert_int_equal(plain.n_measured, 0);
    all->n_moved += offloaded.n_moved;
    all->n_measured += planned.n_measured;
    good &= same_gradients(&whole, &plain, "with magnitudes taken on the way", seed);
    good &= same_gradients(&offloaded, &plain, "offloaded", seed);
    good &= same_gradients(&planned, &plain, "planned", seed);
    if (all_finite(plain.gradients, plain.n_gradients) &&
        relative_distance(zeros.gradients, plain.gradients, plain.n_gradients) > 1e-5) {
        print_error("seed %llu: gradients change when a zero comes first\n", (unsigned long long)seed);
        good = false;
    }
    free_graph(r, &plain);
    free_graph(r, &whole);
    free_graph(r, &zeros);
    free_graph(r, &planned);
    free_graph(r, &forward);
    free_graph(r, &offloaded);
    return good;
}

static void planning_changes_no_bit(void **state)
{
    int bad = 0;
    tally all = {.n_moved = 0};
    for (uint64_t seed = 1; seed <= 600; seed++)
        bad += !compare_plans(*state, seed, false, &all);
    assert_int_equal(bad, 0);
    assert_true(all.n_moved > 100);
}

static void magnitudes_of_layers_in_8_bits_are_of_what_they_round(void **state)
{
    int bad = 0;
    tally all = {.n_moved = 0};
    for (uint64_t seed = 1; seed <= 200; seed++)
        bad += !compare_plans(*state, seed, true, &all);
    assert_int_equal(bad, 0);
    assert_true(all.n_measured > 100);
}

static fsdp_tensor *random_case(builder *b)
{
    graph_builder g = {.b = b, .options = {.smooth = true}, .seed = (uint64_t)b->size[0]};
    return record_graph(&g);
}

/* The references themselves: parameters that the loss depends on have the gradient that differences show. */
static void gradients_of_random_graphs_match_finite_differences(void **state)
{
    rig *r = *state;
    int bad = 0;
    for (int64_t seed = 1; seed <= 25; seed++) {
        const gradient_case c = {"random graph", random_case, {seed}};
        rig_clear(r);
        result plain = run_case(r, &c, (recording_way){.values = false});
        function f = open_function(r, &c, false);
        evaluate(&f);
        const float *gradient = plain.gradients;
        for (int i = 0; i < r->n_parameters; gradient += r->parameters[i++].numel) {
            if (!isnan(gradient[0]) && !check_parameter(&f, c.name, i, gradient)) {
                print_error("seed %lld\n", (long long)seed);
                bad++;
            }
        }
        rig_free(r, &f.plan);
        free_result(&plain);
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning_changes_no_bit),
        cmocka_unit_test(magnitudes_of_layers_in_8_bits_are_of_what_they_round),
        cmocka_unit_test(gradients_of_random_graphs_match_finite_differences),
    };
    return cmocka_run_group_tests_name("random graphs", tests, rig_setup, rig_teardown);
}
