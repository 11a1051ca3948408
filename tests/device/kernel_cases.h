/* The one list of kernel cases: it serves every device and every instruction set. A case runs one kernel (or a pair,
 * forward and backward) at sizes that are no multiple of anything, against a reference in double precision. */
#ifndef TESTS_DEVICE_KERNEL_CASES_H
#define TESTS_DEVICE_KERNEL_CASES_H

#include "device/kernel_check.h"

typedef struct kernel_case {
    const char *name;
    void (*run)(kernel_check *c);
} kernel_case;

#include "device/kernel_cases_elementwise.h"
#include "device/kernel_cases_math.h"
#include "device/kernel_cases_rows.h"
#include "device/kernel_cases_fp8.h"
#include "device/kernel_cases_int8.h"
#include "device/kernel_cases_attention.h"
#include "device/kernel_cases_image.h"
#include "device/kernel_cases_nan.h"
#include "device/kernel_cases_optimizer.h"

static const kernel_case kernel_cases[] = {
    {"gemm", case_gemm},
    {"fp8_cast", case_fp8_cast},
    {"fp8_parts", case_fp8_parts},
    {"fp8_count", case_fp8_count},
    {"fp8_cast_of_special_numbers", case_fp8_cast_of_special_numbers},
    {"fp8_gemm", case_fp8_gemm},
    {"int8", case_int8},
    {"int8_of_special_numbers", case_int8_of_special_numbers},
    {"column_sum", case_column_sum},
    {"attention", case_attention},
    {"attention_with_bias", case_attention_with_bias},
    {"attention_of_aligned_heads", case_attention_of_aligned_heads},
    {"attention_with_window", case_attention_with_window},
    {"attention_within_documents", case_attention_within_documents},
    {"attention_of_a_document_alone", case_attention_of_a_document_alone},
    {"attention_with_dropout", case_attention_with_dropout},
    {"attention_without_visible_keys", case_attention_without_visible_keys},
    {"attention_of_long_sequences", case_attention_of_long_sequences},
    {"rope", case_rope},
    {"rmsnorm", case_rmsnorm},
    {"rmsnorm_plus_one", case_rmsnorm_plus_one},
    {"layernorm", case_layernorm},
    {"batchnorm", case_batchnorm},
    {"embedding", case_embedding},
    {"count_right", case_count_right},
    {"cross_entropy", case_cross_entropy},
    {"cross_entropy_of_labels_outside", case_cross_entropy_of_labels_outside},
    {"cross_entropy_of_extreme_logits", case_cross_entropy_of_extreme_logits},
    {"activation", case_activation},
    {"gated", case_gated},
    {"axpby", case_axpby},
    {"axpby_of_special_numbers", case_axpby_of_special_numbers},
    {"multiply", case_multiply},
    {"fill", case_fill},
    {"strided_copy", case_strided_copy},
    {"map", case_map},
    {"combine", case_combine},
    {"reduce", case_reduce},
    {"softmax", case_softmax},
    {"gather", case_gather},
    {"one_hot", case_one_hot},
    {"dropout", case_dropout},
    {"conv2d", case_conv2d},
    {"pool2d", case_pool2d},
    {"sum", case_sum},
    {"squared_error_backward", case_squared_error_backward},
    {"norm_blocks", case_norm_blocks},
    {"sum_f64", case_sum_f64},
    {"sum_parts", case_sum_parts},
    {"loss_total", case_loss_total},
    {"clip", case_clip},
    {"optimizer", case_optimizer},
    {"optimizer_copies_as_halves", case_optimizer_copies_as_halves},
    {"muon", case_muon},
    {"adafactor", case_adafactor},
    {"normalize", case_normalize},
    {"symmetric", case_symmetric},
    {"optimizer with bf16 moments", case_optimizer_halves},
    {"activation_of_nan", case_activation_of_nan},
    {"attention_of_nan", case_attention_of_nan},
    {"cross_entropy_of_nan", case_cross_entropy_of_nan},
    {"pool2d_of_nan", case_pool2d_of_nan},
    {"halves_of_nan", case_halves_of_nan},
};

#define N_KERNEL_CASES (sizeof kernel_cases / sizeof kernel_cases[0])

/* Runs one case in all dtypes, sizes of up to most_work multiplications (0: all); returns the hash of every bit of
 * every result. */
static inline uint64_t run_case_within(device *d, const kernel_case *one, double slack, int64_t most_work)
{
    static const fsdp_dtype dtypes[][2] = {
        {FSDP_F32, FSDP_F32}, {FSDP_BF16, FSDP_BF16}, {FSDP_BF16, FSDP_F32}, {FSDP_F16, FSDP_F32}};
    kernel_check c = {
        .device = d, .slack = slack, .name = one->name, .most_work = most_work, .hash = 14695981039346656037u};
    /* On GPUs the libraries' products take a bias along only where they have a kernel for it. */
    c.rounds_twice = strcmp(d->name, "cpu") != 0 && (strstr(one->name, "gemm") || strstr(one->name, "conv2d"));
    assert_int_equal(d->stream_create(d, 0, &c.stream), FSDP_OK);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (most_work > 0 && i == 1) /* as the next, but for one type */
            continue;
        c.dtype = dtypes[i][0];
        c.gradient_dtype = dtypes[i][1];
        c.random = 1;
        one->run(&c);
        check_clear(&c);
    }
    d->stream_free(c.stream);
    return c.hash;
}

static inline uint64_t run_case(device *d, const kernel_case *one, double slack)
{
    return run_case_within(d, one, slack, 0);
}

static inline void run_all_cases(device *d, double slack)
{
    for (size_t i = 0; i < N_KERNEL_CASES; i++)
        run_case(d, &kernel_cases[i], slack);
}

#endif
