/* Reads and checks manifests. A manifest may come from anywhere, so nothing in it is believed: counts, shapes, names
 * and the tiling of every tensor are checked before a caller sees them. The files of a directory are manifest_read.c's,
 * writing is manifest_write.c's. */
#include "ckpt/format/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "ckpt/format/base_reference.h"

static fsdp_status out_of_memory(const char *name)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory for the manifest", name);
}

fsdp_status manifest_create(manifest **out)
{
    manifest *m = calloc(1, sizeof *m);
    if (!m || arena_create(0, &m->memory) != FSDP_OK) {
        free(m);
        return out_of_memory("checkpoint");
    }
    m->rank = m->n_beside = -1;
    m->run = m->strategy = m->created = m->tokenizer = "";
    *out = m;
    return FSDP_OK;
}

void manifest_free(manifest *m)
{
    if (!m)
        return;
    json_decref(m->extra);
    arena_free(m->memory);
    free(m);
}

const char *manifest_key(fsdp_checkpoint_kind kind, ckpt_role role, const char *name, int64_t first, char *text,
                         size_t bytes)
{
    if (kind != FSDP_CKPT_FULL)
        snprintf(text, bytes, "%s/%s@%" PRId64, ckpt_role_name(role), name, first);
    else if (CKPT_ROLES_MODEL & CKPT_ROLE_BIT(role))
        snprintf(text, bytes, "%s", name); /* as Hugging Face names it */
    else
        snprintf(text, bytes, "%s/%s", ckpt_role_name(role), name);
    return text;
}

/* ---- From JSON ---- */

static fsdp_status copy_text(const char *name, manifest *m, const json_t *object, const char *key, const char **out)
{
    const char *text = "";
    FSDP_TRY(json_opt_string(name, object, key, &text));
    *out = arena_strdup(m->memory, text);
    return *out ? FSDP_OK : out_of_memory(name);
}

static fsdp_status small_int(const char *name, const json_t *object, const char *key, int64_t least, int *out)
{
    int64_t value = 0;
    FSDP_TRY(json_get_int(name, object, key, &value));
    if (value < least || value > MANIFEST_MAX_WORLD)
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" is %" PRId64 ", which cannot be", name, key, value);
    *out = (int)value;
    return FSDP_OK;
}

static bool parse_checksum(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

static fsdp_status parse_head(const char *name, const json_t *root, manifest *m)
{
    const char *format = NULL, *kind = NULL;
    int64_t version = 0;
    FSDP_TRY(json_get_string(name, root, "format", &format));
    if (strcmp(format, "fsdp-checkpoint") != 0)
        return error_set(FSDP_ERR_INPUT, "%s: \"format\" is \"%s\", not \"fsdp-checkpoint\"", name, format);
    FSDP_TRY(json_get_int(name, root, "version", &version));
    if (version != MANIFEST_VERSION)
        return error_set(version > MANIFEST_VERSION ? FSDP_ERR_UNSUPPORTED : FSDP_ERR_INPUT,
                         "%s: format version %" PRId64 "; this program reads version %d", name, version,
                         MANIFEST_VERSION);
    FSDP_TRY(json_get_string(name, root, "kind", &kind));
    if (ckpt_kind_parse(kind, &m->kind) != FSDP_OK)
        return error_prefix(FSDP_ERR_INPUT, "%s: ", name);
    FSDP_TRY(json_get_int(name, root, "step", &m->step));
    if (m->step < 0 || m->step > MANIFEST_MAX_COUNT)
        return error_set(FSDP_ERR_INPUT, "%s: \"step\" is %" PRId64 ", which cannot be", name, m->step);
    FSDP_TRY(small_int(name, root, "world_size", 1, &m->world_size));
    if (m->kind == FSDP_CKPT_LOCAL)
        FSDP_TRY(small_int(name, root, "rank", 0, &m->rank));
    if (m->rank >= m->world_size)
        return error_set(FSDP_ERR_INPUT, "%s: rank %d of a world of %d", name, m->rank, m->world_size);
    const json_t *save = json_object_get(root, "save");
    if (save && !parse_checksum(save, &m->save))
        return error_set(FSDP_ERR_INPUT, "%s: \"save\" is not 16 hexadecimal digits", name);
    FSDP_TRY(json_opt_int(name, root, "commit", &m->commit));
    if (m->commit < 0 || m->commit >= MANIFEST_MAX_COUNT)
        return error_set(FSDP_ERR_INPUT, "%s: \"commit\" is out of range", name);
    FSDP_TRY(copy_text(name, m, root, "run", &m->run));
    FSDP_TRY(copy_text(name, m, root, "strategy", &m->strategy));
    FSDP_TRY(copy_text(name, m, root, "created", &m->created));
    return copy_text(name, m, root, "tokenizer", &m->tokenizer);
}

static fsdp_status array_of(const char *name, const json_t *root, const char *key, const json_t **out)
{
    *out = json_object_get(root, key);
    if (!json_is_array(*out))
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" is missing or not an array", name, key);
    return FSDP_OK;
}

