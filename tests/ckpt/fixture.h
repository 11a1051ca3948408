/* A small model for checkpoint tests: tensors of odd shapes whose every element is known, cut into slices the ways that
 * sharding strategies do, held in host memory or behind callbacks. */
#ifndef TESTS_CKPT_FIXTURE_H
#define TESTS_CKPT_FIXTURE_H

#include "format/scratch.h"

#include <dirent.h>
#include <omp.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "ckpt/save/directory.h"
#include "ckpt/load/load.h"
#include "ckpt/save/save.h"
#include "comm/ranks.h"

enum { FIXTURE_TENSORS = 64, FIXTURE_SLICES = 512, FIXTURE_BLOCK = 64 };

typedef enum fixture_cut {
    CUT_FLAT,       /* all tensors of a role in one buffer, padded, in equal shards */
    CUT_UNEVEN,     /* the same with shards of different sizes */
    CUT_PER_TENSOR, /* every tensor by itself, as other wrap policies do */
    CUT_REPLICATED, /* everybody has everything; rank 0 writes */
    CUT_HYBRID,     /* sharded in pairs of ranks, replicated across them */
    CUT_COUNT
} fixture_cut;

typedef struct fixture {
    ckpt_state state;
    ckpt_tensor tensors[FIXTURE_TENSORS];
    ckpt_slice slices[FIXTURE_SLICES];
    char names[FIXTURE_TENSORS][80];
    float *memory; /* all slices, one behind the other */
    float *places[FIXTURE_SLICES];
    int n_reads, n_writes; /* calls of the callbacks */
    fsdp_status fail_read; /* what read returns when not FSDP_OK */
} fixture;

/* For tests that load in the process that forks ranks later: OpenMP's threads do not survive a fork. */
static inline int fixture_setup_one_thread(void **state)
{
    omp_set_num_threads(1);
    return scratch_setup(state);
}

/* The element that (role, tensor, index) has after `step`. Any bits may occur, NaN and infinities among them. */
static inline uint32_t fixture_value_bits(const ckpt_tensor *tensor, int64_t index, int64_t step)
{
    uint64_t hash = hash_text(HASH_START, tensor->name);
    hash = (hash ^ (uint64_t)tensor->role * 0x9e3779b97f4a7c15ull ^ (uint64_t)step << 40) + (uint64_t)index;
    hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(hash >> 32);
}

static inline void fixture_add_tensor(fixture *f, ckpt_role role, const char *name, int n_dims, const int64_t *shape)
{
    int i = f->state.n_tensors++;
    snprintf(f->names[i], sizeof f->names[i], "%s", name);
    f->tensors[i] = (ckpt_tensor){.name = f->names[i], .role = role, .n_dims = n_dims};
    for (int k = 0; k < n_dims; k++)
        f->tensors[i].shape[k] = shape[k];
}

/* Parameters and their moments, a buffer, a scalar, an empty tensor, and one that spans several pieces' worth of
 * shards. */
static inline void fixture_add_tensors(fixture *f, int64_t width)
{
    static const ckpt_role roles[] = {CKPT_PARAMETER, CKPT_MOMENT1, CKPT_MOMENT2};
    for (size_t r = 0; r < 3; r++) {
        fixture_add_tensor(f, roles[r], "model.embed_tokens.weight", 2, (int64_t[]){97, width});
        fixture_add_tensor(f, roles[r], "model.layers.0.mlp.up_proj.weight", 2, (int64_t[]){width, 13});
        fixture_add_tensor(f, roles[r], "model.layers.0.norm.weight", 1, (int64_t[]){width});
        fixture_add_tensor(f, roles[r], "model.layers.0.gate", 0, NULL);
        fixture_add_tensor(f, roles[r], "model.layers.1.mlp.up_proj.weight", 3, (int64_t[]){2, width, 5});
        fixture_add_tensor(f, roles[r], "model.layers.1.empty", 2, (int64_t[]){0, width});
    }
    fixture_add_tensor(f, CKPT_BUFFER, "model.running_mean", 1, (int64_t[]){7});
}

