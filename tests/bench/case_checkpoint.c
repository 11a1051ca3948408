/* Checkpoints beside what the machine does with the same bytes: a save beside a plain write and fsync, a load beside a
 * plain read, and the pause of an asynchronous save beside one memcpy.
 *
 * The state is that of a decoder with --parameters million parameters and AdamW: three times its fp32 size, held by one
 * rank. Contenders take turns in every round; figures are medians, or with --best those of the quickest round (for
 * machines that others use too). Reads and loads are timed twice: from the disk, the cache dropped before, and from the
 * page cache. Beside the clock's seconds stand those of processors, which other work on the machine does not change;
 * with OMP_NUM_THREADS=1 their ratio is what one thread would reach. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "bench.h"
#include "ckpt/load/load.h"
#include "ckpt/save/save.h"

enum { MAX_TENSORS = 4096, BLOCK_BYTES = 4 << 20 };
/* What is saved once is read so often: the first time the page cache may get memory that a virtual machine must get
 * from its host first. */
enum { READS = 3 };

typedef struct options {
    double millions;
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
    m->memory = bench_take((size_t)m->numel * 4);
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

static void plain_write(const model *m, const char *path, bench_times *t)
{
    bench_moment began = bench_now();
    const uint8_t *p = (const uint8_t *)m->memory;
    size_t left = (size_t)m->numel * 4;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    while (fd >= 0 && left > 0) {
        ssize_t written = write(fd, p, left < BLOCK_BYTES ? left : BLOCK_BYTES);
        if (written <= 0)
            bench_fail("plain write");
        p += written;
        left -= (size_t)written;
    }
    if (fd < 0 || fsync(fd) != 0)
        bench_fail("plain write");
    close(fd);
    bench_record(t, began);
}

static void plain_read(const model *m, const char *path, bench_times *t)
{
    bench_moment began = bench_now();
    uint8_t *p = (uint8_t *)m->memory;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY);
    for (; fd >= 0 && got > 0; p += got)
        got = read(fd, p, BLOCK_BYTES);
    close(fd);
    bench_record(t, began);
}

/* So that the next read comes from the disk, as after a restart. */
static void drop_cache(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        bench_fail("dropping the cache");
    close(fd);
}

static void save(const model *m, const ckpt_save_config *config, bench_times *t)
{
    bench_moment began = bench_now();
    if (ckpt_save(config, &m->state, NULL, NULL) != FSDP_OK)
        bench_fail("save");
    bench_record(t, began);
}

static void load(const model *m, const char *directory, bench_times *t)
{
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    bench_moment began = bench_now();
    if (ckpt_resume(directory, &config, &m->state, NULL, &result) != FSDP_OK || result.step < 0)
        bench_fail("load");
    ckpt_load_result_free(&result);
    bench_record(t, began);
}

static void pause_of(const model *m, ckpt_saver *saver, const ckpt_save_config *config, bench_times *t)
{
    bench_moment began = bench_now();
    if (ckpt_saver_start(saver, config, &m->state, NULL) != FSDP_OK)
        bench_fail("asynchronous save");
    bench_record(t, began);
    if (ckpt_saver_wait(saver, NULL, NULL) != FSDP_OK)
        bench_fail("asynchronous save");
}

/* ---- Rounds ---- */

static void remove_step(const char *directory, int step)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/step-%08d", directory, step);
    if (step >= 0)
        file_remove_tree(path);
}

static void run_round(const options *o, const model *m, ckpt_saver *saver, float *copy, const char *plain, int round,
                      bench_times *t)
{
    size_t bytes = (size_t)m->numel * 4;
    char shard[1200];
    ckpt_save_config config = CKPT_SAVE_CONFIG_INIT;
    config.directory = o->directory;
    config.step = round;
    /* What both leave behind is removed beforehand: freeing a gigabyte on disk takes its time. */
    unlink(plain);
    remove_step(o->directory, round - 1);
    plain_write(m, plain, &t[PLAIN_WRITE]);
    save(m, &config, &t[SAVE]);
    snprintf(shard, sizeof shard, "%s/step-%08d/rank-00000.safetensors", o->directory, round);
    for (int i = 0; i < READS; i++) {
        drop_cache(plain);
        plain_read(m, plain, &t[COLD_READ]);
        drop_cache(shard);
        load(m, o->directory, &t[COLD_LOAD]);
        plain_read(m, plain, &t[WARM_READ]);
        load(m, o->directory, &t[WARM_LOAD]);
    }
    bench_moment began = bench_now();
    memcpy(copy, m->memory, bytes);
    bench_record(&t[MEMCPY], began);
    remove_step(o->directory, round);
    pause_of(m, saver, &config, &t[PAUSE]);
}