bool manifest_is_file_name(const char *name)
{
    return *name && !strchr(name, '/') && name[0] != '.';
}

static fsdp_status parse_files(const char *name, const json_t *root, manifest *m)
{
    const json_t *array;
    FSDP_TRY(array_of(name, root, "files", &array));
    m->files = arena_alloc(m->memory, (json_array_size(array) + 1) * sizeof *m->files);
    if (!m->files)
        return out_of_memory(name);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *entry = json_array_get(array, i);
        manifest_file *file = &m->files[m->n_files++];
        const char *path = NULL;
        FSDP_TRY(json_get_string(name, entry, "name", &path));
        FSDP_TRY(json_get_int(name, entry, "bytes", &file->bytes));
        if (!manifest_is_file_name(path) || file->bytes < 0)
            return error_set(FSDP_ERR_INPUT, "%s: file \"%s\" of %" PRId64 " bytes cannot be part of it", name, path,
                             file->bytes);
        file->name = arena_strdup(m->memory, path);
        if (!file->name)
            return out_of_memory(name);
    }
    return FSDP_OK;
}

static fsdp_status parse_beside(const char *name, const json_t *root, manifest *m)
{
    const json_t *array = json_object_get(root, "beside");
    if (!array)
        return FSDP_OK;
    if (!json_is_array(array))
        return error_set(FSDP_ERR_INPUT, "%s: \"beside\" is not an array", name);
    m->n_beside = 0;
    m->beside = arena_alloc(m->memory, (json_array_size(array) + 1) * sizeof *m->beside);
    if (!m->beside)
        return out_of_memory(name);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *entry = json_array_get(array, i);
        manifest_beside *file = &m->beside[m->n_beside++];
        const char *text = NULL;
        FSDP_TRY(json_get_string(name, entry, "name", &text));
        FSDP_TRY(json_get_int(name, entry, "bytes", &file->bytes));
        if (!manifest_is_file_name(text) || file->bytes < 0 ||
            !parse_checksum(json_object_get(entry, "checksum"), &file->checksum))
            return error_set(FSDP_ERR_INPUT, "%s: file \"%s\" beside the tensors cannot be part of it", name, text);
        file->name = arena_strdup(m->memory, text);
        if (!file->name)
            return out_of_memory(name);
    }
    return FSDP_OK;
}

static fsdp_status parse_pieces(const char *name, const json_t *entry, manifest *m, manifest_tensor *tensor)
{
    const json_t *array;
    FSDP_TRY(array_of(name, entry, "pieces", &array));
    tensor->pieces = arena_alloc(m->memory, (json_array_size(array) + 1) * sizeof *tensor->pieces);
    if (!tensor->pieces)
        return out_of_memory(name);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *value = json_array_get(array, i);
        manifest_piece *piece = &tensor->pieces[tensor->n_pieces++];
        const json_t *file = json_array_get(value, 0), *first = json_array_get(value, 1);
        const json_t *count = json_array_get(value, 2);
        if (json_array_size(value) != 4 || !json_is_integer(file) || !json_is_integer(first) ||
            !json_is_integer(count) || !parse_checksum(json_array_get(value, 3), &piece->checksum))
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: piece %zu is not [file, first, count, \"checksum\"]", name,
                             tensor->name, i);
        if (json_integer_value(file) < 0 || json_integer_value(file) >= m->n_files)
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: piece %zu lies in file %lld, there are %d", name,
                             tensor->name, i, (long long)json_integer_value(file), m->n_files);
        piece->file = (int)json_integer_value(file);
        piece->first = json_integer_value(first);
        piece->count = json_integer_value(count);
    }
    return FSDP_OK;
}

