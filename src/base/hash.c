/* FNV-1a and XXH64, by their published definitions, on little-endian machines. */
#include "base/hash.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const uint64_t FNV_PRIME = 0x100000001b3ull;

uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * FNV_PRIME;
    return hash;
}

uint64_t hash_text(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text));
}

uint64_t hash_u64(uint64_t hash, uint64_t value)
{
    for (int i = 0; i < 64; i += 8)
        hash = (hash ^ (uint8_t)(value >> i)) * FNV_PRIME;
    return hash;
}

#define PRIME_1 0x9E3779B185EBCA87ull
#define PRIME_2 0xC2B2AE3D27D4EB4Full
#define PRIME_3 0x165667B19E3779F9ull
#define PRIME_4 0x85EBCA77C2B2AE63ull
#define PRIME_5 0x27D4EB2F165667C5ull

enum { STRIPE_BYTES = 32 };

static inline uint64_t rotate_left(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checksums are of little-endian data");

static inline uint64_t load_u64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint32_t load_u32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t lane_add(uint64_t lane, uint64_t input)
{
    return rotate_left(lane + input * PRIME_2, 31) * PRIME_1;
}

static const uint8_t *add_stripes(uint64_t lanes[4], const uint8_t *p, size_t n_stripes)
{
    uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
    for (size_t i = 0; i < n_stripes; i++, p += STRIPE_BYTES) {
        a = lane_add(a, load_u64(p));
        b = lane_add(b, load_u64(p + 8));
        c = lane_add(c, load_u64(p + 16));
        d = lane_add(d, load_u64(p + 24));
    }
    lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
    return p;
}

void hash_stream_start(hash_stream *s)
{
    *s = (hash_stream){.lanes = {PRIME_1 + PRIME_2, PRIME_2, 0, 0 - PRIME_1}};
}

void hash_stream_add(hash_stream *s, const void *data, size_t bytes)
{
    if (bytes == 0)
        return;
    const uint8_t *p = data, *end = p + bytes;
    s->total += bytes;
    if (s->tail_bytes) {
        size_t wanted = STRIPE_BYTES - s->tail_bytes;
        size_t taken = bytes < wanted ? bytes : wanted;
        memcpy(s->tail + s->tail_bytes, p, taken);
        s->tail_bytes += taken;
        p += taken;
        if (s->tail_bytes < STRIPE_BYTES)
            return;
        add_stripes(s->lanes, s->tail, 1);
    }
    p = add_stripes(s->lanes, p, (size_t)(end - p) / STRIPE_BYTES);
    s->tail_bytes = (size_t)(end - p);
    memcpy(s->tail, p, s->tail_bytes);
}

/* The four lanes become one number; inputs shorter than a stripe never used them. */
static uint64_t lanes_merge(const hash_stream *s)
{
    if (s->total < STRIPE_BYTES)
        return PRIME_5;
    const uint64_t *v = s->lanes;
    uint64_t h = rotate_left(v[0], 1) + rotate_left(v[1], 7) + rotate_left(v[2], 12) + rotate_left(v[3], 18);
    for (int i = 0; i < 4; i++)
        h = (h ^ lane_add(0, v[i])) * PRIME_1 + PRIME_4;
    return h;
}

uint64_t hash_stream_end(const hash_stream *s)
{
    uint64_t h = lanes_merge(s) + s->total;
    const uint8_t *p = s->tail, *end = p + s->tail_bytes;
    for (; end - p >= 8; p += 8)
        h = rotate_left(h ^ lane_add(0, load_u64(p)), 27) * PRIME_1 + PRIME_4;
    if (end - p >= 4) {
        h = rotate_left(h ^ load_u32(p) * PRIME_1, 23) * PRIME_2 + PRIME_3;
        p += 4;
    }
    for (; p < end; p++)
        h = rotate_left(h ^ *p * PRIME_5, 11) * PRIME_1;
    h = (h ^ h >> 33) * PRIME_2;
    h = (h ^ h >> 29) * PRIME_3;
    return h ^ h >> 32;
}

/* ---- Several at once ---- */

#if defined(__x86_64__)

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

#define WIDE __attribute__((target("avx512f,avx512dq")))

/* `n_pairs` vectors, each the four lanes of two streams; a constant where it is called, so all stay in registers. */
static inline __attribute__((always_inline)) WIDE void
add_stripes_paired(hash_stream *const *streams, const uint8_t **p, size_t n_stripes, int n_pairs)
{
    const __m512i first = _mm512_set1_epi64((long long)PRIME_1), second = _mm512_set1_epi64((long long)PRIME_2);
    __m512i lanes[HASH_ABREAST / 2];
    for (int i = 0; i < n_pairs; i++)
        lanes[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((void *)streams[2 * i]->lanes)),
                                      _mm256_loadu_si256((void *)streams[2 * i + 1]->lanes), 1);
    for (size_t at = 0; at < n_stripes * STRIPE_BYTES; at += STRIPE_BYTES) {
        for (int i = 0; i < n_pairs; i++) {
            __m512i input =
                _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)(p[2 * i] + at))),
                                   _mm256_loadu_si256((const void *)(p[2 * i + 1] + at)), 1);
            lanes[i] = _mm512_add_epi64(lanes[i], _mm512_mullo_epi64(input, second));
            lanes[i] = _mm512_mullo_epi64(_mm512_rol_epi64(lanes[i], 31), first);
        }
    }
    for (int i = 0; i < n_pairs; i++) {
        _mm256_storeu_si256((void *)streams[2 * i]->lanes, _mm512_castsi512_si256(lanes[i]));
        _mm256_storeu_si256((void *)streams[2 * i + 1]->lanes, _mm512_extracti64x4_epi64(lanes[i], 1));
    }
}

