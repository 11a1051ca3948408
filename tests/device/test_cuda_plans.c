/* Attention and convolution graphs for described GPUs, without one: cuDNN must recognise what attention_graph.c and
 * conv2d_plan.c write and have engines. Needs cuDNN and a driver library (the toolkit's stub is enough); skipped (77)
 * without. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "device/cuda/cudnn/attention_graph.h"
#include "device/cuda/cudnn/conv2d_plan.h"

#ifdef CUDA_HAS_CUDNN

static cuda_libraries libraries;
static graph_target hopper, ampere;

static graph_target describe(const char *name)
{
    graph_target target = {.api = &libraries.cudnn};
    assert_int_equal(cudnn_describe(target.api, gpu_find(name), &target.properties), FSDP_OK);
    return target;
}

static int engines_for(const graph_target *target, const attention_shape *shape, int n_operations)
{
    static graph_builder b;
    int n = 0;
    graph_start(&b, target);
    attention_graph_build(&b, shape);
    assert_int_equal(b.n_operations, n_operations);
    fsdp_status status = graph_count_engines(&b, &n);
    graph_discard(&b);
    return status == FSDP_OK ? n : 0;
}

static attention_shape llama(bool backward, bool deterministic)
{
    return (attention_shape){.batch = 4,
                             .q_length = 2048,
                             .kv_length = 2048,
                             .q_heads = 32,
                             .kv_heads = 8,
                             .head_dim = 64,
                             .q_row = 3072,
                             .k_row = 3072,
                             .v_row = 3072,
                             .dtype = FSDP_BF16,
                             .causal = true,
                             .backward = backward,
                             .deterministic = deterministic};
}

static void causal_grouped_heads_have_engines(void **state)
{
    (void)state;
    attention_shape forward = llama(false, false), backward = llama(true, false), exact = llama(true, true);
    assert_true(engines_for(&hopper, &forward, 14) > 0);
    assert_true(engines_for(&hopper, &backward, 24) > 0);
    assert_true(engines_for(&hopper, &exact, 23) > 0);
    assert_true(engines_for(&ampere, &forward, 14) > 0);
    assert_true(engines_for(&ampere, &backward, 24) > 0);
}

static void odd_lengths_and_ungrouped_heads_have_engines(void **state)
{
    (void)state;
    attention_shape s = llama(true, false);
    s.q_length = s.kv_length = 1001;
    s.kv_heads = 32;
    s.dtype = FSDP_F16;
    assert_true(engines_for(&hopper, &s, 22) > 0);
}

static void attention_over_another_sequence_has_engines(void **state)
{
    (void)state;
    attention_shape s = llama(false, false);
    s.causal = false;
    s.kv_length = 333;
    assert_true(engines_for(&hopper, &s, 10) > 0);
    s.backward = true;
    assert_true(engines_for(&hopper, &s, 20) > 0);
}

/* Why the own kernel is there. */
static void head_sizes_off_the_grid_have_none(void **state)
{
    (void)state;
    attention_shape s = llama(false, false);
    s.head_dim = 60;
    s.q_row = s.k_row = s.v_row = 48 * 60;
    assert_int_equal(engines_for(&hopper, &s, 14), 0);
}

/* Workspace of the plan that the device would run, -1 where there is none. */
static int64_t planned(const graph_target *target, void (*build)(graph_builder *b, const void *shape),
                       const void *shape, const graph_choice *choice)
{
    static graph_builder b;
    cudnnBackendDescriptor_t plan = NULL;
    int64_t bytes = 0;
    graph_start(&b, target);
    build(&b, shape);
    fsdp_status status = graph_plan(&b, choice, &plan, &bytes);
    assert_null(plan); /* nothing was compiled */
    graph_discard(&b);
    return status == FSDP_OK ? bytes : -1;
}

static int64_t planned_convolution(const graph_target *target, const conv2d_shape *shape)
{
    const graph_choice choice = conv2d_choice(shape);
    return planned(target, conv2d_graph_build, shape, &choice);
}

static void build_attention(graph_builder *b, const void *shape)
{
    attention_graph_build(b, shape);
}

