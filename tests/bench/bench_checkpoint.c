/* Times checkpoints beside what the machine does with the same bytes: a save beside a plain write and fsync, a load
 * beside a plain read, and the pause of an asynchronous save beside one memcpy.
 *
 *     bench_checkpoint [--json] [--best] [--parameters MILLIONS] [--directory DIR] [--rounds R]
 *
 * The state is that of a decoder with the given number of parameters (default 100 million) and AdamW: three times its
 * fp32 size, held by one rank. Contenders take turns in every round; figures are medians, or with
 * --best those of the quickest round (for machines that others use too). Reads and loads are timed twice: from the
 * disk, the cache dropped before, and from the page cache. Beside the clock's seconds stand those of processors, which
 * other work on the machine does not change; with OMP_NUM_THREADS=1 their ratio is what one thread would reach. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "ckpt/load/load.h"
#include "ckpt/save/save.h"

enum { MAX_TENSORS = 4096, MAX_ROUNDS = 51, BLOCK_BYTES = 4 << 20 };
/* What is saved once is read so often: the first time the page cache may get memory that a virtual machine must get
 * from its host first. */
enum { READS = 3, MAX_SAMPLES = READS * MAX_ROUNDS };

typedef struct options {
    bool json, best;
    int64_t parameters;
    const char *directory;
    int rounds;
} options;

typedef struct model {
    ckpt_state state;
    ckpt_tensor tensors[MAX_TENSORS];
    ckpt_slice slices[MAX_TENSORS];
    char names[MAX_TENSORS][64];
    float *memory;
    int64_t numel;
} model;

typedef enum contender {
    PLAIN_WRITE,
    SAVE,
    COLD_READ,
    COLD_LOAD,
    WARM_READ,
    WARM_LOAD,
    MEMCPY,
    PAUSE,
    N_CONTENDERS
} contender;

static const char *const contender_names[] = {"plain write", "save", "plain read, cold", "load, cold",
                                              "plain read",  "load", "memcpy",           "async pause"};

/* By the clock, and of all processors in this process and the kernel for it. */
typedef struct timing {
    double wall, cpu;
} timing;

typedef struct timings {
    int n_samples;
    timing samples[MAX_SAMPLES];
} timings;

static void record(timings *t, timing sample)
{
    t->samples[t->n_samples++] = sample;
}

static timing now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (timing){.wall = clock_seconds(), .cpu = (double)t.tv_sec + (double)t.tv_nsec * 1e-9};
}

static timing since(timing began)
{
    timing end = now();
    return (timing){.wall = end.wall - began.wall, .cpu = end.cpu - began.cpu};
}

static void fail(const char *what)
{
    fprintf(stderr, "bench_checkpoint: %s: %s\n", what, fsdp_last_error());
    exit(1);
}

static void add(model *m, ckpt_role role, int layer, const char *name, int64_t rows, int64_t columns)
{
    int i = m->state.n_tensors++;
    snprintf(m->names[i], sizeof m->names[i], "model.layers.%d.%s", layer, name);
    m->tensors[i] = (ckpt_tensor){.name = m->names[i], .role = role, .n_dims = 2, .shape = {rows, columns}};
    m->slices[i] = (ckpt_slice){.tensor = i, .count = rows * columns, .writes = true};
    m->numel += rows * columns;
}

