/* Writes a rank's part of a checkpoint: its slices, cut into pieces, each hashed on its way to the file, into a file of
 * its own (sharded, local) or at their places in shared files (full); then the list of what it wrote. Talks to no other
 * rank. */
#include "ckpt/save/part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/record/pulse.h"
#include "ckpt/save/save_task.h"
#include "base/float_bits.h"
#include "format/weights/safetensors_writer.h"

/* Hashed and then written while still in the cache; large, because the page cache takes large blocks of large writes.
 */
enum { CHUNK_NUMEL = 1 << 20 };
enum { EARLY_BYTES = 64 << 10 };

typedef struct planned_piece {
    const ckpt_slice *slice;
    int64_t first, count; /* of the tensor */
    int64_t snapshot;     /* element of the snapshot where it begins */
    size_t entry;         /* sharded: in the rank's file */
    uint64_t checksum;
} planned_piece;

typedef struct part_writer {
    save_task *task;
    int n_pieces;
    planned_piece *pieces;
    float *bounce;    /* (CHUNK_NUMEL) elements fetched from where slices lie; NULL when all are in host memory */
    uint16_t *halves; /* (CHUNK_NUMEL) rounded elements; NULL when the files are fp32 */
    safetensors_writer *shard; /* sharded, local */
    int64_t shard_bytes;
    int *fds; /* full: (n_files), -1 until used */
} part_writer;

static fsdp_status out_of_memory(const save_task *task)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while saving", task->temporary);
}

/* ---- What to write ---- */

static fsdp_dtype stored_dtype(const save_task *task, int tensor)
{
    const ckpt_tensor *t = &task->state->tensors[tensor];
    return task->layout ? full_layout_dtype(task->layout, t) : t->dtype;
}

static bool is_odd(const save_task *task, const ckpt_slice *slice)
{
    size_t bytes = (size_t)slice->count * fsdp_dtype_size(stored_dtype(task, slice->tensor));
    return bytes % SAFETENSORS_DATA_ALIGNMENT != 0;
}

static void plan_slice(part_writer *w, const ckpt_slice *slice, int64_t snapshot)
{
    for (int64_t done = 0; done < slice->count; done += MANIFEST_PIECE_NUMEL)
        w->pieces[w->n_pieces++] = (planned_piece){.slice = slice,
                                                   .first = slice->first + done,
                                                   .count = min_i64(MANIFEST_PIECE_NUMEL, slice->count - done),
                                                   .snapshot = snapshot + done};
}

/* Slices of odd sizes come last: after one of them no other would be aligned in the file. */
static fsdp_status plan_pieces(part_writer *w)
{
    const save_task *task = w->task;
    const ckpt_state *state = task->state;
    int n = 0;
    for (int i = 0; i < state->n_slices; i++)
        if (save_task_takes(task, &state->slices[i]))
            n += (int)ceil_div(state->slices[i].count, MANIFEST_PIECE_NUMEL);
    w->pieces = calloc((size_t)n + 1, sizeof *w->pieces);
    if (!w->pieces)
        return out_of_memory(task);
    for (int odd = 0; odd < 2; odd++) {
        int64_t snapshot = 0;
        for (int i = 0; i < state->n_slices; i++) {
            const ckpt_slice *slice = &state->slices[i];
            if (!save_task_takes(task, slice))
                continue;
            if (is_odd(task, slice) == (odd == 1))
                plan_slice(w, slice, snapshot);
            snapshot += slice->count;
        }
    }
    return FSDP_OK;
}

static fsdp_status take_buffers(part_writer *w)
{
    const save_task *task = w->task;
    bool fetches = false, rounds = false;
    for (int i = 0; i < w->n_pieces; i++) {
        fetches |= !task->snapshot && w->pieces[i].slice->data == NULL;
        rounds |= stored_dtype(task, w->pieces[i].slice->tensor) != FSDP_F32;
    }
    if (fetches && !(w->bounce = malloc(CHUNK_NUMEL * sizeof *w->bounce)))
        return out_of_memory(task);
    if (rounds && !(w->halves = malloc(CHUNK_NUMEL * sizeof *w->halves)))
        return out_of_memory(task);
    return FSDP_OK;
}

/* ---- Where it goes ---- */

