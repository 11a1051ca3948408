/* Chooses an algorithm for every product: asks cuBLASLt for candidates and times them once on the operands at hand,
 * writing to scratch memory so that the caller's data stays as it is. gemm_cache.c keeps the choices on disk. */
#include "device/cuda/gemm/gemm_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

#define N_CANDIDATES 16

fsdp_status gemm_table_create(gemm_table **out)
{
    gemm_table *table = calloc(1, sizeof *table);
    if (!table)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for the table of products");
    pthread_mutex_init(&table->mutex, NULL);
    *out = table;
    return FSDP_OK;
}

static void entry_free(const cublaslt_api *api, gemm_entry *entry)
{
    if (entry->operation)
        api->cublasLtMatmulDescDestroy(entry->operation);
    cublasLtMatrixLayout_t layouts[] = {entry->a, entry->b, entry->c, entry->d};
    for (int i = 0; i < 4; i++)
        if (layouts[i])
            api->cublasLtMatrixLayoutDestroy(layouts[i]);
    free(entry);
}

void gemm_table_free(cuda_device *d, gemm_table *table)
{
    if (!table)
        return;
    for (int i = 0; i < 256; i++)
        while (table->entries[i]) {
            gemm_entry *next = table->entries[i]->next;
            entry_free(&d->libraries.cublaslt, table->entries[i]);
            table->entries[i] = next;
        }
    pthread_mutex_destroy(&table->mutex);
    free(table);
}

void gemm_table_lock(gemm_table *table)
{
    pthread_mutex_lock(&table->mutex);
}

void gemm_table_unlock(gemm_table *table)
{
    pthread_mutex_unlock(&table->mutex);
}

gemm_entry *gemm_table_entry(gemm_table *table, const char *key)
{
    gemm_entry **slot = &table->entries[hash_text(HASH_START, key) & 255];
    for (gemm_entry *entry = *slot; entry; entry = entry->next)
        if (strcmp(entry->key, key) == 0)
            return entry;
    gemm_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    snprintf(entry->key, sizeof entry->key, "%s", key);
    entry->next = *slot;
    *slot = entry;
    return entry;
}

/* Largest power of two, up to 16, that divides the address. */
static unsigned alignment(const void *p)
{
    uintptr_t address = (uintptr_t)p | 16;
    return (unsigned)(address & (~address + 1));
}

/* Everything an algorithm may depend on. */
static void make_key(const cuda_device *d, const gemm_args *a, size_t workspace_bytes, char key[GEMM_KEY_CHARS])
{
    static const char types[FSDP_DTYPE_COUNT] = {
        [FSDP_F32] = 'f', [FSDP_BF16] = 'b', [FSDP_F16] = 'h', [FSDP_E4M3] = '4', [FSDP_E5M2] = '5'};
    int length = snprintf(key, GEMM_KEY_CHARS, "%c%c%c%s%s%s %lldx%lldx%lld ld %lld,%lld,%lld,%lld align %u,%u,%u,%u",
                          types[a->a.dtype], types[a->d.dtype], a->transpose_a ? 't' : 'n', a->transpose_b ? "t" : "n",
                          a->beta != 0.0f ? "c" : "", a->bias.p ? "b" : "", (long long)a->m, (long long)a->n,
                          (long long)a->k, (long long)a->lda, (long long)a->ldb, (long long)a->ldc, (long long)a->ldd,
                          alignment(a->a.p), alignment(a->b.p), alignment(a->c.p), alignment(a->d.p));
    if (a->batch > 1)
        length += snprintf(key + length, (size_t)(GEMM_KEY_CHARS - length), " batch %lld by %lld,%lld,%lld,%lld",
                           (long long)a->batch, (long long)a->stride_a, (long long)a->stride_b, (long long)a->stride_c,
                           (long long)a->stride_d);
    if (gpu_is_fp8(a->a.dtype))
        length += snprintf(key + length, (size_t)(GEMM_KEY_CHARS - length), " by %c%s", types[a->b.dtype],
                           a->fast_sums ? " fast" : "");
    if (d->tf32 && a->a.dtype == FSDP_F32)
        length += snprintf(key + length, (size_t)(GEMM_KEY_CHARS - length), " tf32");
    if (workspace_bytes != d->base.workspace_limit)
        snprintf(key + length, (size_t)(GEMM_KEY_CHARS - length), " workspace %zu", workspace_bytes);
}

static cudaDataType_t library_type(fsdp_dtype dtype)
{
    static const cudaDataType_t types[FSDP_DTYPE_COUNT] = {[FSDP_F32] = CUDA_R_32F,
                                                           [FSDP_BF16] = CUDA_R_16BF,
                                                           [FSDP_F16] = CUDA_R_16F,
                                                           [FSDP_E4M3] = CUDA_R_8F_E4M3,
                                                           [FSDP_E5M2] = CUDA_R_8F_E5M2};
    return types[dtype];
}

