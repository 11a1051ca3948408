/* Reads and checks manifests. A manifest may come from anywhere, so nothing in it is believed: counts, shapes, names
 * and the tiling of every tensor are checked before a caller sees them. Writing is manifest_write.c's. */
#include "ckpt/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

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
    m->rank = -1;
    m->strategy = m->created = m->tokenizer = "";
    *out = m;
    return FSDP_OK;
}

void manifest_free(manifest *m)
{
    if (!m)
        return;
    json_decref(m->extra);
    json_decref(m->ranks);
    arena_free(m->memory);
    free(m);
}

const char *manifest_key(ckpt_kind kind, ckpt_role role, const char *name, int64_t first, char *text, size_t bytes)
{
    if (kind != CKPT_FULL)
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
    if (value < least || value > 1 << 24)
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" is %" PRId64 ", which cannot be", name, key, value);
    *out = (int)value;
    return FSDP_OK;
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
    if (m->step < 0)
        return error_set(FSDP_ERR_INPUT, "%s: \"step\" is negative", name);
    FSDP_TRY(small_int(name, root, "world_size", 1, &m->world_size));
    if (m->kind == CKPT_LOCAL)
        FSDP_TRY(small_int(name, root, "rank", 0, &m->rank));
    if (m->rank >= m->world_size)
        return error_set(FSDP_ERR_INPUT, "%s: rank %d of a world of %d", name, m->rank, m->world_size);
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
        if (!*path || strchr(path, '/') || path[0] == '.' || file->bytes < 0)
            return error_set(FSDP_ERR_INPUT, "%s: file \"%s\" of %" PRId64 " bytes cannot be part of it", name, path,
                             file->bytes);
        file->name = arena_strdup(m->memory, path);
        if (!file->name)
            return out_of_memory(name);
    }
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
            if (piece->first < end || (piece->first > end && m->kind != CKPT_LOCAL))
                return error_set(refusal, "%s: %s %s: elements from %" PRId64 " on are %s", name,
                                 ckpt_role_name(tensor->role), tensor->name, piece->first < end ? piece->first : end,
                                 piece->first < end ? "there twice" : "missing");
            end = piece->first + piece->count;
        }
        if (end != tensor->numel && m->kind != CKPT_LOCAL)
            return error_set(refusal, "%s: %s %s: elements from %" PRId64 " on are missing", name,
                             ckpt_role_name(tensor->role), tensor->name, end);
    }
    return FSDP_OK;
}

static int hex_value(char digit)
{
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static fsdp_status parse_choices(const char *name, const json_t *root, manifest *m)
{
    const char *text = "";
    FSDP_TRY(json_opt_string(name, root, "choices", &text));
    size_t n_digits = strlen(text);
    if (n_digits == 0)
        return FSDP_OK;
    if (n_digits % 2 || n_digits / 2 > CKPT_MAX_CHOICES_BYTES || strspn(text, "0123456789abcdef") != n_digits)
        return error_set(FSDP_ERR_INPUT, "%s: \"choices\" is not at most %zu bytes in hexadecimal digits", name,
                         CKPT_MAX_CHOICES_BYTES);
    uint8_t *bytes = arena_alloc(m->memory, n_digits / 2);
    if (!bytes)
        return out_of_memory(name);
    for (size_t i = 0; i < n_digits / 2; i++)
        bytes[i] = (uint8_t)(hex_value(text[2 * i]) << 4 | hex_value(text[2 * i + 1]));
    m->choices = bytes;
    m->choices_bytes = n_digits / 2;
    return FSDP_OK;
}

static fsdp_status parse_root(const char *name, const json_t *root, manifest *m)
{
    FSDP_TRY(parse_head(name, root, m));
    FSDP_TRY(parse_files(name, root, m));
    FSDP_TRY(parse_tensors(name, root, m));
    FSDP_TRY(manifest_check_pieces(name, FSDP_ERR_INPUT, m));
    json_t *extra = json_object_get(root, "extra"), *ranks = json_object_get(root, "ranks");
    if ((extra && !json_is_object(extra)) || (ranks && !json_is_array(ranks)))
        return error_set(FSDP_ERR_INPUT, "%s: \"extra\" must be an object and \"ranks\" an array", name);
    m->extra = extra ? json_incref(extra) : json_object();
    m->ranks = ranks ? json_incref(ranks) : json_array();
    FSDP_TRY(m->extra && m->ranks ? FSDP_OK : out_of_memory(name));
    return parse_choices(name, root, m);
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

/* ---- From a directory ---- */

static fsdp_status check_marker(const char *folder, uint64_t checksum)
{
    char *path = file_join(folder, MARKER_NAME), *text = NULL, expected[64];
    size_t bytes = 0;
    if (!path)
        return out_of_memory(folder);
    fsdp_status status = FSDP_OK;
    snprintf(expected, sizeof expected, "fsdp-checkpoint %d %016" PRIx64 "\n", MANIFEST_VERSION, checksum);
    if (!file_exists(path))
        status = error_set(FSDP_ERR_INPUT, "%s: no commit marker: the save that wrote it did not finish", folder);
    else if ((status = file_read(path, &text, &bytes)) == FSDP_OK && strcmp(text, expected) != 0)
        status =
            error_set(FSDP_ERR_INPUT, "%s: %s is damaged, or belongs to another checkpoint: %s does not vouch for it",
                      folder, MANIFEST_NAME, MARKER_NAME);
    free(text);
    free(path);
    return status;
}

static fsdp_status check_files(const char *folder, const manifest *m)
{
    for (int i = 0; i < m->n_files; i++) {
        struct stat info;
        char *path = file_join(folder, m->files[i].name);
        if (!path)
            return out_of_memory(folder);
        int found = stat(path, &info);
        free(path);
        if (found != 0)
            return error_set_errno(FSDP_ERR_INPUT, "%s: %s is missing", folder, m->files[i].name);
        if (info.st_size != m->files[i].bytes)
            return error_set(FSDP_ERR_INPUT, "%s: %s has %lld bytes, not the %" PRId64 " that were written", folder,
                             m->files[i].name, (long long)info.st_size, m->files[i].bytes);
    }
    return FSDP_OK;
}

fsdp_status manifest_read(const char *folder, manifest **out)
{
    char *path = file_join(folder, MANIFEST_NAME), *text = NULL;
    size_t bytes;
    hash_stream hash;
    fsdp_status status;
    *out = NULL;
    if (!path)
        return out_of_memory(folder);
    TRY_OR(done, file_read(path, &text, &bytes));
    hash_stream_start(&hash);
    hash_stream_add(&hash, text, bytes);
    TRY_OR(done, check_marker(folder, hash_stream_end(&hash)));
    TRY_OR(done, manifest_parse(path, text, bytes, out));
    status = check_files(folder, *out);
    if (status != FSDP_OK) {
        manifest_free(*out);
        *out = NULL;
    }
done:
    free(text);
    free(path);
    return status;
}