static fsdp_status open_shard(part_writer *w)
{
    const save_task *task = w->task;
    fsdp_status status = FSDP_OK;
    char *path = save_task_file(task, task->rank, SHARD_SUFFIX), *key = NULL;
    size_t key_bytes = 0;
    if (!path)
        return out_of_memory(task);
    TRY_OR(done, safetensors_writer_create(path, &w->shard));
    for (int i = 0; i < w->n_pieces; i++) {
        planned_piece *piece = &w->pieces[i];
        const ckpt_tensor *tensor = &task->state->tensors[piece->slice->tensor];
        if (strlen(tensor->name) + 64 > key_bytes) {
            key_bytes = strlen(tensor->name) + 128;
            free(key);
            key = malloc(key_bytes);
            if (!key) {
                status = out_of_memory(task);
                goto done;
            }
        }
        manifest_key(task->kind, tensor->role, tensor->name, piece->first, key, key_bytes);
        TRY_OR(done, safetensors_writer_add(w->shard, key, tensor->dtype, 1, &piece->count, &piece->entry));
    }
    TRY_OR(done, safetensors_writer_begin(w->shard));
    w->shard_bytes = (int64_t)safetensors_writer_file_bytes(w->shard);
done:
    free(key);
    free(path);
    return status;
}

static fsdp_status full_fd(part_writer *w, int file, int *fd)
{
    const save_task *task = w->task;
    if (w->fds[file] < 0) {
        char *path = file_join(task->temporary, task->layout->files[file].name);
        if (!path)
            return out_of_memory(task);
        w->fds[file] = open(path, O_WRONLY | O_CLOEXEC);
        fsdp_status status =
            w->fds[file] < 0 ? error_set_errno(FSDP_ERR_IO, "%s: cannot open for writing", path) : FSDP_OK;
        free(path);
        FSDP_TRY(status);
    }
    *fd = w->fds[file];
    return FSDP_OK;
}