static bool make_layout(const cublaslt_api *api, cublasLtMatrixLayout_t *out, fsdp_dtype dtype, int64_t rows,
                        int64_t columns, int64_t leading, int64_t batch, int64_t stride)
{
    int32_t count = (int32_t)batch;
    if (api->cublasLtMatrixLayoutCreate(out, library_type(dtype), (uint64_t)rows, (uint64_t)columns, leading) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    if (batch == 1)
        return true;
    return api->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) ==
               CUBLAS_STATUS_SUCCESS &&
           api->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                 sizeof stride) == CUBLAS_STATUS_SUCCESS;
}

/* The library's a is our b. */
static cublasStatus_t set_scales(const cublaslt_api *api, gemm_entry *entry, const gemm_args *a)
{
    cublasStatus_t status = api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                                                &a->scale_b, sizeof a->scale_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                                     &a->scale_a, sizeof a->scale_a);
    return status;
}

static bool make_fp8(const cublaslt_api *api, gemm_entry *entry, const gemm_args *a)
{
    int8_t fast = a->fast_sums;
    return set_scales(api, entry, a) == CUBLAS_STATUS_SUCCESS &&
           api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast) ==
               CUBLAS_STATUS_SUCCESS;
}

static bool make_operation(const cuda_device *d, gemm_entry *entry, const gemm_args *a)
{
    const cublaslt_api *api = &d->libraries.cublaslt;
    cublasComputeType_t compute = d->tf32 && a->a.dtype == FSDP_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t first = a->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = a->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (api->cublasLtMatmulDescCreate(&entry->operation, compute, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) !=
            CUBLAS_STATUS_SUCCESS ||
        api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) !=
            CUBLAS_STATUS_SUCCESS)
        return false;
    if (gpu_is_fp8(a->a.dtype) && !make_fp8(api, entry, a))
        return false;
    if (!a->bias.p)
        return true;
    /* The bias runs along n, which is the rows of the library's column-major d: its own bias epilogue. */
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t type = library_type(a->bias.dtype);
    return api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                               sizeof epilogue) == CUBLAS_STATUS_SUCCESS &&
           api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                               sizeof type) == CUBLAS_STATUS_SUCCESS &&
           api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias.p,
                                               sizeof a->bias.p) == CUBLAS_STATUS_SUCCESS;
}

static bool describe_entry(const cuda_device *d, gemm_entry *entry, const gemm_args *a)
{
    const cublaslt_api *api = &d->libraries.cublaslt;
    return make_operation(d, entry, a) &&
           make_layout(api, &entry->a, a->b.dtype, a->transpose_b ? a->k : a->n, a->transpose_b ? a->n : a->k, a->ldb,
                       a->batch, a->stride_b) &&
           make_layout(api, &entry->b, a->a.dtype, a->transpose_a ? a->m : a->k, a->transpose_a ? a->k : a->m, a->lda,
                       a->batch, a->stride_a) &&
           make_layout(api, &entry->c, a->c.dtype, a->n, a->m, a->ldc, a->batch, a->stride_c) &&
           make_layout(api, &entry->d, a->d.dtype, a->n, a->m, a->ldd, a->batch, a->stride_d);
}