static inline void fixture_add_slice(fixture *f, int tensor, int64_t first, int64_t end, bool writes)
{
    if (first >= end)
        return;
    assert_true(f->state.n_slices < FIXTURE_SLICES);
    f->slices[f->state.n_slices++] =
        (ckpt_slice){.tensor = tensor, .first = first, .count = end - first, .writes = writes};
}

/* The tensors of one role, laid out behind each other on blocks, cut at shard `rank` of `n`. */
static inline void fixture_cut_flat(fixture *f, ckpt_role role, int rank, int n, bool uneven, bool writes)
{
    int64_t total = 0;
    for (int i = 0; i < f->state.n_tensors; i++)
        if (f->tensors[i].role == role)
            total += (int64_t)round_up((size_t)ckpt_tensor_numel(&f->tensors[i]), FIXTURE_BLOCK);
    int64_t blocks = total / FIXTURE_BLOCK;
    int64_t share = uneven ? (int64_t)n * (n + 1) / 2 : n, begin_share = uneven ? (int64_t)rank * (rank + 1) / 2 : rank;
    int64_t end_share = uneven ? (int64_t)(rank + 1) * (rank + 2) / 2 : rank + 1;
    int64_t begin = blocks * begin_share / share * FIXTURE_BLOCK, end = blocks * end_share / share * FIXTURE_BLOCK;
    int64_t offset = 0;
    for (int i = 0; i < f->state.n_tensors; i++) {
        if (f->tensors[i].role != role)
            continue;
        int64_t numel = ckpt_tensor_numel(&f->tensors[i]);
        fixture_add_slice(f, i, max_i64(begin - offset, 0), min_i64(end - offset, numel), writes);
        offset += (int64_t)round_up((size_t)numel, FIXTURE_BLOCK);
    }
}

static inline void fixture_cut_tensors(fixture *f, int rank, int n)
{
    for (int i = 0; i < f->state.n_tensors; i++) {
        int64_t numel = ckpt_tensor_numel(&f->tensors[i]);
        int64_t begin = numel * rank / n, end = numel * (rank + 1) / n;
        /* In two slices, so that a rank has several of one tensor, the later one first. */
        fixture_add_slice(f, i, begin + (end - begin) / 3, end, true);
        fixture_add_slice(f, i, begin, begin + (end - begin) / 3, true);
    }
}

static inline fsdp_status fixture_read(void *context, const ckpt_slice *slice, int64_t first, int64_t n, float *out)
{
    fixture *f = context;
    f->n_reads++;
    if (f->fail_read != FSDP_OK)
        return error_set(f->fail_read, "the device does not answer");
    memcpy(out, (float *)slice->handle + first, (size_t)n * sizeof *out);
    return FSDP_OK;
}

static inline fsdp_status fixture_write(void *context, const ckpt_slice *slice, int64_t first, int64_t n,
                                        const float *in)
{
    fixture *f = context;
    f->n_writes++;
    memcpy((float *)slice->handle + first, in, (size_t)n * sizeof *in);
    return FSDP_OK;
}

static inline void fixture_take_memory(fixture *f, bool callbacks)
{
    int64_t numel = 1, at = 0;
    for (int i = 0; i < f->state.n_slices; i++)
        numel += f->slices[i].count;
    f->memory = calloc((size_t)numel, sizeof *f->memory);
    for (int i = 0; i < f->state.n_slices; i++) {
        f->places[i] = f->memory + at;
        at += f->slices[i].count;
        f->slices[i].data = callbacks ? NULL : f->places[i];
        f->slices[i].handle = f->places[i];
    }
    f->state.read = fixture_read;
    f->state.write = fixture_write;
    f->state.context = f;
}