/* Layers of width 768 until the parameters are reached, each once as value and twice as moment. */
static model *model_make(int64_t parameters)
{
    static const ckpt_role roles[] = {CKPT_PARAMETER, CKPT_MOMENT1, CKPT_MOMENT2};
    model *m = calloc(1, sizeof *m);
    int layers = (int)ceil_div(parameters, 4 * 768 * 768 + 3 * 768 * 2048 + 768);
    m->state = (ckpt_state)CKPT_STATE_INIT;
    m->state.tensors = m->tensors;
    m->state.slices = m->slices;
    for (int r = 0; r < 3; r++)
        for (int layer = 0; layer < layers && m->state.n_tensors + 4 < MAX_TENSORS; layer++) {
            add(m, roles[r], layer, "self_attn.weight", 4 * 768, 768);
            add(m, roles[r], layer, "mlp.up_proj.weight", 2 * 2048, 768);
            add(m, roles[r], layer, "mlp.down_proj.weight", 768, 2048);
            add(m, roles[r], layer, "norm.weight", 1, 768);
        }
    m->state.n_slices = m->state.n_tensors;
    m->memory = mmap(NULL, (size_t)m->numel * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(m->memory, (size_t)m->numel * 4, MADV_HUGEPAGE);
    int64_t at = 0;
    for (int i = 0; i < m->state.n_slices; i++) {
        m->slices[i].data = m->memory + at;
        at += m->slices[i].count;
    }
    for (int64_t i = 0; i < m->numel; i++)
        m->memory[i] = (float)(i * 2654435761u % 1000003);
    return m;
}

/* ---- Contenders ---- */

static timing plain_write(const model *m, const char *path)
{
    timing began = now();
    const uint8_t *p = (const uint8_t *)m->memory;
    size_t left = (size_t)m->numel * 4;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    while (fd >= 0 && left > 0) {
        ssize_t written = write(fd, p, left < BLOCK_BYTES ? left : BLOCK_BYTES);
        if (written <= 0)
            fail("plain write");
        p += written;
        left -= (size_t)written;
    }
    if (fd < 0 || fsync(fd) != 0)
        fail("plain write");
    close(fd);
    return since(began);
}

static timing plain_read(const model *m, const char *path)
{
    timing began = now();
    uint8_t *p = (uint8_t *)m->memory;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY);
    for (; fd >= 0 && got > 0; p += got)
        got = read(fd, p, BLOCK_BYTES);
    close(fd);
    return since(began);
}

/* So that the next read comes from the disk, as after a restart. */
static void drop_cache(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        fail("dropping the cache");
    close(fd);
}

static timing save(const model *m, const ckpt_save_config *config)
{
    timing began = now();
    if (ckpt_save(config, &m->state, NULL, NULL) != FSDP_OK)
        fail("save");
    return since(began);
}

static timing load(const model *m, const char *directory)
{
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    timing began = now();
    if (ckpt_resume(directory, &config, &m->state, NULL, &result) != FSDP_OK || result.step < 0)
        fail("load");
    ckpt_load_result_free(&result);
    return since(began);
}

static timing pause_of(const model *m, ckpt_saver *saver, const ckpt_save_config *config)
{
    timing began = now();
    if (ckpt_saver_start(saver, config, &m->state, NULL) != FSDP_OK)
        fail("asynchronous save");
    timing paused = since(began);
    if (ckpt_saver_wait(saver, NULL, NULL) != FSDP_OK)
        fail("asynchronous save");
    return paused;
}

/* ---- Rounds ---- */

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* Of one of the timings' figures: the median, or the least. */
static double typical(const options *o, const timings *t, bool cpu)
{
    double values[MAX_SAMPLES];
    for (int i = 0; i < t->n_samples; i++)
        values[i] = cpu ? t->samples[i].cpu : t->samples[i].wall;
    qsort(values, (size_t)t->n_samples, sizeof *values, by_value);
    return values[o->best ? 0 : t->n_samples / 2];
}

static void remove_step(const char *directory, int step)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/step-%08d", directory, step);
    if (step >= 0)
        file_remove_tree(path);
}

static void run_round(const options *o, const model *m, ckpt_saver *saver, float *copy, const char *plain, int round,
                      timings *seconds)
{
    size_t bytes = (size_t)m->numel * 4;
    char shard[1200];
    ckpt_save_config config = CKPT_SAVE_CONFIG_INIT;
    config.directory = o->directory;
    config.step = round;
    /* What both leave behind is removed beforehand: freeing a gigabyte on disk takes its time. */
    unlink(plain);
    remove_step(o->directory, round - 1);
    record(&seconds[PLAIN_WRITE], plain_write(m, plain));
    record(&seconds[SAVE], save(m, &config));
    snprintf(shard, sizeof shard, "%s/step-%08d/rank-00000.safetensors", o->directory, round);
    for (int i = 0; i < READS; i++) {
        drop_cache(plain);
        record(&seconds[COLD_READ], plain_read(m, plain));
        drop_cache(shard);
        record(&seconds[COLD_LOAD], load(m, o->directory));
        record(&seconds[WARM_READ], plain_read(m, plain));
        record(&seconds[WARM_LOAD], load(m, o->directory));
    }
    timing began = now();
    memcpy(copy, m->memory, bytes);
    record(&seconds[MEMCPY], since(began));
    remove_step(o->directory, round);
    record(&seconds[PAUSE], pause_of(m, saver, &config));
}

