/* In the steady state, recording a step again and running its program takes no memory from the system, on any thread.
 * Allocation functions are interposed, so what libraries do counts as well. */
#include "tensor/allocation_count.h"

#include "tensor/gradient_cases.h"

/* A small network of everything that a step is made of, on a tape that has seen it before. */
typedef struct network {
    rig rig;
    fsdp_parameter *table, *norm, *qkv, *out, *up, *down, *conv, *scale, *shift;
    float *cosine, *sine, *mean, *variance;
    int32_t ids[2 * 33], labels[2 * 33];
    float image[2 * 3 * 9 * 7];
} network;

static fsdp_tensor *record_image(network *n, fsdp_tape *t)
{
    fsdp_tensor *x = fsdp_input(t, FSDP_F32, DIMS(2, 3, 9, 7), n->image);
    x = fsdp_conv2d(t, x, tape_parameter(t, n->conv), NULL, (fsdp_window){3, 3, 1, 1, 1, 1});
    fsdp_tensor *mean = tape_buffer(t, FSDP_F32, DIMS(5), n->mean),
                *variance = tape_buffer(t, FSDP_F32, DIMS(5), n->variance);
    x = fsdp_batchnorm2d(t, x, tape_parameter(t, n->scale), tape_parameter(t, n->shift), mean, variance, 1e-5f, 0.1f);
    return fsdp_max_pool2d(t, fsdp_relu(t, x), (fsdp_window){2, 2, 2, 2, 0, 0});
}

static fsdp_tensor *record_network(network *n, fsdp_tape *t)
{
    fsdp_tensor *h = fsdp_embedding(t, fsdp_input(t, FSDP_I32, DIMS(2, 33), n->ids), tape_parameter(t, n->table));
    for (int i = 0; i < 6; i++) {
        if (i > 0)
            fsdp_checkpoint_begin(t);
        fsdp_tensor *x = fsdp_rmsnorm(t, h, tape_parameter(t, n->norm), 1e-5f);
        fsdp_tensor *c = tape_buffer(t, FSDP_F32, DIMS(33, 4), n->cosine),
                    *s = tape_buffer(t, FSDP_F32, DIMS(33, 4), n->sine);
        x = fsdp_rope(t, fsdp_linear(t, x, tape_parameter(t, n->qkv), NULL), c, s, 6, 8, 0);
        fsdp_attention_config a = {.q = {x, 0},
                                   .k = {x, 32},
                                   .v = {x, 48},
                                   .q_heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 8,
                                   .scale = 0.3f,
                                   .causal = true};
        h = fsdp_linear_add(t, fsdp_attention(t, &a), tape_parameter(t, n->out), NULL, h);
        x = fsdp_rmsnorm(t, h, tape_parameter(t, n->norm), 1e-5f);
        x = fsdp_swiglu(t, fsdp_linear(t, x, tape_parameter(t, n->up), NULL));
        x = fsdp_dropout(t, fsdp_linear(t, x, tape_parameter(t, n->down), NULL), 0.1f);
        h = fsdp_add(t, h, x);
        if (i > 0)
            fsdp_checkpoint_end(t);
    }
    fsdp_tensor *labels = fsdp_input(t, FSDP_I32, DIMS(2, 33), n->labels);
    fsdp_loss loss = fsdp_linear_cross_entropy(t, h, tape_parameter(t, n->table), labels, -100);
    fsdp_output(t, h);
    return fsdp_add(t, loss.sum, fsdp_mean(t, record_image(n, t)));
}

/* oneDNN, the default where there is no AVX-512, allocates in its calls: there the gemm of our own is looked at. */
static void open_with_own_gemm(rig *r)
{
    rig_open(r);
    if (!strstr(r->dev->description, "oneDNN"))
        return;
    r->dev->stream_free(r->compute);
    r->dev->stream_free(r->transfers);
    device_close(r->dev);
    assert_ok(device_open_cpu(CPU_GEMM_PORTABLE, &r->dev));
    assert_ok(r->dev->stream_create(r->dev, 0, &r->compute));
    assert_ok(r->dev->stream_create(r->dev, 0, &r->transfers));
}