static WIDE void add_stripes_to_8(hash_stream *const *streams, const uint8_t **p, size_t n_stripes)
{
    add_stripes_paired(streams, p, n_stripes, 4);
}

static WIDE void add_stripes_to_4(hash_stream *const *streams, const uint8_t **p, size_t n_stripes)
{
    add_stripes_paired(streams, p, n_stripes, 2);
}

/* Brings every stream to the start of a stripe, adds the stripes that all have together, and the rest one by one. */
static void add_together(hash_stream *const *streams, const void *const *data, const size_t *bytes, int n)
{
    const uint8_t *p[HASH_ABREAST];
    size_t left[HASH_ABREAST], n_stripes = SIZE_MAX;
    for (int i = 0; i < n; i++) {
        size_t wanted = streams[i]->tail_bytes ? STRIPE_BYTES - streams[i]->tail_bytes : 0;
        size_t taken = min_size(wanted, bytes[i]);
        hash_stream_add(streams[i], data[i], taken);
        p[i] = (const uint8_t *)data[i] + taken;
        left[i] = bytes[i] - taken;
        n_stripes = min_size(n_stripes, left[i] / STRIPE_BYTES);
    }
    if (n_stripes > 0)
        (n == 8 ? add_stripes_to_8 : add_stripes_to_4)(streams, p, n_stripes);
    for (int i = 0; i < n; i++) {
        streams[i]->total += n_stripes * STRIPE_BYTES;
        hash_stream_add(streams[i], p[i] + n_stripes * STRIPE_BYTES, left[i] - n_stripes * STRIPE_BYTES);
    }
}

/* How many of the streams were served. */
static int add_abreast(hash_stream *const *streams, const void *const *data, const size_t *bytes, int n)
{
    int done = 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq"))
        return 0;
    for (; n - done >= 8; done += 8)
        add_together(streams + done, data + done, bytes + done, 8);
    for (; n - done >= 4; done += 4)
        add_together(streams + done, data + done, bytes + done, 4);
    return done;
}

#else

static int add_abreast(hash_stream *const *streams, const void *const *data, const size_t *bytes, int n)
{
    (void)streams, (void)data, (void)bytes, (void)n;
    return 0;
}

#endif

void hash_streams_add(hash_stream *const *streams, const void *const *data, const size_t *bytes, int n)
{
    for (int i = add_abreast(streams, data, bytes, n); i < n; i++)
        hash_stream_add(streams[i], data[i], bytes[i]);
}