cublasStatus_t gemm_entry_run(cuda_device *d, cudaStream_t queue, gemm_entry *entry, const gemm_args *a,
                              size_t workspace_bytes, const void *c, void *out, const cublasLtMatmulAlgo_t *algorithm)
{
    const cublaslt_api *api = &d->libraries.cublaslt;
    if (gpu_is_fp8(a->a.dtype)) {
        cublasStatus_t status = set_scales(api, entry, a);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    if (a->bias.p) {
        cublasStatus_t status = api->cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                                    &a->bias.p, sizeof a->bias.p);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    return api->cublasLtMatmul(d->libraries.cublaslt_handle, entry->operation, &a->alpha, a->b.p, entry->a, a->a.p,
                               entry->b, &a->beta, c, entry->c, out, entry->d,
                               algorithm ? algorithm : &entry->algorithm, a->workspace, workspace_bytes, queue);
}

static int find_candidates(const cuda_device *d, gemm_entry *entry, const gemm_args *a, size_t workspace_bytes,
                           cublasLtMatmulHeuristicResult_t results[N_CANDIDATES])
{
    const cublaslt_api *api = &d->libraries.cublaslt;
    cublasLtMatmulPreference_t preference = NULL;
    if (api->cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 0;
    uint64_t limit = workspace_bytes;
    api->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit,
                                              sizeof limit);
    /* Sums cut over k are joined in fp32 and in a fixed order: joining in the result's type would round every part. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    api->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                              sizeof reductions);
    static const cublasLtMatmulPreferenceAttributes_t attributes[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const void *pointers[] = {a->b.p, a->a.p, a->c.p, a->d.p};
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = alignment(pointers[i]);
        api->cublasLtMatmulPreferenceSetAttribute(preference, attributes[i], &bytes, sizeof bytes);
    }
    int n = 0;
    if (api->cublasLtMatmulAlgoGetHeuristic(d->libraries.cublaslt_handle, entry->operation, entry->a, entry->b,
                                            entry->c, entry->d, preference, N_CANDIDATES, results,
                                            &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    api->cublasLtMatmulPreferenceDestroy(preference);
    int usable = 0;
    for (int i = 0; i < n; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            results[usable++] = results[i];
    return usable;
}

static float time_candidate(stream *s, gemm_entry *entry, const gemm_args *a, size_t workspace_bytes,
                            const cublasLtMatmulAlgo_t *algorithm, void *scratch, cudaEvent_t from, cudaEvent_t to,
                            int repeats)
{
    const void *c = a->c.p == a->d.p ? scratch : a->c.p;
    float milliseconds = 0;
    (void)cudaEventRecord(from, s->launch.stream);
    for (int i = 0; i < repeats; i++)
        if (gemm_entry_run(s->device, s->launch.stream, entry, a, workspace_bytes, c, scratch, algorithm) !=
            CUBLAS_STATUS_SUCCESS)
            return -1.0f;
    if (cudaEventRecord(to, s->launch.stream) != cudaSuccess || cudaEventSynchronize(to) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, from, to) != cudaSuccess)
        return -1.0f;
    return milliseconds / (float)repeats;
}

/* Index of the fastest candidate; 0 when timing is not possible (no memory for scratch output). */
static int time_candidates(stream *s, gemm_entry *entry, const gemm_args *a, size_t workspace_bytes, int n,
                           const cublasLtMatmulHeuristicResult_t *results)
{
    size_t element = fsdp_dtype_size(a->d.dtype);
    size_t bytes = ((size_t)(a->batch - 1) * (size_t)a->stride_d + (size_t)a->m * (size_t)a->ldd) * element;
    void *scratch = NULL;
    cudaEvent_t from = NULL, to = NULL;
    int best = 0;
    if (cudaMalloc(&scratch, bytes) != cudaSuccess || cudaEventCreate(&from) != cudaSuccess ||
        cudaEventCreate(&to) != cudaSuccess)
        goto done;
    (void)cudaMemsetAsync(scratch, 0, bytes, s->launch.stream);
    float best_time = 0;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < n; i++) {
            if (round == 0) /* loads the kernel */
                (void)time_candidate(s, entry, a, workspace_bytes, &results[i].algo, scratch, from, to, 1);
            float time = time_candidate(s, entry, a, workspace_bytes, &results[i].algo, scratch, from, to, 3);
            if (time > 0 && (best_time == 0 || time < best_time)) {
                best_time = time;
                best = i;
            }
        }
    entry->milliseconds = best_time;
done:
    (void)cudaGetLastError();
    if (from)
        (void)cudaEventDestroy(from);
    if (to)
        (void)cudaEventDestroy(to);
    (void)cudaFree(scratch);
    return best;
}

static bool is_recording(const stream *s)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(s->launch.stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

static void choose(stream *s, gemm_entry *entry, const gemm_args *a, size_t workspace_bytes)
{
    cuda_device *d = s->device;
    cublasLtMatmulHeuristicResult_t results[N_CANDIDATES];
    int n = find_candidates(d, entry, a, workspace_bytes, results);
    entry->chosen = true;
    entry->usable = n > 0;
    entry->milliseconds = 0;
    if (n == 0)
        return;
    bool timed = n > 1 && d->tuning && !d->base.autotune_off && !d->base.awaits_autotune && !is_recording(s);
    int best = timed ? time_candidates(s, entry, a, workspace_bytes, n, results) : 0;
    entry->algorithm = results[best].algo;
    entry->workspace_bytes = results[best].workspaceSize;
    d->gemms->changed |= timed;
    log_write(FSDP_LOG_DEBUG, "product %s: candidate %d of %d, %.3f ms", entry->key, best + 1, n,
              (double)entry->milliseconds);
}

/* A loaded algorithm counts only when this library and GPU accept it. */
static bool loaded_algorithm_fits(const cuda_device *d, gemm_entry *entry, size_t workspace_bytes)
{
    cublasLtMatmulHeuristicResult_t result;
    if (d->libraries.cublaslt.cublasLtMatmulAlgoCheck(d->libraries.cublaslt_handle, entry->operation, entry->a,
                                                      entry->b, entry->c, entry->d, &entry->algorithm,
                                                      &result) != CUBLAS_STATUS_SUCCESS)
        return false;
    return result.workspaceSize <= workspace_bytes;
}

fsdp_status gemm_table_find(stream *s, const gemm_args *a, size_t workspace_bytes, gemm_entry **out)
{
    cuda_device *d = s->device;
    char key[GEMM_KEY_CHARS];
    make_key(d, a, workspace_bytes, key);
    gemm_entry *entry = gemm_table_entry(d->gemms, key);
    if (!entry)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for the table of products");
    if (!entry->described) {
        entry->described = true;
        if (!describe_entry(d, entry, a)) {
            entry->chosen = true;
            entry->usable = entry->loaded = false;
        }
    }
    if (entry->loaded) {
        entry->loaded = false;
        entry->chosen = entry->usable = !d->base.autotune_off && loaded_algorithm_fits(d, entry, workspace_bytes);
    }
    if (!entry->chosen)
        choose(s, entry, a, workspace_bytes);
    *out = entry;
    return FSDP_OK;
}
