/* Sizes that take the vectorised paths of the GPU's kernels, as cases beside those of the common list. */
#ifndef TESTS_DEVICE_CUDA_VECTOR_CASES_H
#define TESTS_DEVICE_CUDA_VECTOR_CASES_H

#include "device/cuda_checks.h"

static void vector_rmsnorm(kernel_check *c)
{
    const int64_t shapes[][2] = {{7, 8},    {37, 256}, {1100, 64}, {19, 2048}, {70, 512},
                                 {5, 4104}, {3, 4096}, {3, 8192},  {3, 16384}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        rmsnorm_one(c, shapes[i][0], shapes[i][1], (int)i % 4, i % 2);
}

static void vector_layernorm(kernel_check *c)
{
    layernorm_one(c, 19, 1024, 0);
    layernorm_one(c, 600, 64, 3);
    layernorm_one(c, 3, 6000, 1);
}

static void vector_gated(kernel_check *c)
{
    for (int kind = 0; kind < 4; kind++)
        gated_one(c, (activation_kind)kind, 9, 4096, kind & 1);
    gated_one(c, ACTIVATION_SILU, 2100, 264, false); /* more rows than blocks that measure */
}

static void vector_rope(kernel_check *c)
{
    rope_one(c, 5, 40, 64, 3072, true, false);
    rope_one(c, 5, 3, 64, 256, true, true);
}

static void vector_cross_entropy(kernel_check *c)
{
    cross_entropy_one(c, 9, 4096, 8, false);
    cross_entropy_one(c, 5, 32000, 8, true);
    cross_entropy_one(c, 2, 40000, 300, true);
    cross_entropy_one(c, 3, 128256, 8, false);
    cross_entropy_strided(c, 3, 50257, 50304, 8, true);
    cross_entropy_strided(c, 5, 4093, 4096, 8, false);
}

static void vector_embedding(kernel_check *c)
{
    embedding_one(c, 300, 512, 1000, false);
    embedding_one(c, 2000, 64, 5, true);
    embedding_one(c, 40, 1024, 9000, true);
    embedding_one(c, 5000, 136, 1, false);
    embedding_one(c, 1100, 72, 40, false);
}

static void vector_gemm(kernel_check *c)
{
    for (int i = 0; i < 8; i++)
        gemm_one(c, i & 1, i & 2, 128, 253, 261, 2, i & 4);
}

static const kernel_case vector_cases[] = {
    {"vectors: rmsnorm", vector_rmsnorm},
    {"vectors: layernorm", vector_layernorm},
    {"vectors: gated", vector_gated},
    {"vectors: rope", vector_rope},
    {"vectors: cross_entropy", vector_cross_entropy},
    {"vectors: embedding", vector_embedding},
    {"vectors: gemm", vector_gemm},
};

#define N_VECTOR_CASES (sizeof vector_cases / sizeof *vector_cases)

#endif
