/* CPUID, XCR0 and the tile permission. Decides nothing: gemm/gemm.c draws the conclusions. */
#include "device/cpu/cpu_features.h"

#include <pthread.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REQUEST_XSTATE_PERMISSION = 0x1023, XSTATE_TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM of arch_prctl(2) */

static const uint64_t avx512_state = 0xe6; /* SSE, AVX, opmask, upper halves, upper registers */
static const uint64_t tile_state = 3u << 17;

typedef struct leaf {
    uint32_t a, b, c, d;
} leaf;

static leaf ask(uint32_t number, uint32_t part)
{
    leaf l = {0, 0, 0, 0};
    if (!__get_cpuid_count(number, part, &l.a, &l.b, &l.c, &l.d))
        return (leaf){0, 0, 0, 0};
    return l;
}

static uint64_t enabled_state(void)
{
    uint32_t low, high;
    if (!(ask(1, 0).c & bit_OSXSAVE))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool vendor_is_amd(void)
{
    leaf l = ask(0, 0);
    return (l.b == signature_AMD_ebx && l.d == signature_AMD_edx && l.c == signature_AMD_ecx) ||
           (l.b == 0x6f677948 && l.d == 0x6e65476e && l.c == 0x656e6975); /* HygonGenuine */
}

static void detect(cpu_features *f)
{
    uint64_t state = enabled_state();
    leaf l7 = ask(7, 0), l71 = ask(7, 1), tiles = ask(0x1d, 1);
    uint32_t wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    f->avx512 = (l7.b & wanted) == wanted && (state & avx512_state) == avx512_state;
    f->avx512_bf16 = f->avx512 && (l71.a & (1u << 5));
    f->avx512_bf16_fast = f->avx512_bf16 && vendor_is_amd();
    bool tile_bits = (l7.d & (1u << 24)) && (l7.d & (1u << 22));
    f->amx_bf16 = f->avx512 && tile_bits && (state & tile_state) == tile_state;
    /* Palette 1: 8 KiB of tiles of 1 KiB, rows of 64 bytes, 8 names, 16 rows. */
    f->amx_palette_listed =
        f->amx_bf16 && tiles.a == (1024u << 16 | 8192u) && tiles.b == (8u << 16 | 64u) && (tiles.c & 0xffffu) == 16;
}

bool cpu_features_request_tiles(void)
{
    return syscall(SYS_arch_prctl, REQUEST_XSTATE_PERMISSION, XSTATE_TILE_DATA) == 0;
}

#else

static void detect(cpu_features *f)
{
    (void)f;
}

bool cpu_features_request_tiles(void)
{
    return false;
}

#endif

/* Written once under pthread_once, read-only afterwards. */
static cpu_features features;

static void detect_once(void)
{
    detect(&features);
}

const cpu_features *cpu_features_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, detect_once);
    return &features;
}
