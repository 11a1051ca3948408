/* The safetensors reader: what it gives for good files, and that nothing bad gets past it. */
#include "format/scratch.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "base/json.h"
#include "base/float_bits.h"
#include "format/weights/safetensors.h"

/* A file in memory from a header text and n bytes of data 0, 1, 2, ... The caller frees it. */
static uint8_t *make_file(const char *header, size_t data_bytes, size_t *bytes)
{
    uint64_t header_bytes = strlen(header);
    *bytes = 8 + header_bytes + data_bytes;
    uint8_t *file = malloc(*bytes + 1);
    assert_non_null(file);
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + header_bytes + i] = (uint8_t)i;
    return file;
}

static safetensors *open_text(const char *header, size_t data_bytes, uint8_t **bytes_out)
{
    size_t bytes;
    safetensors *file;
    *bytes_out = make_file(header, data_bytes, &bytes);
    assert_ok(safetensors_open_memory("made", *bytes_out, bytes, &file));
    return file;
}

static void refuse_text(const char *header, size_t data_bytes, const char *reason)
{
    size_t bytes;
    safetensors *file = (safetensors *)8;
    uint8_t *data = make_file(header, data_bytes, &bytes);
    assert_fails(FSDP_ERR_INPUT, safetensors_open_memory("made.safetensors", data, bytes, &file), "made.safetensors",
                 reason);
    assert_null(file);
    free(data);
}

static const char two_tensors[] = "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"},"
                                  "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
                                  "\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                                  "\"empty\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[8,8]}}   ";

static void tensors_are_found_by_name_and_listed_in_data_order(void **state)
{
    (void)state;
    uint8_t *bytes;
    safetensors *file = open_text(two_tensors, 32, &bytes);
    assert_int_equal(safetensors_count(file), 3);
    assert_string_equal(safetensors_at(file, 0)->name, "a");
    assert_string_equal(safetensors_at(file, 1)->name, "empty");
    const safetensors_tensor *b = safetensors_find(file, "b.weight");
    assert_ptr_equal(b, safetensors_at(file, 2));
    assert_int_equal(b->dtype, FSDP_F32);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->numel, 6);
    assert_int_equal(b->bytes, 24);
    assert_int_equal(b->data[0], 8);
    assert_int_equal(safetensors_find(file, "a")->n_dims, 0);
    assert_int_equal(safetensors_find(file, "a")->numel, 1);
    assert_int_equal(safetensors_find(file, "empty")->numel, 0);
    assert_null(safetensors_find(file, "b.weigh"));
    assert_null(safetensors_find(file, ""));
    const safetensors_tensor *none;
    assert_fails(FSDP_ERR_INPUT, safetensors_get(file, "c", &none), "made", "no tensor c");
    safetensors_close(file);
    free(bytes);
}

static void a_file_without_tensors_is_legal(void **state)
{
    (void)state;
    uint8_t *bytes;
    safetensors *file = open_text("{}", 0, &bytes);
    assert_int_equal(safetensors_count(file), 0);
    assert_null(safetensors_find(file, "x"));
    safetensors_close(file);
    free(bytes);
}

static void many_tensors_are_all_found(void **state)
{
    (void)state;
    enum { N = 3000 };
    json_t *header = json_object();
    char name[32];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "layer.%d.w", (i * 7919) % N);
        json_object_set_new(
            header, name,
            json_pack("{s:s,s:[i],s:[i,i]}", "dtype", "U8", "shape", 2, "data_offsets", 2 * i, 2 * i + 2));
    }
    char *text = json_dumps(header, 0);
    uint8_t *bytes;
    safetensors *file = open_text(text, 2 * N, &bytes);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "layer.%d.w", (i * 7919) % N);
        assert_int_equal(safetensors_find(file, name)->data - safetensors_at(file, 0)->data, 2 * i);
    }
    safetensors_close(file);
    free(bytes);
    free(text);
    json_decref(header);
}

static void foreign_types_are_listed_and_refused_when_read(void **state)
{
    (void)state;
    uint8_t *bytes;
    safetensors *file = open_text("{\"mask\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]},"
                                  "\"scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[4,6]},"
                                  "\"packed\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[6,8]},"
                                  "\"new\":{\"dtype\":\"Q3\",\"shape\":[100],\"data_offsets\":[8,9]},"
                                  "\"w\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[9,11]}}",
                                  11, &bytes);
    float out[100];
    int64_t whole[4];
    const char *names[] = {"mask", "scale", "packed", "new"}, *types[] = {"BOOL", "F8_E4M3", "F4", "Q3"};
    for (int i = 0; i < 4; i++) {
        const safetensors_tensor *tensor = safetensors_find(file, names[i]);
        assert_int_equal(tensor->dtype, FSDP_DTYPE_COUNT);
        assert_string_equal(tensor->dtype_name, types[i]);
        assert_fails(FSDP_ERR_INPUT, safetensors_read_f32(tensor, 0, 1, out), "made", names[i], types[i]);
        assert_fails(FSDP_ERR_INPUT, safetensors_read_i64(tensor, 0, 1, whole), "made", names[i], types[i]);
    }
    assert_ok(safetensors_read_f32(safetensors_find(file, "w"), 0, 1, out));
    safetensors_close(file);
    free(bytes);
}

