/* What a stream consists of, as a kind of data set, and how a checkpoint remembers it. */
#include "data/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/dataset.h"
#include "tokenizer/tokenizer_internal.h"

enum { WINDOW_TOKENS = 1 << 19 };

typedef struct stream_source {
    dataset_source base;
    stream_set set;
} stream_source;

/* --- files ------------------------------------------------------------------------------------------------------- */

/* By size and time, as the file system has them. */
static fsdp_status plain_stamp(const char *path, stream_stamp *out)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return error_set_errno(FSDP_ERR_INPUT, "%s: was there when the data set was opened and is gone", path);
    *out = (stream_stamp){(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec, (int64_t)info.st_mtim.tv_nsec};
    return FSDP_OK;
}

/* The hash that names a blob of the hub, in the target of a link; NULL: a link to something else. */
static const char *blob_name(const char *target)
{
    const char *folder = strstr(target, "/blobs/"), *name = folder ? folder + 7 : "";
    size_t n = strlen(name);
    return (n == 40 || n == 64) && strspn(name, "0123456789abcdef") == n ? name : NULL;
}

/* Files of the hub are links to blobs that are named by a hash of what they hold: that says more than a time, and the
 * same on every machine. */
static fsdp_status stamp_of(const source_file *file, stream_stamp *out)
{
    char target[1024];
    ssize_t n = readlink(file->path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    const char *blob = blob_name(target);
    if (file->from == NULL)
        FSDP_TRY(plain_stamp(file->path, out));
    if (blob == NULL)
        return FSDP_OK;
    *out = (stream_stamp){source_file_bytes(file), 0, (int64_t)(hash_text(HASH_START, blob) >> 1)};
    return FSDP_OK;
}

fsdp_status stream_set_check(const stream_set *set, size_t file)
{
    stream_stamp now, *then = &set->stamps[file];
    const char *path = set->files.files[file].path;
    if (set->files.files[file].from != NULL)
        return FSDP_OK; /* was checked by its hash when it came, or has not come yet */
    FSDP_TRY(stamp_of(&set->files.files[file], &now));
    if (now.bytes != then->bytes || now.seconds != then->seconds || now.nanoseconds != then->nanoseconds)
        return error_set(FSDP_ERR_INPUT,
                         "%s: changed while it was streamed (%lld bytes, now %lld): put the old file back and resume",
                         path, (long long)then->bytes, (long long)now.bytes);
    return FSDP_OK;
}

/* What the user did not choose of a path: the data may be found elsewhere when the run goes on. */
static const char *name_of(const source_file *file)
{
    const char *name = file->path + file->inner;
    return name + (*name == '/');
}

/* --- checkpoints ------------------------------------------------------------------------------------------------- */

/* All that the tokens of given files depend on. */
static void describe_making(const stream_set *set, char out[17])
{
    uint64_t h = hash_text(HASH_START, "fsdp stream 1");
    if (set->store == NULL) {
        h = hash_u64(h, set->tokenizer->tables->fingerprint);
        h = hash_u64(h, (uint64_t)(uint32_t)fsdp_tokenizer_eos(set->tokenizer));
    }
    if (set->packing != FSDP_PACK_ROW)
        h = hash_u64(h, (uint64_t)set->packing);
    h = hash_u64(hash_text(h, set->field), set->strict);
    snprintf(out, 17, "%016llx", (unsigned long long)hash_u64(h, (uint64_t)set->max_samples));
}

json_t *stream_set_describe(const stream_set *set)
{
    char making[17];
    json_t *files = json_array();
    describe_making(set, making);
    for (size_t i = 0; i < set->files.n_files; i++) {
        const stream_stamp *stamp = &set->stamps[i];
        json_t *file = json_pack("[sIII]", name_of(&set->files.files[i]), (json_int_t)stamp->bytes,
                                 (json_int_t)stamp->seconds, (json_int_t)stamp->nanoseconds);
        if (file == NULL || json_array_append_new(files, file) != 0) {
            json_decref(files);
            return NULL;
        }
    }
    return json_pack("{s:s, s:I, s:I, s:o}", "tokens", making, "width", (json_int_t)set->width, "window",
                     (json_int_t)set->window, "files", files);
}

static bool is_stamp(const json_t *then, const stream_stamp *now)
{
    return json_integer_value(json_array_get(then, 1)) == now->bytes &&
           json_integer_value(json_array_get(then, 2)) == now->seconds &&
           json_integer_value(json_array_get(then, 3)) == now->nanoseconds;
}

static fsdp_status compare_file(const stream_set *set, size_t i, const char *path, const json_t *then)
{
    const char *name = json_string_value(json_array_get(then, 0));
    const stream_stamp *now = &set->stamps[i];
    stream_stamp plain = {0, 0, 0}; /* which earlier versions wrote for the hub's files, too */
    if (name == NULL || json_array_size(then) != 4)
        return error_set(FSDP_ERR_INPUT, "%s: what it says of the data's files is not readable", path);
    if (i >= set->files.n_files || strcmp(name, name_of(&set->files.files[i])) != 0)
        return error_set(FSDP_ERR_INPUT,
                         "%s: the run that saved it streamed %s as file %zu, now %s%s: give it the same files", path,
                         name, i + 1, i < set->files.n_files ? "there is " : "it is gone",
                         i < set->files.n_files ? name_of(&set->files.files[i]) : "");
    if (!is_stamp(then, now) && !(plain_stamp(set->files.files[i].path, &plain) == FSDP_OK && is_stamp(then, &plain)))
        return error_set(FSDP_ERR_INPUT,
                         "%s: changed since %s was saved (%lld bytes, now %lld): put the old file back; a copy of it "
                         "needs its time too (cp -p)",
                         set->files.files[i].path, path, (long long)json_integer_value(json_array_get(then, 1)),
                         (long long)now->bytes);
    return FSDP_OK;
}

fsdp_status stream_set_compare(const stream_set *set, const char *path, const json_t *described)
{
    char making[17];
    const char *tokens = NULL;
    int64_t width = 0, window = 0;
    const json_t *files = json_object_get(described, "files");
    FSDP_TRY(json_get_string(path, described, "tokens", &tokens));
    FSDP_TRY(json_get_int(path, described, "width", &width));
    FSDP_TRY(json_get_int(path, described, "window", &window));
    describe_making(set, making);
    if (width != set->width || window != set->window)
        return error_set(FSDP_ERR_INPUT,
                         "%s: it was saved with samples of %lld tokens, streamed in windows of %lld; now they are %lld "
                         "and %lld: keep --max_context_width",
                         path, (long long)width, (long long)window, (long long)set->width, (long long)set->window);
    if (strcmp(tokens, making) != 0)
        return error_set(
            FSDP_ERR_INPUT,
            "%s: it was saved with other tokens: keep --tokenizer, --source_field, --strict_data, --packing "
            "and --max_samples",
            path);
    for (size_t i = 0; i < json_array_size(files); i++)
        FSDP_TRY(compare_file(set, i, path, json_array_get(files, i)));
    if (json_array_size(files) < set->files.n_files)
        return error_set(FSDP_ERR_INPUT, "%s: is new since %s was saved: leave it out",
                         set->files.files[json_array_size(files)].path, path);
    return FSDP_OK;
}

/* --- the data set ------------------------------------------------------------------------------------------------ */

static fsdp_status source_read(const dataset_source *base, int64_t index, void *const *fields)
{
    (void)fields;
    const stream_source *s = (const stream_source *)base;
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: sample %lld: a stream is read in its order, by a loader",
                     s->set.files.files[0].path, (long long)index);
}

