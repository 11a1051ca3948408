/* Parts of a store are token files; a store in memory has one vector instead. The cache's file names are hashes of
 * everything the tokens depend on, so a stale file is never found. */
#include "data/token_store.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "tokenizer/text/text_buffer.h"
#include "tokenizer/tokenizer_internal.h"
#include "format/token/megatron_file.h"
#include "format/token/token_file.h"

enum { CACHE_WAIT_SECONDS = 6 * 3600, CACHE_POLL_MILLISECONDS = 20 };

typedef struct store_part {
    token_file *file;
    megatron_file *megatron; /* instead */
    int64_t count, n_documents;
    int64_t first; /* place of its first token in the store */
} store_part;

struct token_store {
    store_part *parts;
    size_t n_parts;
    id_vector ids; /* without parts */
    int64_t count, vocabulary;
    int64_t skipped;
};

static void close_part(store_part *p)
{
    token_file_close(p->file);
    megatron_file_close(p->megatron);
}

void token_store_free(token_store *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n_parts; i++)
        close_part(&s->parts[i]);
    free(s->parts);
    id_free(&s->ids);
    free(s);
}

static fsdp_status store_new(size_t n_parts, token_store **out)
{
    token_store *s = calloc(1, sizeof *s);
    store_part *parts = calloc(n_parts + 1, sizeof *parts);
    if (s == NULL || parts == NULL) {
        free(parts);
        free(s);
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    }
    s->parts = parts;
    *out = s;
    return FSDP_OK;
}

static fsdp_status add_part(token_store *s, const char *path, int64_t below)
{
    store_part *part = &s->parts[s->n_parts];
    bool megatron = megatron_file_is(path);
    FSDP_TRY(megatron ? megatron_file_open(path, below, &part->megatron) : token_file_open(path, &part->file));
    int64_t own = megatron ? megatron_file_vocabulary(part->megatron) : token_file_vocabulary(part->file);
    part->count = megatron ? megatron_file_count(part->megatron) : token_file_count(part->file);
    part->n_documents = megatron ? megatron_file_documents(part->megatron) : token_file_documents(part->file);
    part->first = s->count;
    s->n_parts++;
    s->count += part->count;
    s->vocabulary = own > s->vocabulary ? own : s->vocabulary;
    return FSDP_OK;
}

static fsdp_status read_part(const store_part *p, int64_t first, int64_t n, int32_t *out)
{
    return p->megatron ? megatron_file_read(p->megatron, first, n, out) : token_file_read(p->file, first, n, out);
}

fsdp_status token_store_open(const source_list *files, int64_t below, token_store **out)
{
    token_store *s = NULL;
    FSDP_TRY(store_new(files->n_files, &s));
    for (size_t i = 0; i < files->n_files; i++) {
        fsdp_status status = add_part(s, files->files[i].path, below);
        if (status != FSDP_OK) {
            token_store_free(s);
            return status;
        }
    }
    *out = s;
    return FSDP_OK;
}

/* --- building ---------------------------------------------------------------------------------------------------- */

static fsdp_status append_memory(void *context, const int32_t *ids, size_t n)
{
    return id_append_all(context, ids, n);
}

static fsdp_status end_memory(void *context)
{
    (void)context;
    return FSDP_OK;
}

static fsdp_status build_in_memory(const source_list *files, const fsdp_tokenizer *tokenizer,
                                   const token_build_options *options, token_store **out)
{
    token_store *s = NULL;
    FSDP_TRY(store_new(0, &s));
    token_sink sink = {&s->ids, append_memory, end_memory, NULL};
    fsdp_tokenize_result result = {0};
    fsdp_status status = token_build(files, tokenizer, options, &sink, &result);
    s->skipped = result.n_skipped;
    if (status != FSDP_OK) {
        token_store_free(s);
        return status;
    }
    s->count = (int64_t)s->ids.n;
    s->vocabulary = fsdp_tokenizer_vocab_size(tokenizer);
    *out = s;
    return FSDP_OK;
}

/* --- the cache --------------------------------------------------------------------------------------------------- */

static fsdp_status cache_key(const source_list *files, const fsdp_tokenizer *tokenizer,
                             const token_build_options *options, uint64_t *key)
{
    uint64_t h = hash_text(HASH_START, "fsdp tokens 2"); /* another number for other tokens of the same text */
    h = hash_u64(h, tokenizer->tables->fingerprint);
    h = hash_u64(hash_u64(h, (uint64_t)(uint32_t)fsdp_tokenizer_eos(tokenizer)), (uint64_t)options->max_tokens);
    h = hash_u64(hash_text(h, options->field == NULL ? "" : options->field), options->strict);
    for (size_t i = 0; i < files->n_files; i++) {
        struct stat info;
        char *full = realpath(files->files[i].path, NULL);
        if (full == NULL || stat(full, &info) != 0) {
            free(full);
            return error_set_errno(FSDP_ERR_INPUT, "%s: the file cannot be read", files->files[i].path);
        }
        h = hash_u64(hash_u64(hash_text(h, full), (uint64_t)info.st_size), (uint64_t)files->files[i].kind);
        h = hash_u64(hash_u64(h, (uint64_t)info.st_mtim.tv_sec), (uint64_t)info.st_mtim.tv_nsec);
        free(full);
    }
    *key = h;
    return FSDP_OK;
}

