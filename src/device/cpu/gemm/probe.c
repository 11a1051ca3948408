/* Finds out whether AMX really works here: CPUID and the system may promise tiles that a hypervisor then refuses. The
 * first try is a forked child's; only when it comes back with the right sums do we ask for tiles ourselves. */
#include "device/cpu/gemm/probe.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm/blocked.h"
#include "device/cpu/gemm/convert.h"

/* Two tiles and a bit each way, an odd depth over several k_step; and whole tiles across with a depth for which rows
 * stay in place and sums go straight into the result. */
enum { PROBE_M = 67, PROBE_N = 65, PROBE_K = 555, PLAIN_N = 64, PLAIN_K = 96, PROBES = 3 };

typedef struct probe_case {
    uint16_t a[PROBE_M * PROBE_K], b[PROBE_K * PROBE_N];
    float result[PROBE_M * PROBE_N], expected[PROBE_M * PROBE_N];
} probe_case;

static void probe_fill(probe_case *c)
{
    uint32_t state = 12345;
    for (int i = 0; i < PROBE_M * PROBE_K; i++) {
        state = state * 1664525u + 1013904223u;
        c->a[i] = float_bits_to_bf16((float)(int)(state >> 28) - 8.0f);
    }
    for (int i = 0; i < PROBE_K * PROBE_N; i++) {
        state = state * 1664525u + 1013904223u;
        c->b[i] = float_bits_to_bf16((float)(int)(state >> 28) - 8.0f);
    }
}

static gemm_args probe_arguments(probe_case *c, int which, float *out)
{
    bool transpose = which == 1, plain = which == 2;
    gemm_args g = {.transpose_a = transpose, .transpose_b = !transpose, .m = PROBE_M, .n = PROBE_N, .k = PROBE_K};
    if (plain)
        g.n = PLAIN_N, g.k = PLAIN_K;
    g.alpha = 1.0f;
    g.batch = 1;
    g.a = (buffer){c->a, FSDP_BF16};
    g.b = (buffer){c->b, FSDP_BF16};
    g.c = g.d = (buffer){out, FSDP_F32};
    g.lda = transpose ? PROBE_M : PROBE_K;
    g.ldb = transpose ? PROBE_N : PROBE_K;
    g.ldc = g.ldd = PROBE_N;
    return g;
}

/* Runs one kernel on one thread; no OpenMP, so that a forked child may. */
static bool probe_run(const gemm_kernel *kernel, gemm_args g, void *workspace, size_t bytes)
{
    if (gemm_blocked_workspace(kernel, 1, &g) > bytes)
        return false;
    g.workspace = workspace;
    gemm_blocked(kernel, 1, &g);
    return true;
}

static bool probe_compare(const gemm_kernel *kernel, probe_case *c, void *workspace, size_t bytes)
{
    for (int i = 0; i < PROBES; i++) {
        if (!probe_run(kernel, probe_arguments(c, i, c->result), workspace, bytes) ||
            !probe_run(&gemm_portable, probe_arguments(c, i, c->expected), workspace, bytes) ||
            memcmp(c->result, c->expected, sizeof c->result) != 0)
            return false;
    }
    return true;
}

enum { PROBE_WORKSPACE = 4 << 20, PROBE_SECONDS = 10 };

bool gemm_probe_kernel(const gemm_kernel *kernel)
{
    probe_case *c = calloc(1, sizeof *c);
    void *workspace = NULL;
    bool good = false;
    if (c && posix_memalign(&workspace, 256, PROBE_WORKSPACE) == 0) {
        probe_fill(c);
        good = probe_compare(kernel, c, workspace, PROBE_WORKSPACE);
    }
    free(workspace);
    free(c);
    return good;
}

#if defined(__x86_64__)

/* Waits for the child, not for ever. NULL when it found the sums right. */
static const char *child_verdict(pid_t child)
{
    const struct timespec pause = {0, 2 * 1000 * 1000};
    int status = 0;
    for (int i = 0; i < PROBE_SECONDS * 500; i++) {
        pid_t done = waitpid(child, &status, WNOHANG);
        if (done < 0 && errno != EINTR)
            return "its trial could not be watched";
        if (done == child) {
            if (WIFSIGNALED(status))
                return "its trial was killed by an illegal instruction or another signal";
            return WEXITSTATUS(status) == 0 ? NULL : "its trial gave wrong sums or was refused the tiles";
        }
        nanosleep(&pause, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return "its trial did not end";
}

static const char *try_amx(void)
{
    if (!cpu_features_get()->amx_bf16)
        return "this processor, or its system, has no AMX with bf16";
    pid_t child = fork();
    if (child < 0)
        return "no process could be started to try it";
    if (child == 0) {
        signal(SIGILL, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        _exit(cpu_features_request_tiles() && gemm_probe_kernel(&amx_bf16) ? 0 : 1);
    }
    const char *reason = child_verdict(child);
    if (reason)
        return reason;
    if (!cpu_features_request_tiles())
        return "the system refuses the tiles";
    return gemm_probe_kernel(&amx_bf16) ? NULL : "it gave wrong sums";
}

#else

static const char *try_amx(void)
{
    return "this is no x86-64 processor";
}

#endif

/* Written once under pthread_once, read-only afterwards. */
static const char *amx_reason;

static void try_amx_once(void)
{
    amx_reason = try_amx();
}

const char *gemm_probe_amx(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, try_amx_once);
    return amx_reason;
}
