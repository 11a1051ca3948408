/* Elements of a tensor in a safetensors file, converted to the type that the caller computes with. The header was
 * checked when the file was opened; here only the slice asked for and the type are. */
#include "format/weights/safetensors.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/float_bits.h"

#define CHUNK 1024 /* elements that pass through fp32 at a time */

static bool is_float(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16 || dtype == FSDP_F64;
}

/* Tensors are unaligned in general, hence memcpy for each element; compilers make vector loads of it. */
static void floats_from(fsdp_dtype dtype, const uint8_t *in, int64_t n, float *out)
{
    uint16_t half;
    double wide;
    switch (dtype) {
    case FSDP_BF16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&half, in + 2 * i, 2);
            out[i] = float_bits_from_bf16(half);
        }
        break;
    case FSDP_F16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&half, in + 2 * i, 2);
            out[i] = float_bits_from_f16(half);
        }
        break;
    case FSDP_F64:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&wide, in + 8 * i, 8);
            out[i] = (float)wide;
        }
        break;
    default:
        memcpy(out, in, (size_t)n * sizeof *out);
    }
}

static void floats_to(fsdp_dtype dtype, const float *in, int64_t n, void *out)
{
    switch (dtype) {
    case FSDP_BF16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = float_bits_to_bf16(in[i]);
        break;
    case FSDP_F16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = float_bits_to_f16(in[i]);
        break;
    case FSDP_F64:
        for (int64_t i = 0; i < n; i++)
            ((double *)out)[i] = in[i];
        break;
    default:
        memcpy(out, in, (size_t)n * sizeof *in);
    }
}

static fsdp_status check_slice(const safetensors_tensor *tensor, int64_t first, int64_t n)
{
    if (first < 0 || n < 0 || first > tensor->numel || n > tensor->numel - first)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s has %lld elements; %lld from %lld on were asked for",
                         tensor->path, tensor->name, (long long)tensor->numel, (long long)n, (long long)first);
    return FSDP_OK;
}

/* Weights are fp32 here: a finite number must not become infinite on the way. */
static fsdp_status check_range(const safetensors_tensor *tensor, int64_t first, int64_t n, const uint8_t *in)
{
    double wide;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&wide, in + 8 * i, 8);
        if (isfinite(wide) && !isfinite((float)wide))
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: element %lld is %g, which fp32 cannot hold", tensor->path,
                             tensor->name, (long long)(first + i), wide);
    }
    return FSDP_OK;
}

void safetensors_gather(const safetensors_tensor *tensor, int64_t first, int64_t n, void *out)
{
    size_t width = tensor->bytes / (size_t)tensor->numel;
    int64_t index[SAFETENSORS_MAX_DIMS], rest = first, at = 0;
    for (int i = tensor->n_dims - 1; i >= 0; i--) {
        index[i] = rest % tensor->shape[i];
        rest /= tensor->shape[i];
        at += index[i] * tensor->strides[i];
    }
    for (int64_t done = 0; done < n; done++) {
        memcpy((uint8_t *)out + (size_t)done * width, tensor->data + (size_t)at * width, width);
        for (int i = tensor->n_dims - 1; i >= 0; i--) { /* on to the next element: an odometer */
            at += tensor->strides[i];
            if (++index[i] < tensor->shape[i])
                break;
            at -= index[i] * tensor->strides[i];
            index[i] = 0;
        }
    }
}

/* Reads a tensor with strides as one without, a little at a time. */
static fsdp_status read_strided(const safetensors_tensor *tensor, int64_t first, int64_t n, fsdp_dtype dtype, void *out)
{
    uint64_t raw[CHUNK];
    safetensors_tensor window = *tensor;
    window.data = (const uint8_t *)raw;
    window.strides = NULL;
    for (int64_t done = 0; done < n; done += CHUNK) {
        window.numel = min_i64(CHUNK, n - done);
        safetensors_gather(tensor, first + done, window.numel, raw);
        FSDP_TRY(
            safetensors_read(&window, 0, window.numel, dtype, (uint8_t *)out + (size_t)done * fsdp_dtype_size(dtype)));
    }
    return FSDP_OK;
}

fsdp_status safetensors_read(const safetensors_tensor *tensor, int64_t first, int64_t n, fsdp_dtype dtype, void *out)
{
    float chunk[CHUNK];
    FSDP_TRY(check_slice(tensor, first, n));
    if (tensor->dtype == FSDP_DTYPE_COUNT)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: element type %s is not supported", tensor->path, tensor->name,
                         tensor->dtype_name);
    if (n == 0)
        return FSDP_OK;
    if (tensor->strides)
        return read_strided(tensor, first, n, dtype, out);
    size_t from_bytes = fsdp_dtype_size(tensor->dtype), to_bytes = fsdp_dtype_size(dtype);
    const uint8_t *in = tensor->data + (size_t)first * from_bytes;
    if (tensor->dtype == dtype) {
        memcpy(out, in, (size_t)n * to_bytes);
        return FSDP_OK;
    }
    if (!is_float(tensor->dtype) || !is_float(dtype))
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s holds %s; it cannot be read as %s", tensor->path, tensor->name,
                         tensor->dtype_name, fsdp_dtype_safetensors_name(dtype));
    if (tensor->dtype == FSDP_F64)
        FSDP_TRY(check_range(tensor, first, n, in));
    if (dtype == FSDP_F32) {
        floats_from(tensor->dtype, in, n, out);
        return FSDP_OK;
    }
    for (int64_t done = 0; done < n; done += CHUNK) {
        int64_t now = min_i64(CHUNK, n - done);
        floats_from(tensor->dtype, in + (size_t)done * from_bytes, now, chunk);
        floats_to(dtype, chunk, now, (uint8_t *)out + (size_t)done * to_bytes);
    }
    return FSDP_OK;
}

fsdp_status safetensors_read_f32(const safetensors_tensor *tensor, int64_t first, int64_t n, float *out)
{
    return safetensors_read(tensor, first, n, FSDP_F32, out);
}

fsdp_status safetensors_read_i64(const safetensors_tensor *tensor, int64_t first, int64_t n, int64_t *out)
{
    int32_t narrow;
    FSDP_TRY(check_slice(tensor, first, n));
    if (tensor->strides)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s is strided; save it as it lies (.contiguous())", tensor->path,
                         tensor->name);
    switch (tensor->dtype) {
    case FSDP_I64:
        return safetensors_read(tensor, first, n, FSDP_I64, out);
    case FSDP_I32:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&narrow, tensor->data + 4 * (first + i), 4);
            out[i] = narrow;
        }
        return FSDP_OK;
    case FSDP_U8:
        for (int64_t i = 0; i < n; i++)
            out[i] = tensor->data[first + i];
        return FSDP_OK;
    default:
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s holds %s; I64, I32 or U8 is needed", tensor->path, tensor->name,
                         tensor->dtype_name);
    }
}

const char *safetensors_shape_text(int n_dims, const int64_t *shape, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (int i = 0; i < n_dims && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, i ? ", %lld" : "%lld", (long long)shape[i]);
    if (used < bytes)
        snprintf(text + used, bytes - used, "]");
    return text;
}
