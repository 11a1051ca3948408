/* Any bytes to the manifest reader: what is accepted must be consistent and must survive printing and reading again.
 * Built with clang -fsanitize=fuzzer it searches; otherwise it replays tests/fuzz/corpus/manifest. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void check_tensor(const manifest *m, const manifest_tensor *tensor)
{
    int64_t end = 0;
    require(tensor->name && *tensor->name && tensor->numel >= 0 && tensor->n_dims <= CKPT_MAX_DIMS);
    for (int i = 0; i < tensor->n_pieces; i++) {
        const manifest_piece *piece = &tensor->pieces[i];
        require(piece->file >= 0 && piece->file < m->n_files && piece->count > 0);
        require(m->kind == FSDP_CKPT_LOCAL ? piece->first >= end : piece->first == end);
        require(piece->count <= tensor->numel - piece->first);
        end = piece->first + piece->count;
    }
    require(m->kind == FSDP_CKPT_LOCAL || end == tensor->numel);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    manifest *m, *again;
    char *text;
    size_t text_bytes;
    if (manifest_parse("fuzz", (const char *)data, bytes, &m) != FSDP_OK) {
        require(strlen(fsdp_last_error()) > 0);
        return 0;
    }
    require(m->step >= 0 && m->world_size > 0 && m->rank < m->world_size);
    for (int i = 0; i < m->n_files; i++)
        require(!strchr(m->files[i].name, '/') && m->files[i].name[0] != '.');
    for (int i = 0; i < m->n_tensors; i++)
        check_tensor(m, &m->tensors[i]);
    require(manifest_print(m, &text, &text_bytes) == FSDP_OK);
    require(manifest_parse("printed", text, text_bytes, &again) == FSDP_OK);
    require(again->n_tensors == m->n_tensors && again->step == m->step && json_equal(again->extra, m->extra));
    require(again->autotune_bytes == m->autotune_bytes);
    require(m->autotune_bytes == 0 || memcmp(again->autotune, m->autotune, m->autotune_bytes) == 0);
    manifest_free(again);
    free(text);
    manifest_free(m);
    return 0;
}
