/* Tensor cores and asynchronous copies as functions: 16 x 8 x 16 products of 16-bit numbers with fp32 sums, fragments
 * from shared memory, 16-byte copies from device to shared memory (compute capability 8.0 and up).
 *
 * With g = lane / 4 and t = lane % 4 a thread holds, of the sums (16 x 8), rows g (0, 1) and g + 8 (2, 3), columns 2t
 * and 2t + 1; of the left factor (16 x 16), rows g, g + 8, g, g + 8, columns 2t, 2t + 1 (0, 1) and those plus 8 (2, 3).
 */
#ifndef DEVICE_CUDA_MMA_CUH
#define DEVICE_CUDA_MMA_CUH

#include <stdint.h>

#include <fsdp/dtype.h>

/* Four 8 x 8 matrices: lanes 8i .. 8i+7 point at the rows of matrix i, each 16 bytes. Thread (g, t) gets of each row g,
 * columns 2t and 2t+1; transposed: rows 2t and 2t+1, column g. */
static __device__ __forceinline__ void load_matrices(uint32_t out[4], const void *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t out[4], const void *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

/* sum += left * right; right[0] holds rows 2t, 2t+1 of the right factor (16 x 8), column g, right[1] those plus 8. */
template <int D>
static __device__ __forceinline__ void multiply_add(float sum[4], const uint32_t left[4], const uint32_t right[2])
{
    if constexpr (D == FSDP_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

/* 16 bytes, or zeros when not `present`. Copies are counted in the groups that commit closes. */
static __device__ __forceinline__ void copy_async(void *to, const void *from, bool present)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to), bytes = present ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

/* The same with 4 bytes. */
static __device__ __forceinline__ void copy_async_4(void *to, const void *from, bool present)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to), bytes = present ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most N groups of this thread are under way. */
template <int N> static __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* 2^x to two units in the last place; subnormal results are 0. */
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