#define ENTRY(name, dtype, shape, offsets)                                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void lying_entries_are_refused_with_file_and_tensor_named(void **state)
{
    (void)state;
    static const struct {
        const char *header, *reason;
        size_t data_bytes;
    } cases[] = {
        {"{" ENTRY("w", "F32", "[2]", "[0,16]") "}", "w: data_offsets [0, 16]", 8},
        {"{" ENTRY("w", "F32", "[2]", "[-8,0]") "}", "w: data_offsets [-8, 0]", 8},
        {"{" ENTRY("w", "F32", "[2]", "[8,0]") "}", "w: data_offsets [8, 0]", 8},
        {"{" ENTRY("w", "F32", "[2]", "[0,9223372036854775807]") "}", "w: data_offsets", 8},
        {"{" ENTRY("w", "F32", "[2]", "[0,18446744073709551616]") "}", "w: \"data_offsets\"", 8},
        {"{" ENTRY("w", "F32", "[2]", "[0,8.0]") "}", "w: \"data_offsets\"", 8},
        {"{" ENTRY("w", "F32", "[2]", "[0]") "}", "w: \"data_offsets\"", 8},
        {"{" ENTRY("w", "F32", "[2]", "[0,4,8]") "}", "w: \"data_offsets\"", 8},
        {"{" ENTRY("w", "F32", "[2]", "8") "}", "w: \"data_offsets\"", 8},
        {"{" ENTRY("w", "F32", "[3]", "[0,8]") "}", "takes 12 bytes", 8},
        {"{" ENTRY("w", "F4", "[3]", "[0,1]") "}", "w: F4 of shape [3]", 1},
        {"{" ENTRY("w", "F32", "[-2]", "[0,8]") "}", "w: dimension 0", 8},
        {"{" ENTRY("w", "F32", "[1,2.5]", "[0,8]") "}", "w: dimension 1", 8},
        {"{" ENTRY("w", "F32", "[\"2\"]", "[0,8]") "}", "w: dimension 0", 8},
        {"{" ENTRY("w", "F32", "2", "[0,8]") "}", "w: \"shape\"", 8},
        {"{" ENTRY("w", "F32", "[4294967296,4294967296]", "[0,0]") "}", "w: the product", 0},
        {"{" ENTRY("w", "F32", "[4611686018427387904,4]", "[0,0]") "}", "w: the product", 0},
        {"{" ENTRY("w", "F32", "[4611686018427387904]", "[0,0]") "}", "w: the size of its shape overflows", 0},
        {"{" ENTRY("w", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", "w has 9 dimensions", 1},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[3,7]") "}", "a and b overlap", 7},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[0,4]") "}", "a and b overlap", 4},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[0]", "[2,2]") "}", "a and b overlap", 4},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[5,9]") "}", "before tensor b", 9},
        {"{" ENTRY("a", "U8", "[4]", "[4,8]") "}", "before tensor a", 8},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "}", "last 2 bytes", 6},
        {"{}", "last 1 bytes", 1},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("a", "U8", "[4]", "[4,8]") "}", "duplicate", 8},
        {"{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "w: \"dtype\"", 8},
        {"{\"w\":{\"dtype\":5,\"shape\":[2],\"data_offsets\":[0,8]}}", "w: \"dtype\"", 8},
        {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "w: \"shape\"", 8},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", "w: \"data_offsets\"", 8},
        {"{\"w\":[]}", "w: its entry", 0},
        {"{\"w\":null}", "w: its entry", 0},
        {"{\"__metadata__\":[]}", "__metadata__ is not an object", 0},
        {"{\"__metadata__\":{\"k\":1}}", "__metadata__ entry k", 0},
        {"[]", "does not begin with '{'", 0},
        {" {}", "does not begin with '{'", 0},
        {"", "does not begin with '{'", 0},
        {"{", "not valid JSON", 0},
        {"{}x", "not valid JSON", 0},
        {"{\"w\\u0000\":{}}", "not valid JSON", 0},
        {"{\"\xff\":{}}", "not valid JSON", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse_text(cases[i].header, cases[i].data_bytes, cases[i].reason);
}