/* The slices of rank `rank` of `n`; elements are zero until filled or loaded. */
static inline fixture *fixture_make_sized(fixture_cut cut, int rank, int n, bool callbacks, int64_t width)
{
    fixture *f = calloc(1, sizeof *f);
    f->state = (ckpt_state)CKPT_STATE_INIT;
    f->state.tensors = f->tensors;
    f->state.slices = f->slices;
    fixture_add_tensors(f, width);
    for (int role = 0; role < CKPT_ROLE_COUNT; role++) {
        if (cut == CUT_FLAT || cut == CUT_UNEVEN)
            fixture_cut_flat(f, (ckpt_role)role, rank, n, cut == CUT_UNEVEN, true);
        else if (cut == CUT_REPLICATED)
            fixture_cut_flat(f, (ckpt_role)role, 0, 1, false, rank == 0);
        else if (cut == CUT_HYBRID && n % 2 == 0)
            fixture_cut_flat(f, (ckpt_role)role, rank % 2, 2, false, rank < 2);
        else if (cut == CUT_HYBRID)
            fixture_cut_flat(f, (ckpt_role)role, rank, n, false, true);
    }
    if (cut == CUT_PER_TENSOR)
        fixture_cut_tensors(f, rank, n);
    fixture_take_memory(f, callbacks);
    return f;
}

static inline fixture *fixture_make(fixture_cut cut, int rank, int n, bool callbacks)
{
    return fixture_make_sized(cut, rank, n, callbacks, 37);
}

static inline void fixture_free(fixture *f)
{
    json_decref((json_t *)(uintptr_t)f->state.extra);
    free(f->memory);
    free(f);
}

static inline void fixture_fill(fixture *f, int64_t step)
{
    for (int i = 0; i < f->state.n_slices; i++) {
        const ckpt_slice *slice = &f->slices[i];
        for (int64_t k = 0; k < slice->count; k++) {
            uint32_t bits = fixture_value_bits(&f->tensors[slice->tensor], slice->first + k, step);
            memcpy(f->places[i] + k, &bits, sizeof bits);
        }
    }
    json_decref((json_t *)(uintptr_t)f->state.extra);
    f->state.extra = json_pack("{s:I, s:{s:f, s:s}}", "data_position", (json_int_t)(step * 1000003), "scaler", "scale",
                               65536.5, "note", "a \"quoted\" text");
}

/* True when every element is that of `step`. */
static inline bool fixture_holds(const fixture *f, int64_t step, unsigned roles)
{
    for (int i = 0; i < f->state.n_slices; i++) {
        const ckpt_slice *slice = &f->slices[i];
        if (!(roles & CKPT_ROLE_BIT(f->tensors[slice->tensor].role)))
            continue;
        for (int64_t k = 0; k < slice->count; k++) {
            uint32_t bits, wanted = fixture_value_bits(&f->tensors[slice->tensor], slice->first + k, step);
            memcpy(&bits, f->places[i] + k, sizeof bits);
            if (bits != wanted)
                return false;
        }
    }
    return true;
}

static inline ckpt_save_config fixture_config(const char *directory, fsdp_checkpoint_kind kind, int64_t step)
{
    ckpt_save_config config = CKPT_SAVE_CONFIG_INIT;
    config.directory = directory;
    config.kind = kind;
    config.step = step;
    config.strategy = "full";
    config.part_timeout = 30;
    return config;
}

/* One rank saves, without a world. */
static inline fsdp_status fixture_save(const char *directory, fsdp_checkpoint_kind kind, int64_t step)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, step);
    ckpt_save_config config = fixture_config(directory, kind, step);
    fsdp_status status = ckpt_save(&config, &f->state, NULL, NULL);
    fixture_free(f);
    return status;
}

/* What resume finds there: a step, -1 for nothing, -2 for an error; elements must be right. */
static inline int64_t fixture_resumed_step(const char *directory)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    int64_t step = -2;
    if (ckpt_resume(directory, &config, &f->state, NULL, &result) == FSDP_OK) {
        step = result.step;
        if (step >= 0 && !fixture_holds(f, step, CKPT_ROLES_ALL))
            step = -3;
        ckpt_load_result_free(&result);
    }
    fixture_free(f);
    return step;
}

static inline int fixture_count_entries(const char *directory)
{
    int n = 0;
    DIR *folder = opendir(directory);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return n;
}

#endif