static void free_set(stream_set *set)
{
    source_list_free(&set->files);
    free(set->stamps);
    free(set->field);
    token_store_free(set->store);
    fsdp_tokenizer_free(set->tokenizer);
}

static void source_free(dataset_source *base)
{
    free_set(&((stream_source *)base)->set);
    free(base);
}

static const dataset_table stream_table = {source_read, source_free};

const stream_set *dataset_stream_set(const dataset_source *source)
{
    return source->table == &stream_table ? &((const stream_source *)source)->set : NULL;
}

static fsdp_status copy_files(const source_list *files, stream_set *set)
{
    set->files.files = calloc(files->n_files, sizeof *set->files.files);
    set->stamps = calloc(files->n_files, sizeof *set->stamps);
    if (set->files.files == NULL || set->stamps == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < files->n_files; i++) {
        source_file *copy = &set->files.files[set->files.n_files++];
        *copy = files->files[i];
        copy->path = strdup(files->files[i].path);
        if (copy->path == NULL) {
            copy->from = NULL;
            return error_set(FSDP_ERR_MEMORY, "out of memory");
        }
        copy->from = arrival_share(copy->from);
        FSDP_TRY(stamp_of(copy, &set->stamps[i]));
    }
    return FSDP_OK;
}

static fsdp_status fill_set(const source_list *files, const fsdp_dataset_config *options, stream_set *set)
{
    bool tokens = files->files[0].kind == SOURCE_TOKENS;
    if ((options->tokenizer == NULL && !tokens) || options->width < 2)
        return error_set(FSDP_ERR_INPUT, "%s: streaming text needs a tokenizer and a width of at least 2 tokens",
                         files->files[0].path);
    set->strict = options->strict;
    set->max_samples = options->max_samples;
    set->width = options->width;
    set->window = options->width < WINDOW_TOKENS ? WINDOW_TOKENS / options->width : 1;
    set->packing = options->packing;
    if (set->packing == FSDP_PACK_BEST_FIT && set->max_samples > 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: best-fit packing goes with all samples: leave max_samples out",
                         files->files[0].path);
    set->field = strdup(options->source_field);
    if (set->field == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    if (tokens)
        FSDP_TRY(token_store_open(files, options->vocabulary, &set->store));
    else
        FSDP_TRY(fsdp_tokenizer_share(options->tokenizer, &set->tokenizer));
    return copy_files(files, set);
}

fsdp_status dataset_stream_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out)
{
    stream_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    s->base.table = &stream_table;
    fsdp_status status = fill_set(files, options, &s->set);
    if (status != FSDP_OK) {
        source_free(&s->base);
        return status;
    }
    s->base.info = (fsdp_dataset_info){.kind = FSDP_DATASET_TEXT,
                                       .n_samples = FSDP_ENDLESS,
                                       .width = options->width,
                                       .stream = true,
                                       .documents = options->documents || options->packing == FSDP_PACK_BEST_FIT,
                                       .tokens = s->set.store != NULL,
                                       .vocabulary = s->set.store ? token_store_vocabulary(s->set.store)
                                                                  : fsdp_tokenizer_vocab_size(s->set.tokenizer)};
    *out = &s->base;
    return FSDP_OK;
}