static void lying_header_lengths_are_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3,          100,        100000000,      100000001,
                                       1ull << 32, UINT64_MAX, UINT64_MAX - 7, 1ull << 63};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t bytes;
        safetensors *file;
        uint8_t *data = make_file("{}", 0, &bytes);
        memcpy(data, &lengths[i], 8);
        assert_fails(FSDP_ERR_INPUT, safetensors_open_memory("long.safetensors", data, bytes, &file),
                     "long.safetensors", "states a header of");
        free(data);
    }
}

static void truncation_at_every_byte_is_refused(void **state)
{
    (void)state;
    size_t bytes;
    safetensors *file;
    uint8_t *data = make_file(two_tensors, 32, &bytes);
    for (size_t cut = 0; cut < bytes; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1); /* exactly as long, so that a sanitizer sees reads behind it */
        memcpy(copy, data, cut);
        assert_fails(FSDP_ERR_INPUT, safetensors_open_memory("cut.safetensors", copy, cut, &file), "cut.safetensors");
        free(copy);
    }
    const char *path = scratch_path("cut.safetensors");
    for (size_t cut = 0; cut < bytes; cut += 13) {
        scratch_write(path, data, cut);
        assert_fails(FSDP_ERR_INPUT, safetensors_open(path, &file), path);
    }
    scratch_write(path, data, bytes);
    assert_ok(safetensors_open(path, &file));
    safetensors_close(file);
    free(data);
}

/* Whatever a flipped bit leaves that opens must still lie within the file. */
static void flipped_bits_are_refused_or_harmless(void **state)
{
    (void)state;
    size_t bytes, n_refused = 0;
    uint8_t *data = make_file(two_tensors, 32, &bytes);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        safetensors *file;
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (safetensors_open_memory("flipped", data, bytes, &file) == FSDP_OK) {
            for (size_t i = 0; i < safetensors_count(file); i++) {
                const safetensors_tensor *tensor = safetensors_at(file, i);
                assert_true(tensor->data >= data && tensor->data + tensor->bytes <= data + bytes);
                float *out = malloc(sizeof *out * (size_t)(tensor->numel + 1));
                if (safetensors_read_f32(tensor, 0, tensor->numel, out) != FSDP_OK)
                    assert_true(tensor->dtype == FSDP_DTYPE_COUNT || tensor->dtype == FSDP_I64 ||
                                tensor->dtype == FSDP_I32 || tensor->dtype == FSDP_U8);
                free(out);
            }
            safetensors_close(file);
        } else {
            assert_non_null(strstr(fsdp_last_error(), "flipped"));
            n_refused++;
        }
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(n_refused > bytes); /* structure dominates this small file */
    free(data);
}

static void an_absent_file_or_a_folder_is_refused_with_its_path(void **state)
{
    (void)state;
    safetensors *file;
    assert_fails(FSDP_ERR_INPUT, safetensors_open(scratch_path("absent"), &file), "/absent");
    assert_fails(FSDP_ERR_INPUT, safetensors_open(scratch_folder, &file), scratch_folder);
    safetensors_close(NULL);
}

/* The definition of rounding to nearest even, by search in double precision: slow, and sharing nothing with the code.
 */