static fsdp_status write_full(part_writer *w, int tensor, int64_t element, const void *data, size_t bytes)
{
    const full_layout *l = w->task->layout;
    const full_place *place = &l->places[tensor];
    size_t width = fsdp_dtype_size(stored_dtype(w->task, tensor));
    int64_t offset = place->offset + element * (int64_t)width;
    const uint8_t *p = data;
    int fd = -1;
    FSDP_TRY(full_fd(w, place->file, &fd));
    while (bytes > 0) {
        ssize_t written = pwrite(fd, p, bytes, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return error_set_errno(FSDP_ERR_IO, "%s/%s: cannot write %zu bytes at byte %" PRId64, w->task->temporary,
                                   l->files[place->file].name, bytes, offset);
        /* The disk starts now rather than at the sync, which otherwise waits for all of it. */
        if (written >= EARLY_BYTES)
            (void)sync_file_range(fd, offset, written, SYNC_FILE_RANGE_WRITE);
        p += written;
        bytes -= (size_t)written;
        offset += written;
    }
    return FSDP_OK;
}

static fsdp_status open_full(part_writer *w)
{
    int n = w->task->layout->n_files;
    w->fds = malloc(((size_t)n + 1) * sizeof *w->fds);
    if (!w->fds)
        return out_of_memory(w->task);
    for (int i = 0; i < n; i++)
        w->fds[i] = -1;
    return FSDP_OK;
}

static fsdp_status close_full(part_writer *w)
{
    for (int i = 0; i < w->task->layout->n_files; i++) {
        int fd = w->fds[i];
        if (fd < 0)
            continue;
        const char *name = w->task->layout->files[i].name;
        if (fsync(fd) != 0)
            return error_set_errno(FSDP_ERR_IO, "%s/%s: cannot sync", w->task->temporary, name);
        w->fds[i] = -1;
        if (close(fd) != 0)
            return error_set_errno(FSDP_ERR_IO, "%s/%s: cannot close", w->task->temporary, name);
    }
    return FSDP_OK;
}

/* ---- The data ---- */

static fsdp_status fetch(part_writer *w, const planned_piece *piece, int64_t done, int64_t n, const float **out)
{
    const ckpt_slice *slice = piece->slice;
    const ckpt_state *state = w->task->state;
    int64_t first = piece->first - slice->first + done; /* within the slice */
    if (w->task->snapshot) {
        *out = w->task->snapshot + piece->snapshot + done;
    } else if (slice->data) {
        *out = slice->data + first;
    } else {
        *out = w->bounce;
        return state->read(state->context, slice, first, n, w->bounce);
    }
    return FSDP_OK;
}

static const void *rounded(part_writer *w, fsdp_dtype dtype, const float *values, int64_t n)
{
    if (dtype == FSDP_F32)
        return values;
    for (int64_t i = 0; i < n; i++)
        w->halves[i] = dtype == FSDP_BF16 ? float_bits_to_bf16(values[i]) : float_bits_to_f16(values[i]);
    return w->halves;
}

static fsdp_status write_piece(part_writer *w, planned_piece *piece)
{
    save_task *task = w->task;
    int tensor = piece->slice->tensor;
    fsdp_dtype dtype = stored_dtype(task, tensor);
    size_t width = fsdp_dtype_size(dtype);
    hash_stream hash;
    hash_stream_start(&hash);
    for (int64_t done = 0; done < piece->count; done += CHUNK_NUMEL) {
        int64_t n = min_i64(CHUNK_NUMEL, piece->count - done);
        const float *values;
        FSDP_TRY(fetch(w, piece, done, n, &values));
        const void *data = rounded(w, dtype, values, n);
        hash_stream_add(&hash, data, (size_t)n * width);
        if (task->layout)
            FSDP_TRY(write_full(w, tensor, piece->first + done, data, (size_t)n * width));
        else
            FSDP_TRY(safetensors_writer_write(w->shard, piece->entry, (uint64_t)done * width, data, (size_t)n * width));
        task->bytes += n * (int64_t)width;
        owner_renew(task->owner);
        pulse_go_on();
        if (atomic_load(&task->cancelled))
            return error_set(FSDP_ERR_PEER, "%s: another rank could not write its part", task->temporary);
    }
    piece->checksum = hash_stream_end(&hash);
    return FSDP_OK;
}

static fsdp_status write_data(part_writer *w)
{
    FSDP_TRY(w->task->layout ? open_full(w) : open_shard(w));
    for (int i = 0; i < w->n_pieces; i++)
        FSDP_TRY(write_piece(w, &w->pieces[i]));
    if (w->task->layout)
        return close_full(w);
    safetensors_writer *shard = w->shard;
    w->shard = NULL;
    return safetensors_writer_commit(shard);
}

/* ---- The list ---- */

static void print_list(FILE *out, const part_writer *w)
{
    const save_task *task = w->task;
    fprintf(out, "{\"rank\": %d, \"files\": [", task->rank);
    if (!task->layout)
        fprintf(out, "{\"name\": \"rank-%05d" SHARD_SUFFIX "\", \"bytes\": %" PRId64 "}", task->rank, w->shard_bytes);
    for (int i = 0; task->layout && i < task->layout->n_files; i++)
        fprintf(out, "%s{\"name\": \"%s\", \"bytes\": %" PRId64 "}", i ? ", " : "", task->layout->files[i].name,
                task->layout->files[i].bytes);
    fputs("],\n\"pieces\": [", out);
    for (int i = 0; i < w->n_pieces; i++) {
        const planned_piece *piece = &w->pieces[i];
        int file = task->layout ? task->layout->places[piece->slice->tensor].file : 0;
        fprintf(out, "%s\n[%d, %d, %" PRId64 ", %" PRId64 ", \"%016" PRIx64 "\"]", i ? "," : "", piece->slice->tensor,
                file, piece->first, piece->count, piece->checksum);
    }
    fputs("]}\n", out);
}

static fsdp_status write_list(const part_writer *w)
{
    char *text = NULL, *path = save_task_file(w->task, w->task->rank, PART_SUFFIX);
    size_t bytes;
    FILE *out = path ? open_memstream(&text, &bytes) : NULL;
    if (out)
        print_list(out, w);
    fsdp_status status = out && fclose(out) == 0 ? file_write_atomic(path, text, bytes) : out_of_memory(w->task);
    /* Once the list has its name this part is done: rank 0 may commit it at once, and rename the directory before this
     * rank has synced it. So a sync that fails now is no failure of the part; rank 0 syncs the directory as well. (It
     * also goes away when another rank failed; that rank's failure is then the one that all report.) */
    if (status == FSDP_ERR_INPUT || status == FSDP_ERR_IO)
        status = file_exists(path) || !file_is_directory(w->task->temporary) ? FSDP_OK : status;
    free(text);
    free(path);
    return status;
}

static void part_writer_clear(part_writer *w)
{
    safetensors_writer_abort(w->shard);
    for (int i = 0; w->fds && i < w->task->layout->n_files; i++)
        if (w->fds[i] >= 0)
            close(w->fds[i]);
    free(w->fds);
    free(w->halves);
    free(w->bounce);
    free(w->pieces);
}

/* So that rank 0 need not wait for a part that will not come. Nothing is lost when this cannot be written either. */
static void leave_failure(const save_task *task)
{
    char *path = save_task_file(task, task->rank, FAILED_SUFFIX);
    if (path)
        (void)file_write_atomic(path, task->part.message, strlen(task->part.message));
    free(path);
}

fsdp_status save_task_write_part(save_task *task)
{
    fsdp_status status;
    part_writer w = {.task = task};
    TRY_OR(done, plan_pieces(&w));
    TRY_OR(done, take_buffers(&w));
    TRY_OR(done, write_data(&w));
    status = write_list(&w);
done:
    part_writer_clear(&w);
    save_outcome_set(&task->part, status);
    if (status != FSDP_OK)
        leave_failure(task);
    return status;
}