/* An engine that says it wants more than it may have is passed over for one that does not, or there is none. */
static void workspaces_stay_within_their_limit(void **state)
{
    (void)state;
    attention_shape forward = llama(false, false), backward = llama(true, false), exact = llama(true, true);
    const graph_choice roomy = {.workspace_limit = (int64_t)1 << 40}, tight = {.workspace_limit = 0};
    const graph_target *const targets[] = {&hopper, &ampere};
    for (int i = 0; i < 2; i++) {
        int64_t once = planned(targets[i], build_attention, &forward, &roomy);
        int64_t again = planned(targets[i], build_attention, &backward, &roomy);
        assert_true(once >= 0 && once <= 4096);
        assert_true(again > 0);
        const graph_choice less = {.workspace_limit = again - 1};
        assert_true(planned(targets[i], build_attention, &backward, &less) < again);
        assert_true(planned(targets[i], build_attention, &backward, &tight) <= 0);
    }
    /* the deterministic form keeps the scores of all pairs: 4 sequences, 32 heads, 2048 x 2048 in 16 bits */
    assert_true(planned(&hopper, build_attention, &exact, &roomy) >= (int64_t)1 << 30);
}

static conv2d_args images(int64_t batch, int64_t channels, int64_t side, int64_t filters, int64_t kernel,
                          int64_t stride)
{
    conv2d_args a = {.batch = batch, .in_channels = channels, .in_h = side, .in_w = side, .out_channels = filters};
    a.kernel_h = a.kernel_w = kernel;
    a.stride_h = a.stride_w = stride;
    a.padding_h = a.padding_w = kernel / 2;
    a.out_h = a.out_w = (side + 2 * a.padding_h - kernel) / stride + 1;
    return a;
}

/* Forward, both gradients, stored and added, of every type, also at sizes that are no multiple of anything. */
static void convolutions_have_deterministic_engines(void **state)
{
    (void)state;
    const conv2d_args sizes[] = {images(64, 64, 32, 64, 3, 1), images(3, 3, 9, 5, 3, 1), images(8, 32, 17, 64, 5, 2)};
    const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    for (int i = 0; i < 3 * 3 * CONVOLUTION_KINDS * 2; i++) {
        conv2d_shape shape = {.sizes = sizes[i % 3],
                              .dtype = types[i / 3 % 3],
                              .kind = (graph_convolution)(i / 9 % CONVOLUTION_KINDS),
                              .add = i / 27 & 1};
        int64_t bytes = planned_convolution(&hopper, &shape);
        if (bytes < 0)
            fail_msg("no engine for result %d of %s, size %d%s", shape.kind, fsdp_dtype_name(shape.dtype), i % 3,
                     shape.add ? ", added" : "");
        assert_true(bytes <= (int64_t)32 << 20);
    }
}

/* How weight gradients of 16-bit images come out in fp32. */
static void fp32_weight_gradients_have_engines_on_tensor_cores(void **state)
{
    (void)state;
    conv2d_shape shape = {
        .sizes = images(64, 64, 32, 64, 3, 1), .dtype = FSDP_F32, .kind = CONVOLUTION_WEIGHT, .tensor_cores = true};
    assert_true(planned_convolution(&hopper, &shape) >= 0);
    assert_true(planned_convolution(&ampere, &shape) >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal_grouped_heads_have_engines),
        cmocka_unit_test(odd_lengths_and_ungrouped_heads_have_engines),
        cmocka_unit_test(attention_over_another_sequence_has_engines),
        cmocka_unit_test(head_sizes_off_the_grid_have_none),
        cmocka_unit_test(workspaces_stay_within_their_limit),
        cmocka_unit_test(convolutions_have_deterministic_engines),
        cmocka_unit_test(fp32_weight_gradients_have_engines_on_tensor_cores),
    };
    if (!libraries_open_driver() || libraries_open_cudnn(&libraries) != FSDP_OK) {
        printf("skipped: no driver library, not even a stub, or no cuDNN\n");
        return 77;
    }
    if (libraries.cudnn_version < 91100) {
        printf("skipped: cuDNN %zu cannot plan for a described GPU\n", libraries.cudnn_version);
        return 77;
    }
    hopper = describe("h200");
    ampere = describe("a100");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 77;
}

#endif