static double f16_value(unsigned half)
{
    unsigned exponent = half >> 10 & 31, mantissa = half & 1023;
    double magnitude = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

static void every_f16_is_converted_exactly_both_ways(void **state)
{
    (void)state;
    for (unsigned half = 0; half < 65536; half++) {
        float value = float_bits_from_f16((uint16_t)half);
        if ((half & 0x7c00) == 0x7c00) {
            assert_true(half & 0x3ff ? isnan(value) : isinf(value));
            assert_int_equal(signbit(value) != 0, half >> 15);
        } else {
            assert_true((double)value == f16_value(half));
        }
        if (isnan(value))
            assert_true(isnan(float_bits_from_f16(float_bits_to_f16(value))));
        else
            assert_int_equal(float_bits_to_f16(value), half);
    }
}

static void fp32_is_rounded_to_the_nearest_even_f16(void **state)
{
    (void)state;
    for (unsigned half = 0; half < 0x7bff; half++) { /* halfway between neighbours, and to both sides of it */
        double low = f16_value(half), high = f16_value(half + 1);
        float middle = (float)((low + high) / 2);
        unsigned even = half & 1 ? half + 1 : half;
        assert_int_equal(float_bits_to_f16(middle), even);
        assert_int_equal(float_bits_to_f16(-middle), 0x8000 | even);
        assert_int_equal(float_bits_to_f16(nextafterf(middle, 0)), half);
        assert_int_equal(float_bits_to_f16(nextafterf(middle, INFINITY)), half + 1);
    }
    assert_int_equal(float_bits_to_f16(65519.996f), 0x7bff);
    assert_int_equal(float_bits_to_f16(65520.0f), 0x7c00);
    assert_int_equal(float_bits_to_f16(INFINITY), 0x7c00);
    assert_int_equal(float_bits_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(float_bits_to_f16(1e-30f), 0);
    assert_true(isnan(float_bits_from_f16(float_bits_to_f16(NAN))));
}

static void fp32_is_rounded_to_the_nearest_even_bf16(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7f7f; half++) {
        uint32_t middle = half << 16 | 0x8000, even = half & 1 ? half + 1 : half;
        assert_int_equal(float_bits_to_bf16(float_bits_to(middle)), even);
        assert_int_equal(float_bits_to_bf16(float_bits_to(middle - 1)), half);
        assert_int_equal(float_bits_to_bf16(float_bits_to(middle + 1)), half + 1);
        assert_true(float_bits_from_bf16((uint16_t)half) == float_bits_to(half << 16));
    }
    assert_int_equal(float_bits_to_bf16(INFINITY), 0x7f80);
    assert_true(isnan(float_bits_from_bf16(float_bits_to_bf16(float_bits_to(0x7f800001)))));
}

/* One tensor of n elements of a type, at an odd address. */
static safetensors *open_values(const char *dtype, size_t element_bytes, const void *values, int n, uint8_t **data)
{
    char header[256];
    size_t bytes, length;
    safetensors *file;
    length = (size_t)snprintf(header, sizeof header, "{" ENTRY("w", "%s", "[%d]", "[0,%zu]") "}", dtype, n,
                              (size_t)n * element_bytes);
    while ((length + 8) % 2 == 0) {
        header[length++] = ' ';
        header[length] = '\0';
    }
    *data = make_file(header, (size_t)n * element_bytes, &bytes);
    memcpy(*data + bytes - (size_t)n * element_bytes, values, (size_t)n * element_bytes);
    assert_ok(safetensors_open_memory("values", *data, bytes, &file));
    return file;
}

static void slices_are_converted_from_every_float_type_to_every_other(void **state)
{
    (void)state;
    enum { N = 2500 }; /* more than two chunks of the conversion */
    static const struct {
        const char *name;
        fsdp_dtype dtype;
        size_t bytes;
    } types[] = {{"F32", FSDP_F32, 4}, {"F64", FSDP_F64, 8}, {"BF16", FSDP_BF16, 2}, {"F16", FSDP_F16, 2}};
    static float numbers[N];
    static uint8_t source[8 * N], sink[8 * N];
    for (int i = 0; i < N; i++) /* exact in all four types */
        numbers[i] = (float)((i * 37 % 255) - 127) / 64.0f;
    for (int from = 0; from < 4; from++) {
        for (int i = 0; i < N; i++) {
            uint16_t bf16 = float_bits_to_bf16(numbers[i]), f16 = float_bits_to_f16(numbers[i]);
            double wide = numbers[i];
            const void *element = from == 0   ? (void *)&numbers[i]
                                  : from == 1 ? (void *)&wide
                                  : from == 2 ? (void *)&bf16
                                              : (void *)&f16;
            memcpy(source + (size_t)i * types[from].bytes, element, types[from].bytes);
        }
        uint8_t *data;
        safetensors *file = open_values(types[from].name, types[from].bytes, source, N, &data);
        const safetensors_tensor *tensor = safetensors_find(file, "w");
        for (int to = 0; to < 4; to++) {
            int first = 17, n = N - 17 - 5;
            memset(sink, 0xee, sizeof sink);
            assert_ok(safetensors_read(tensor, first, n, types[to].dtype, sink));
            for (int i = 0; i < n; i++) {
                double got = to == 0   ? ((float *)(void *)sink)[i]
                             : to == 1 ? ((double *)(void *)sink)[i]
                             : to == 2 ? float_bits_from_bf16(((uint16_t *)(void *)sink)[i])
                                       : float_bits_from_f16(((uint16_t *)(void *)sink)[i]);
                assert_true(got == numbers[first + i]);
            }
            assert_int_equal(sink[(size_t)n * types[to].bytes], 0xee);
        }
        safetensors_close(file);
        free(data);
    }
}

static void a_finite_f64_does_not_become_infinite(void **state)
{
    (void)state;
    const double source[] = {0.1, INFINITY, -3.4028234663852886e38, 1e300};
    static const fsdp_dtype narrow[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    float sink[4];
    uint8_t *data;
    safetensors *file = open_values("F64", 8, source, 4, &data);
    const safetensors_tensor *tensor = safetensors_find(file, "w");
    assert_ok(safetensors_read(tensor, 0, 3, FSDP_F32, sink));
    assert_true(isinf(sink[1]) && sink[2] == -FLT_MAX);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(safetensors_read(tensor, 1, 3, narrow[i], sink), FSDP_ERR_INPUT);
        assert_non_null(strstr(fsdp_last_error(), "tensor w: element 3 is 1e+300"));
    }
    safetensors_close(file);
    free(data);
}

static void whole_numbers_are_read_from_i64_i32_and_u8(void **state)
{
    (void)state;
    int64_t wide[] = {0, -1, INT64_MAX, 5}, out[4];
    int32_t narrow[] = {0, -1, INT32_MAX, 5};
    uint8_t small[] = {0, 255, 128, 5}, *data;
    float number;
    safetensors *file = open_values("I64", 8, wide, 4, &data);
    assert_ok(safetensors_read_i64(safetensors_at(file, 0), 1, 3, out));
    assert_memory_equal(out, wide + 1, 24);
    assert_fails(FSDP_ERR_INPUT, safetensors_read_f32(safetensors_at(file, 0), 0, 1, &number), "values", "w", "I64");
    safetensors_close(file);
    free(data);
    file = open_values("I32", 4, narrow, 4, &data);
    assert_ok(safetensors_read_i64(safetensors_at(file, 0), 1, 3, out));
    assert_true(out[0] == -1 && out[1] == INT32_MAX && out[2] == 5);
    safetensors_close(file);
    free(data);
    file = open_values("U8", 1, small, 4, &data);
    assert_ok(safetensors_read_i64(safetensors_at(file, 0), 1, 3, out));
    assert_true(out[0] == 255 && out[1] == 128 && out[2] == 5);
    safetensors_close(file);
    free(data);
}

static void slices_out_of_range_are_refused(void **state)
{
    (void)state;
    static const int64_t slices[][2] = {{0, 5}, {4, 1},         {5, 0},         {-1, 1},        {0, -1},
                                        {3, 2}, {1, INT64_MAX}, {INT64_MAX, 1}, {INT64_MIN, 1}, {INT64_MAX, INT64_MAX}};
    float values[4] = {1, 2, 3, 4}, out[4];
    int64_t whole[4];
    uint8_t *data;
    safetensors *file = open_values("F32", 4, values, 4, &data);
    for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) {
        assert_fails(FSDP_ERR_INPUT, safetensors_read_f32(safetensors_at(file, 0), slices[i][0], slices[i][1], out),
                     "values", "tensor w has 4 elements");
        assert_int_equal(safetensors_read_i64(safetensors_at(file, 0), slices[i][0], slices[i][1], whole),
                         FSDP_ERR_INPUT);
    }
    assert_ok(safetensors_read_f32(safetensors_at(file, 0), 4, 0, out));
    safetensors_close(file);
    free(data);
}