static fsdp_status take_lock(const char *path, int *lock)
{
    struct timespec pause = {0, CACHE_POLL_MILLISECONDS * 1000000L};
    double began = clock_seconds();
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0)
        return error_set_errno(FSDP_ERR_IO, "%s: the lock of the token cache cannot be opened", path);
    while (flock(*lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) /* a file system without locks: everybody makes their own file */
            return FSDP_OK;
        if (clock_seconds() - began > CACHE_WAIT_SECONDS) {
            close(*lock);
            return error_set(FSDP_ERR_TIMEOUT, "%s: another process has held the token cache for %d s", path,
                             CACHE_WAIT_SECONDS);
        }
        nanosleep(&pause, NULL);
    }
    return FSDP_OK;
}

static fsdp_status open_cached(const char *path, token_store **out)
{
    token_store *s = NULL;
    FSDP_TRY(store_new(1, &s));
    fsdp_status status = add_part(s, path, 0);
    if (status != FSDP_OK) {
        token_store_free(s);
        return status;
    }
    *out = s;
    return FSDP_OK;
}

/* What a process of this host left behind when it was killed while it made the file. We have the lock. */
static void remove_remains(const char *path, const char *host)
{
    char names[PATH_MAX + 80];
    glob_t found;
    snprintf(names, sizeof names, "%s.%s.*", path, host);
    if (glob(names, GLOB_NOSORT, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        unlink(found.gl_pathv[i]);
    globfree(&found);
}

/* Made under a name of our own and put in place when it is right: where the file system has no locks, others may be
 * making the same. Files that change while they are read would leave tokens of neither state under the old one's key.
 */
static fsdp_status make_cached(const source_list *files, const fsdp_tokenizer *tokenizer,
                               const token_build_options *options, uint64_t key, const char *path)
{
    char own[PATH_MAX + 96], host[65] = "";
    uint64_t behind = 0;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "unknown");
    remove_remains(path, host);
    snprintf(own, sizeof own, "%s.%s.%ld", path, host, (long)getpid());
    FSDP_TRY(token_build_file(files, tokenizer, options, own, NULL));
    fsdp_status status = cache_key(files, tokenizer, options, &behind);
    if (status == FSDP_OK && behind != key)
        status = error_set(FSDP_ERR_INPUT, "%s%s: changed while it was read; start again when it is complete",
                           files->files[0].path, files->n_files > 1 ? " or another file of the data set" : "");
    if (status == FSDP_OK && rename(own, path) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot be put in place", own);
    if (status != FSDP_OK)
        unlink(own);
    return status;
}

static fsdp_status build_cached(const source_list *files, const fsdp_tokenizer *tokenizer,
                                const token_build_options *options, const char *folder, token_store **out)
{
    char path[PATH_MAX], lock_path[PATH_MAX + 8];
    uint64_t key = 0;
    int lock = -1;
    FSDP_TRY(cache_key(files, tokenizer, options, &key));
    FSDP_TRY(file_make_directories(folder));
    if (snprintf(path, sizeof path, "%s/tokens-%016llx.bin", folder, (unsigned long long)key) >= PATH_MAX)
        return error_set(FSDP_ERR_INPUT, "%s: the path of the token cache is too long", folder);
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    FSDP_TRY(take_lock(lock_path, &lock));
    fsdp_status status = FSDP_OK;
    if (!file_exists(path) || open_cached(path, out) != FSDP_OK) {
        status = make_cached(files, tokenizer, options, key, path);
        if (status == FSDP_OK)
            status = open_cached(path, out);
    }
    close(lock); /* releases it */
    return status;
}

fsdp_status token_store_build(const source_list *files, const fsdp_tokenizer *tokenizer,
                              const token_build_options *options, const char *cache_folder, token_store **out)
{
    if (cache_folder == NULL)
        return build_in_memory(files, tokenizer, options, out);
    return build_cached(files, tokenizer, options, cache_folder, out);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

int64_t token_store_count(const token_store *s)
{
    return s->count;
}

int64_t token_store_vocabulary(const token_store *s)
{
    return s->vocabulary;
}

int64_t token_store_skipped(const token_store *s)
{
    return s->skipped;
}

/* The part that has token `place`: the last one that starts at or before it. */
static size_t part_at(const token_store *s, int64_t place)
{
    size_t low = 0, high = s->n_parts;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->parts[middle].first <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

fsdp_status token_store_read(const token_store *s, int64_t first, int64_t n, int32_t *out)
{
    if (s->n_parts == 0) {
        memcpy(out, s->ids.data + first, (size_t)n * sizeof *out);
        return FSDP_OK;
    }
    for (size_t i = part_at(s, first); n > 0; i++) {
        const store_part *part = &s->parts[i];
        int64_t inner = first - part->first, have = part->count - inner;
        int64_t take = have < n ? have : n;
        if (take > 0)
            FSDP_TRY(read_part(part, inner, take, out));
        first += take > 0 ? take : 0;
        out += take > 0 ? take : 0;
        n -= take > 0 ? take : 0;
    }
    return FSDP_OK;
}

fsdp_status token_store_document(const token_store *s, int64_t index, int64_t *part, int64_t *first, int64_t *n)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        const store_part *p = &s->parts[i];
        if (index >= p->n_documents) {
            index -= p->n_documents;
            continue;
        }
        FSDP_TRY(p->megatron ? megatron_file_document(p->megatron, index, first, n)
                             : token_file_document(p->file, index, first, n));
        *first += p->first;
        *part = (int64_t)i;
        return FSDP_OK;
    }
    return error_set(FSDP_ERR_STATE, "a document of tokens that is not there");
}

int64_t token_store_documents(const token_store *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->n_parts; i++)
        n += s->parts[i].n_documents;
    return n;
}