static fsdp_status parse_shape(const char *name, const json_t *entry, manifest_tensor *tensor)
{
    const json_t *array;
    FSDP_TRY(array_of(name, entry, "shape", &array));
    if (json_array_size(array) > CKPT_MAX_DIMS)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s has more than %d dimensions", name, tensor->name,
                         CKPT_MAX_DIMS);
    int64_t bytes = (int64_t)sizeof(float);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *size = json_array_get(array, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0 ||
            checked_mul_i64(bytes, json_integer_value(size), &bytes))
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: its shape is no list of sizes, or too large", name,
                             tensor->name);
        tensor->shape[tensor->n_dims++] = json_integer_value(size);
    }
    tensor->numel = bytes / (int64_t)sizeof(float);
    return FSDP_OK;
}

static fsdp_status parse_tensor(const char *name, const json_t *entry, manifest *m, manifest_tensor *tensor)
{
    const char *text = NULL, *role = NULL;
    FSDP_TRY(json_get_string(name, entry, "name", &text));
    FSDP_TRY(json_get_string(name, entry, "role", &role));
    tensor->name = arena_strdup(m->memory, text);
    if (!tensor->name)
        return out_of_memory(name);
    if (!*text || !ckpt_role_parse(role, &tensor->role))
        return error_set(FSDP_ERR_INPUT, "%s: tensor \"%s\" has no name, or its role \"%s\" is not known", name, text,
                         role);
    FSDP_TRY(parse_shape(name, entry, tensor));
    return parse_pieces(name, entry, m, tensor);
}

static int tensor_order(const void *left, const void *right)
{
    const manifest_tensor *a = *(const manifest_tensor *const *)left, *b = *(const manifest_tensor *const *)right;
    return ckpt_role_order(a->role, a->name, b->role, b->name);
}

static fsdp_status check_names(const char *name, const manifest *m)
{
    const manifest_tensor **order = malloc(((size_t)m->n_tensors + 1) * sizeof *order);
    if (!order)
        return out_of_memory(name);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < m->n_tensors; i++)
        order[i] = &m->tensors[i];
    qsort(order, (size_t)m->n_tensors, sizeof *order, tensor_order);
    for (int i = 1; i < m->n_tensors && status == FSDP_OK; i++)
        if (tensor_order(&order[i - 1], &order[i]) == 0)
            status = error_set(FSDP_ERR_INPUT, "%s: %s %s is there twice", name, ckpt_role_name(order[i]->role),
                               order[i]->name);
    free(order);
    return status;
}

static fsdp_status parse_tensors(const char *name, const json_t *root, manifest *m)
{
    const json_t *array;
    FSDP_TRY(array_of(name, root, "tensors", &array));
    m->tensors = arena_alloc(m->memory, (json_array_size(array) + 1) * sizeof *m->tensors);
    if (!m->tensors)
        return out_of_memory(name);
    for (size_t i = 0; i < json_array_size(array); i++)
        FSDP_TRY(parse_tensor(name, json_array_get(array, i), m, &m->tensors[m->n_tensors++]));
    return check_names(name, m);
}

static int piece_order(const void *left, const void *right)
{
    const manifest_piece *a = left, *b = right;
    return a->first < b->first ? -1 : a->first > b->first;
}

fsdp_status manifest_check_pieces(const char *name, fsdp_status refusal, manifest *m)
{
    for (int i = 0; i < m->n_tensors; i++) {
        manifest_tensor *tensor = &m->tensors[i];
        int64_t end = 0;
        qsort(tensor->pieces, (size_t)tensor->n_pieces, sizeof *tensor->pieces, piece_order);
        for (int k = 0; k < tensor->n_pieces; k++) {
            const manifest_piece *piece = &tensor->pieces[k];
            if (piece->count <= 0 || piece->first < 0 || piece->first > tensor->numel ||
                piece->count > tensor->numel - piece->first)
                return error_set(
                    refusal,
                    "%s: %s %s: a piece of %" PRId64 " elements at %" PRId64 " does not lie within its %" PRId64, name,
                    ckpt_role_name(tensor->role), tensor->name, piece->count, piece->first, tensor->numel);
            if (piece->first < end || (piece->first > end && m->kind != FSDP_CKPT_LOCAL))
                return error_set(refusal, "%s: %s %s: elements from %" PRId64 " on are %s", name,
                                 ckpt_role_name(tensor->role), tensor->name, piece->first < end ? piece->first : end,
                                 piece->first < end ? "there twice" : "missing");
            end = piece->first + piece->count;
        }
        if (end != tensor->numel && m->kind != FSDP_CKPT_LOCAL)
            return error_set(refusal, "%s: %s %s: elements from %" PRId64 " on are missing", name,
                             ckpt_role_name(tensor->role), tensor->name, end);
    }
    return FSDP_OK;
}