/* Save, cold load, load: the plain way's time over ours. Pause: its time over memcpy's. */
static void ratios_of(const double *seconds, double *ratios)
{
    ratios[0] = seconds[PLAIN_WRITE] / seconds[SAVE];
    ratios[1] = seconds[COLD_READ] / seconds[COLD_LOAD];
    ratios[2] = seconds[WARM_READ] / seconds[WARM_LOAD];
    ratios[3] = seconds[PAUSE] / seconds[MEMCPY];
}

static void print(int64_t bytes, bench_times *t)
{
    static const char *const ratio_names[] = {"save / plain write", "load / plain read, cold", "load / plain read",
                                              "async pause / memcpy"};
    double wall[N_CONTENDERS], cpu[N_CONTENDERS], ratios[4], cpu_ratios[4];
    for (int i = 0; i < N_CONTENDERS; i++) {
        wall[i] = bench_typical(t[i].wall, t[i].n);
        cpu[i] = bench_typical(t[i].cpu, t[i].n);
        bench_text("what", contender_names[i]);
        bench_number("seconds", 3, wall[i]);
        bench_number("GB/s", 2, (double)bytes / wall[i] / 1e9);
        bench_number("cpu seconds", 3, cpu[i]);
        bench_row();
    }
    ratios_of(wall, ratios);
    ratios_of(cpu, cpu_ratios);
    for (int i = 0; i < 4; i++) {
        bench_text("ratio of speeds (pause: of times)", ratio_names[i]);
        bench_number("ratio", 2, ratios[i]);
        bench_number("by cpu seconds", 2, cpu_ratios[i]);
        bench_row();
    }
}

static int run_checkpoint(int argc, char **argv)
{
    static bench_times times[N_CONTENDERS];
    options o = {.millions = 100, .directory = "bench-checkpoint.tmp", .rounds = 5};
    const bench_option table[] = {{"parameters", BENCH_DOUBLE, &o.millions, 0.1, 1e5},
                                  {"directory", BENCH_TEXT, &o.directory, 0, 0},
                                  {"rounds", BENCH_INT, &o.rounds, 1, BENCH_SAMPLES / READS},
                                  {NULL, BENCH_SWITCH, NULL, 0, 0}};
    ckpt_saver *saver;
    if (!bench_options(argc, argv, table))
        return 2;
    model *m = model_make((int64_t)(o.millions * 1e6));
    int64_t bytes = m->numel * 4;
    char *plain = file_join(o.directory, "plain");
    float *copy = bench_take((size_t)bytes);
    if (!plain || file_make_directories(o.directory) != FSDP_OK ||
        ckpt_saver_create(&m->state, false, &saver) != FSDP_OK)
        bench_fail("start");
    bench_title("%.1f MiB, %d rounds", (double)bytes / 1048576, o.rounds);
    for (int round = 0; round < o.rounds; round++)
        run_round(&o, m, saver, copy, plain, round, times);
    print(bytes, times);
    ckpt_saver_free(saver);
    file_remove_tree(o.directory);
    free(plain);
    bench_give_back(copy, (size_t)bytes);
    bench_give_back(m->memory, (size_t)bytes);
    free(m);
    return 0;
}

const bench_case case_checkpoint = {.name = "checkpoint",
                                    .summary = "saves and loads beside plain writes, reads and copies",
                                    .usage = "[--parameters MILLIONS] [--directory DIR] [--rounds N]",
                                    .run = run_checkpoint};