static void open_network(network *n)
{
    open_with_own_gemm(&n->rig);
    rig *r = &n->rig;
    n->table = rig_parameter(r, DIMS(65, 32));
    n->norm = rig_parameter(r, DIMS(32));
    n->qkv = rig_parameter(r, DIMS(64, 32));
    n->out = rig_parameter(r, DIMS(32, 32));
    n->up = rig_parameter(r, DIMS(2 * 48, 32));
    n->down = rig_parameter(r, DIMS(32, 48));
    n->conv = rig_parameter(r, DIMS(5, 3, 3, 3));
    n->scale = rig_parameter(r, DIMS(5));
    n->shift = rig_parameter(r, DIMS(5));
    n->cosine = rig_constant(r, 33 * 4 * sizeof(float));
    n->sine = rig_constant(r, 33 * 4 * sizeof(float));
    n->mean = rig_constant(r, 5 * sizeof(float));
    n->variance = rig_constant(r, 5 * sizeof(float));
    for (int i = 0; i < 33 * 4; i++) {
        n->cosine[i] = 0.8f;
        n->sine[i] = 0.6f;
    }
    for (int i = 0; i < 5; i++)
        n->mean[i] = n->variance[i] = 1;
    for (int i = 0; i < 2 * 33; i++) {
        n->ids[i] = i * 7 % 65;
        n->labels[i] = i % 9 ? i * 11 % 65 : -100;
    }
    rng_fill_normal(rng_key_make(8), 0, 2 * 3 * 9 * 7, 0, 1, n->image);
}

static void a_step_after_the_first_allocates_nothing(void **state)
{
    (void)state;
    static network n;
    open_network(&n);
    n.rig.offload_bytes = 1;
    fsdp_tape *first = rig_tape(&n.rig), *next = rig_tape(&n.rig);
    plan p = rig_compile(&n.rig, first, record_network(&n, first), false);
    assert_true(p.host_bytes > 0);
    rig_run(&n.rig, &p);
    assert_true(all_finite(n.table->grad, n.table->numel));
    record_network(&n, next); /* the second tape's own first recording */
    program_run_args arguments = rig_arguments(&n.rig, &p);

    allocations_begin();
    fsdp_status status = FSDP_OK;
    bool same = true;
    for (int i = 0; i < 5; i++) {
        tape_reset(next, true);
        record_network(&n, next);
        same &= next->signature == program_tape(p.program)->signature;
        n.rig.scalars.step++;
        if (status == FSDP_OK)
            status = program_run(p.program, next, &arguments);
    }
    allocations_end();

    assert_ok(status);
    assert_true(same);
    assert_int_equal(atomic_load(&allocations_made), 0);
    assert_int_equal(atomic_load(&allocations_freed), 0);
    tape_free(next);
    rig_free(&n.rig, &p);
    rig_close(&n.rig);
}

static void no_operation_allocates_when_it_runs_again(void **state)
{
    (void)state;
    rig r;
    int bad = 0;
    open_with_own_gemm(&r);
    for (int i = 0; i < N_GRADIENT_CASES; i++) {
        builder b;
        rig_clear(&r);
        record_case(&b, &r, &gradient_cases[i], (recording_way){.values = true, .checkpointed = true});
        plan p = rig_compile(&r, b.t, b.root, false);
        rig_run(&r, &p);
        program_run_args arguments = rig_arguments(&r, &p);
        allocations_begin();
        fsdp_status status = program_run(p.program, b.t, &arguments);
        allocations_end();
        assert_ok(status);
        if (atomic_load(&allocations_made) + atomic_load(&allocations_freed) > 0) {
            print_error("%s: %ld allocations, %ld freed\n", gradient_cases[i].name, atomic_load(&allocations_made),
                        atomic_load(&allocations_freed));
            bad++;
        }
        rig_free(&r, &p);
    }
    rig_close(&r);
    assert_int_equal(bad, 0);
}

/* The counter itself: every way to take memory is seen, also from another library and another thread. */
static void allocations_are_seen(void **state)
{
    (void)state;
    void *taken[6];
    allocations_begin();
    taken[0] = malloc(10);
    taken[1] = calloc(2, 10);
    taken[2] = realloc(NULL, 10);
    taken[3] = aligned_alloc(64, 64);
    int failed = posix_memalign(&taken[4], 64, 64);
    taken[5] = strdup("by the C library"); /* allocates inside it */
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long made = atomic_load(&allocations_made);
#pragma omp parallel num_threads(2)
    free(malloc(1));
    long on_threads = atomic_load(&allocations_made) - made;
    allocations_end();
    for (int i = 0; i < 6; i++)
        free(taken[i]);
    munmap(mapped, 4096);
    assert_int_equal(failed, 0);
    assert_int_equal(made, 7);
    assert_true(on_threads >= 2);
}

int main(void)
{
    if (!ALLOCATIONS_ARE_COUNTED)
        return 77; /* skipped */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_seen),
        cmocka_unit_test(a_step_after_the_first_allocates_nothing),
        cmocka_unit_test(no_operation_allocates_when_it_runs_again),
    };
    return cmocka_run_group_tests_name("no allocation", tests, NULL, NULL);
}