static void shapes_are_cut_to_fit(void **state)
{
    (void)state;
    char text[6];
    assert_string_equal(safetensors_shape_text(2, (int64_t[]){12345, 6}, text, sizeof text), "[1234");
    assert_string_equal(safetensors_shape_text(0, NULL, text, sizeof text), "[]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name_and_listed_in_data_order),
        cmocka_unit_test(a_file_without_tensors_is_legal),
        cmocka_unit_test(many_tensors_are_all_found),
        cmocka_unit_test(foreign_types_are_listed_and_refused_when_read),
        cmocka_unit_test(lying_entries_are_refused_with_file_and_tensor_named),
        cmocka_unit_test(lying_header_lengths_are_refused),
        cmocka_unit_test(truncation_at_every_byte_is_refused),
        cmocka_unit_test(flipped_bits_are_refused_or_harmless),
        cmocka_unit_test(an_absent_file_or_a_folder_is_refused_with_its_path),
        cmocka_unit_test(every_f16_is_converted_exactly_both_ways),
        cmocka_unit_test(fp32_is_rounded_to_the_nearest_even_f16),
        cmocka_unit_test(fp32_is_rounded_to_the_nearest_even_bf16),
        cmocka_unit_test(slices_are_converted_from_every_float_type_to_every_other),
        cmocka_unit_test(a_finite_f64_does_not_become_infinite),
        cmocka_unit_test(whole_numbers_are_read_from_i64_i32_and_u8),
        cmocka_unit_test(slices_out_of_range_are_refused),
        cmocka_unit_test(shapes_are_cut_to_fit),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