/* Save, cold load, load: the plain way's time over ours. Pause: its time over memcpy's. */
static void ratios_of(const double *seconds, double *ratios)
{
    ratios[0] = seconds[PLAIN_WRITE] / seconds[SAVE];
    ratios[1] = seconds[COLD_READ] / seconds[COLD_LOAD];
    ratios[2] = seconds[WARM_READ] / seconds[WARM_LOAD];
    ratios[3] = seconds[PAUSE] / seconds[MEMCPY];
}

static void print(const options *o, int64_t bytes, timings *seconds)
{
    static const char *const ratio_names[] = {"save ratio", "cold load ratio", "load ratio", "pause ratio"};
    double wall[N_CONTENDERS], cpu[N_CONTENDERS], ratios[4], cpu_ratios[4];
    for (int i = 0; i < N_CONTENDERS; i++) {
        wall[i] = typical(o, &seconds[i], false);
        cpu[i] = typical(o, &seconds[i], true);
    }
    ratios_of(wall, ratios);
    ratios_of(cpu, cpu_ratios);
    if (o->json) {
        printf("{\"bytes\": %lld", (long long)bytes);
        for (int i = 0; i < N_CONTENDERS; i++)
            printf(", \"%s\": %.6f, \"%s, cpu\": %.6f", contender_names[i], wall[i], contender_names[i], cpu[i]);
        for (int i = 0; i < 4; i++)
            printf(", \"%s\": %.3f, \"%s, cpu\": %.3f", ratio_names[i], ratios[i], ratio_names[i], cpu_ratios[i]);
        printf("}\n");
        return;
    }
    printf("%.1f MiB, %d rounds\n", (double)bytes / 1048576, o->rounds);
    for (int i = 0; i < N_CONTENDERS; i++)
        printf("  %-16s %8.3f s  %7.2f GB/s  %8.3f cpu s\n", contender_names[i], wall[i], (double)bytes / wall[i] / 1e9,
               cpu[i]);
    printf("save / plain write %.2f, load / plain read %.2f (from the page cache %.2f), async pause %.2f memcpy\n",
           ratios[0], ratios[1], ratios[2], ratios[3]);
    printf("by processor time  %.2f, %.2f (%.2f), %.2f\n", cpu_ratios[0], cpu_ratios[1], cpu_ratios[2], cpu_ratios[3]);
}

static options parse(int argc, char **argv)
{
    options o = {.parameters = 100000000, .directory = "bench-checkpoint.tmp", .rounds = 5};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            o.json = true;
        else if (strcmp(argv[i], "--best") == 0)
            o.best = true;
        else if (strcmp(argv[i], "--parameters") == 0 && i + 1 < argc)
            o.parameters = (int64_t)(atof(argv[++i]) * 1e6);
        else if (strcmp(argv[i], "--directory") == 0 && i + 1 < argc)
            o.directory = argv[++i];
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            o.rounds = atoi(argv[++i]);
    }
    o.rounds = o.rounds < 1 ? 1 : o.rounds > MAX_ROUNDS ? MAX_ROUNDS : o.rounds;
    return o;
}

int main(int argc, char **argv)
{
    static timings seconds[N_CONTENDERS];
    options o = parse(argc, argv);
    model *m = model_make(o.parameters);
    int64_t bytes = m->numel * 4;
    ckpt_saver *saver;
    char *plain = file_join(o.directory, "plain");
    float *copy = malloc((size_t)bytes);
    if (!plain || !copy || file_make_directories(o.directory) != FSDP_OK ||
        ckpt_saver_create(&m->state, false, &saver) != FSDP_OK)
        fail("start");
    memset(copy, 0, (size_t)bytes);
    for (int round = 0; round < o.rounds; round++)
        run_round(&o, m, saver, copy, plain, round, seconds);
    print(&o, bytes, seconds);
    ckpt_saver_free(saver);
    file_remove_tree(o.directory);
    free(copy);
    free(plain);
    munmap(m->memory, (size_t)bytes);
    free(m);
    return 0;
}