static int hex_value(char digit)
{
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static fsdp_status parse_autotune(const char *name, const json_t *root, manifest *m)
{
    const char *text = "";
    FSDP_TRY(json_opt_string(name, root, "choices", &text));
    size_t n_digits = strlen(text);
    if (n_digits == 0)
        return FSDP_OK;
    if (n_digits % 2 || n_digits / 2 > CKPT_MAX_AUTOTUNE_BYTES || strspn(text, "0123456789abcdef") != n_digits)
        return error_set(FSDP_ERR_INPUT, "%s: \"choices\" is not at most %zu bytes in hexadecimal digits", name,
                         CKPT_MAX_AUTOTUNE_BYTES);
    uint8_t *bytes = arena_alloc(m->memory, n_digits / 2);
    if (!bytes)
        return out_of_memory(name);
    for (size_t i = 0; i < n_digits / 2; i++)
        bytes[i] = (uint8_t)(hex_value(text[2 * i]) << 4 | hex_value(text[2 * i + 1]));
    m->autotune = bytes;
    m->autotune_bytes = n_digits / 2;
    return FSDP_OK;
}

/* What of `extra` training computes with. Checkpoints of a user's own may have none of it, or more. */
static const struct {
    const char *key;
    bool whole;
    double least, most;
} extra_fields[] = {
    {"step", true, 0, (double)MANIFEST_MAX_COUNT},
    {"position", true, 0, (double)MANIFEST_MAX_COUNT},
    {"optimizer_steps", true, 0, (double)MANIFEST_MAX_COUNT},
    {"good_steps", true, 0, (double)MANIFEST_MAX_COUNT},
    {"average_from", true, 0, (double)MANIFEST_MAX_COUNT},
    {"micro_batches", true, 0, (double)MANIFEST_MAX_COUNT},
    {"loss_scale", false, 0x1p-126, 0x1p127},
    {"expected_count", false, 0, (double)MANIFEST_MAX_COUNT},
};

static fsdp_status check_extra(const char *name, const manifest *m)
{
    for (size_t i = 0; i < sizeof extra_fields / sizeof *extra_fields; i++) {
        const json_t *value = json_object_get(m->extra, extra_fields[i].key);
        double number = json_number_value(value);
        if (!value)
            continue;
        if (!(extra_fields[i].whole ? json_is_integer(value) : json_is_number(value)) ||
            !(number >= extra_fields[i].least && number <= extra_fields[i].most))
            return error_set(FSDP_ERR_INPUT, "%s: \"%s\" of \"extra\" is %.17g, which cannot be", name,
                             extra_fields[i].key, number);
    }
    const char *fault = base_reference_fault(m->extra);
    if (fault)
        return error_set(FSDP_ERR_INPUT, "%s: \"" BASE_KEY "\" of \"extra\" %s", name, fault);
    const json_t *step = json_object_get(m->extra, "step");
    if (step && json_integer_value(step) != m->step)
        return error_set(FSDP_ERR_INPUT, "%s: is of step %" PRId64 ", but its training state is of step %lld", name,
                         m->step, (long long)json_integer_value(step));
    return FSDP_OK;
}

static fsdp_status parse_root(const char *name, const json_t *root, manifest *m)
{
    FSDP_TRY(parse_head(name, root, m));
    FSDP_TRY(parse_files(name, root, m));
    FSDP_TRY(parse_beside(name, root, m));
    FSDP_TRY(parse_tensors(name, root, m));
    FSDP_TRY(manifest_check_pieces(name, FSDP_ERR_INPUT, m));
    json_t *extra = json_object_get(root, "extra");
    if (extra && !json_is_object(extra))
        return error_set(FSDP_ERR_INPUT, "%s: \"extra\" must be an object", name);
    m->extra = extra ? json_incref(extra) : json_object();
    FSDP_TRY(m->extra ? FSDP_OK : out_of_memory(name));
    FSDP_TRY(check_extra(name, m));
    return parse_autotune(name, root, m);
}

fsdp_status manifest_parse(const char *name, const char *text, size_t bytes, manifest **out)
{
    json_t *root = NULL;
    manifest *m = NULL;
    *out = NULL;
    FSDP_TRY(json_parse(name, text, bytes, &root));
    fsdp_status status = manifest_create(&m);
    if (status == FSDP_OK) {
        status = parse_root(name, root, m);
        if (status == FSDP_OK)
            *out = m;
        else
            manifest_free(m);
    }
    json_decref(root);
    return status;
}
