/* One question lists a repository's files with their sizes and hashes; each is then fetched into blobs/ under its hash
 * and linked into the snapshot. */
#include <fsdp/fetch.h>

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef FSDP_WITH_CURL
#include <openssl/evp.h>
#endif

#include "base/clock.h"
#include "base/host/environment.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/record/pulse.h"
#include "base/sized.h"
#include "format/hub/hub.h"
#include "format/hub/hub_fetch.h"

enum { LOCK_SECONDS = 24 * 3600, POLL_MILLISECONDS = 100, STAMP_SECONDS = 1, MAX_NAME = 1024 };

/* --- where things are -------------------------------------------------------------------------------------------- */

static double seconds_of(const char *variable)
{
    const char *text = environment_text(variable);
    double seconds = text != NULL ? strtod(text, NULL) : 0;
    return seconds > 0 ? seconds : 10;
}

/* The token of the environment, or of the file that `hf auth login` writes; malloc'd, NULL: none. */
static char *find_token(void)
{
    const char *token = environment_text("HF_TOKEN"), *home = environment_text("HF_HOME"),
               *user = environment_text("HOME");
    char path[PATH_MAX], *text = NULL;
    size_t bytes;
    if (token != NULL)
        return strdup(token);
    snprintf(path, sizeof path, "%s%s/token", home ? home : user ? user : "", home ? "" : "/.cache/huggingface");
    if (!file_exists(path) || file_read_at_most(path, 4096, &text, &bytes) != FSDP_OK)
        return NULL;
    text[strcspn(text, " \r\n\t")] = '\0';
    if (text[0] != '\0')
        return text;
    free(text);
    return NULL;
}

static fsdp_status find_endpoint(fetch *f)
{
    const char *given = environment_text("HF_ENDPOINT");
    given = given != NULL ? given : "https://huggingface.co";
    size_t n = strlen(given);
    while (n > 0 && given[n - 1] == '/')
        n--;
    if (n >= sizeof f->endpoint)
        return error_set(FSDP_ERR_INPUT, "HF_ENDPOINT is too long: %zu bytes", n);
    memcpy(f->endpoint, given, n);
    return FSDP_OK;
}

static fsdp_status find_folder(fetch *f)
{
    char cache[PATH_MAX / 4];
    const char *slash = strchr(f->name, '/'), *what = f->is_dataset ? "datasets" : "models";
    hub_cache_folder(cache, sizeof cache);
    int n = slash == NULL ? snprintf(f->folder, sizeof f->folder, "%s/%s--%s", cache, what, f->name)
                          : snprintf(f->folder, sizeof f->folder, "%s/%s--%.*s--%s", cache, what,
                                     (int)(slash - f->name), f->name, slash + 1);
    return n < (int)sizeof f->folder ? FSDP_OK
                                     : error_set(FSDP_ERR_INPUT, "%s: the path of the cache is too long", cache);
}

/* --- which files ------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

/* A name may not lead out of the snapshot. */
static bool is_safe(const char *name)
{
    if (name[0] == '\0' || name[0] == '/' || strlen(name) > MAX_NAME)
        return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 32 || *p == '\\')
            return false;
    for (const char *p = name; p != NULL; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (*p == '/' || *p == '\0' || strcmp(p, "..") == 0 || strncmp(p, "../", 3) == 0 || strcmp(p, ".") == 0 ||
            strncmp(p, "./", 2) == 0)
            return false;
    return true;
}

static bool is_tokenizer_file(const char *name)
{
    static const char *const names[] = {
        "config.json",  "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
        "spiece.model", "chat_template.jinja",     "chat_template.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return strncmp(name, "tokenizer", 9) == 0;
}

/* One of the globs, which commas separate, matches; as in hf's --include, "*" also matches slashes. */
static bool is_included(const char *globs, const char *name)
{
    char glob[MAX_NAME];
    for (const char *at = globs; at != NULL; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        snprintf(glob, sizeof glob, "%.*s", (int)strcspn(at, ","), at);
        if (fnmatch(glob, name, 0) == 0)
            return true;
    }
    return false;
}

static bool is_wanted(const fetch *f, const char *name, bool has_safetensors)
{
    size_t n = f->config_name != NULL ? strlen(f->config_name) : 0;
    if (f->is_dataset)
        return name[0] != '.' && !ends_with(name, ".py") && !ends_with(name, ".md") &&
               (n == 0 || (strncmp(name, f->config_name, n) == 0 && name[n] == '/')) &&
               (f->config->include == NULL || is_included(f->config->include, name));
    if (strchr(name, '/') != NULL || name[0] == '.' ||
        strncmp(name, "consolidated", 12) == 0) /* the weights once more */
        return false;
    if (f->config->kind == FSDP_FETCH_TOKENIZER || is_tokenizer_file(name))
        return is_tokenizer_file(name);
    return ends_with(name, ".json") || ends_with(name, ".safetensors") || ends_with(name, ".jinja") ||
           (ends_with(name, ".bin") && !has_safetensors);
}

/* --- one file ---------------------------------------------------------------------------------------------------- */

static bool is_hex(const char *text, size_t n)
{
    return text != NULL && strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

#ifdef FSDP_WITH_CURL
/* Large files are named by the SHA-256 of what they hold, small ones as git names a blob: by SHA-1, with a header. */
static fsdp_status check_hash(const char *path, int64_t bytes, const char *wanted)
{
    uint8_t block[64 << 10], digest[EVP_MAX_MD_SIZE];
    unsigned n_digest = 0;
    char header[64], hex[2 * EVP_MAX_MD_SIZE + 1] = "";
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    FILE *file = fopen(path, "rb");
    bool git = strlen(wanted) == 40;
    bool good = md && file && EVP_DigestInit_ex(md, git ? EVP_sha1() : EVP_sha256(), NULL) == 1;
    int n = snprintf(header, sizeof header, "blob %lld", (long long)bytes);
    if (good && git)
        good = EVP_DigestUpdate(md, header, (size_t)n + 1) == 1;
    for (size_t got = 1; good && got > 0;) {
        got = fread(block, 1, sizeof block, file);
        good = EVP_DigestUpdate(md, block, got) == 1;
    }
    good = good && !ferror(file) && EVP_DigestFinal_ex(md, digest, &n_digest) == 1;
    for (unsigned i = 0; i < n_digest; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    if (file)
        fclose(file);
    EVP_MD_CTX_free(md);
    if (!good)
        return error_set_errno(FSDP_ERR_IO, "%s: its hash cannot be computed", path);
    return strcmp(hex, wanted) == 0 ? FSDP_OK
                                    : error_set(FSDP_ERR_IO,
                                                "%s: was downloaded and has hash %s, but the hub says %s: it is "
                                                "removed; try again",
                                                path, hex, wanted);
}
#else
static fsdp_status check_hash(const char *path, int64_t bytes, const char *wanted)
{
    (void)bytes, (void)wanted;
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: its hash cannot be computed by this build", path);
}
#endif

/* "a b" as part of a URL, slashes kept; the caller has the room. */
static void escape(const char *name, char *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~/";
    for (; *name; name++)
        out += strchr(plain, *name) ? sprintf(out, "%c", *name) : sprintf(out, "%%%02X", (unsigned char)*name);
    *out = '\0';
}

/* Waiting for bytes that come is no standstill: whoever watches this process is told. */
static void note_move(const fetch *f)
{
    if (f->moves != NULL)
        atomic_fetch_add(f->moves, 1);
    pulse_go_on();
}

static void hear_progress(void *context, int64_t bytes)
{
    fetch *f = context;
    double now = clock_seconds();
    note_move(f);
    if (f->lock >= 0 && now - f->stamped >= STAMP_SECONDS) {
        (void)futimens(f->lock, NULL); /* a folder without times: those who wait go by the clock alone */
        f->stamped = now;
    }
    if (f->config->progress != NULL)
        f->config->progress(f->config->context, f->file, f->finished + bytes, f->total);
}

static fsdp_status download(fetch *f, const char *name, const char *hash, int64_t bytes, const char *blob)
{
    char part[PATH_MAX + 32], escaped[3 * MAX_NAME + 1], url[2 * PATH_MAX];
    escape(name, escaped);
    snprintf(part, sizeof part, "%s.fsdp.incomplete", blob); /* not the name that other libraries append to */
    snprintf(url, sizeof url, "%s/%s%s/resolve/%s/%s", f->endpoint, f->is_dataset ? "datasets/" : "", f->name,
             f->commit, escaped);
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot be written", part);
    f->file = name;
    f->had = (int64_t)lseek(fd, 0, SEEK_END);
    log_write(FSDP_LOG_INFO, "downloading %s of %s: %.1f MB%s", name, f->name, 1e-6 * (double)bytes,
              f->had > 0 ? ", from where it stopped" : "");
    fsdp_status status = http_download(f->http, url, f->download_timeout, fd, part, bytes);
    if (status == FSDP_OK && fsync(fd) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot be written", part);
    close(fd);
    FSDP_TRY(status);
    status = check_hash(part, bytes, hash);
    if (status != FSDP_OK)
        unlink(part); /* going on from wrong bytes would never end */
    if (status == FSDP_OK && rename(part, blob) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot be put in place", blob);
    f->finished += bytes;
    f->result->downloaded += bytes - (f->had > 0 && f->had <= bytes ? f->had : 0);
    return status;
}

fsdp_status fetch_link(const fetch *f, const char *place, const char *name, const char *hash)
{
    char path[PATH_MAX], target[PATH_MAX] = "../../";
    if (snprintf(path, sizeof path, "%s/%s/%s/%s", f->folder, place, f->commit, name) >= PATH_MAX)
        return error_set(FSDP_ERR_INPUT, "%s: the path is too long", name);
    for (const char *p = strchr(name, '/'); p != NULL && strlen(target) < PATH_MAX / 2; p = strchr(p + 1, '/'))
        strcat(target, "../");
    snprintf(target + strlen(target), sizeof target - strlen(target), "blobs/%s", hash);
    *strrchr(path, '/') = '\0';
    FSDP_TRY(file_make_directories(path));
    path[strlen(path)] = '/';
    if (symlink(target, path) == 0 || errno == EEXIST)
        return FSDP_OK;
    return error_set_errno(FSDP_ERR_IO, "%s: cannot be linked", path);
}

/* What to do with each file, in turn. Blobs come before links: a snapshot that lacks files would be taken for the
 * whole. */
typedef enum pass_kind { COUNT, FETCH, LINK, N_PASSES } pass_kind;

static fsdp_status blob_path(const fetch *f, const char *hash, char out[PATH_MAX])
{
    return snprintf(out, PATH_MAX, "%s/blobs/%s", f->folder, hash) < PATH_MAX - 16
               ? FSDP_OK
               : error_set(FSDP_ERR_INPUT, "%s: the path of the cache is too long", f->folder);
}

bool fetch_has(const fetch *f, const char *hash)
{
    char blob[PATH_MAX];
    return blob_path(f, hash, blob) == FSDP_OK && file_exists(blob);
}

fsdp_status fetch_blob(fetch *f, const char *name, const char *hash, int64_t bytes)
{
    char blob[PATH_MAX];
    FSDP_TRY(blob_path(f, hash, blob));
    return file_exists(blob) ? FSDP_OK : download(f, name, hash, bytes, blob);
}

static fsdp_status treat_file(void *context, const char *name, const char *hash, int64_t bytes)
{
    fetch *f = context;
    if (f->pass == LINK)
        return fetch_link(f, "snapshots", name, hash);
    if (f->pass == FETCH)
        return fetch_blob(f, name, hash, bytes);
    f->total += fetch_has(f, hash) ? 0 : bytes;
    f->result->n_files++;
    f->result->bytes += bytes;
    return FSDP_OK;
}

/* --- the repository ---------------------------------------------------------------------------------------------- */

static fsdp_status give_file(const fetch *f, const json_t *file, fetch_visitor visit, void *context)
{
    const char *name = json_string_value(json_object_get(file, "rfilename"));
    const json_t *large = json_object_get(file, "lfs");
    const char *hash = json_string_value(json_object_get(large ? large : file, large ? "sha256" : "blobId"));
    int64_t bytes = json_integer_value(json_object_get(large ? large : file, "size"));
    if (!is_hex(hash, large ? 64 : 40) || bytes < 0)
        return error_set(FSDP_ERR_IO, "%s: the hub gives no hash for %s", f->name, name);
    return visit(context, name, hash, bytes);
}

fsdp_status fetch_visit(fetch *f, const json_t *listed, fetch_visitor visit, void *context)
{
    const json_t *files = json_object_get(listed, "siblings"), *file;
    const char *commit = json_string_value(json_object_get(listed, "sha"));
    size_t i;
    bool has_safetensors = false;
    if (!is_hex(commit, 40) || !json_is_array(files))
        return error_set(FSDP_ERR_IO, "%s: the hub's answer has no list of files", f->name);
    snprintf(f->commit, sizeof f->commit, "%s", commit);
    json_array_foreach((json_t *)(uintptr_t)files, i, file)
    {
        const char *name = json_string_value(json_object_get(file, "rfilename"));
        if (name == NULL || !is_safe(name))
            return error_set(FSDP_ERR_IO, "%s: the hub lists a file with an impossible name", f->name);
        has_safetensors = has_safetensors || ends_with(name, ".safetensors");
    }
    json_array_foreach((json_t *)(uintptr_t)files, i, file)
    {
        if (is_wanted(f, json_string_value(json_object_get(file, "rfilename")), has_safetensors))
            FSDP_TRY(give_file(f, file, visit, context));
    }
    return FSDP_OK;
}

static fsdp_status fetch_files(fetch *f, const json_t *listed)
{
    for (f->pass = COUNT; f->pass < N_PASSES; f->pass++)
        FSDP_TRY(fetch_visit(f, listed, treat_file, f));
    return f->result->n_files > 0
               ? FSDP_OK
               : error_set(FSDP_ERR_INPUT, "%s%s%s: the hub has no files of this kind there", f->name,
                           f->config_name ? ", " : "", f->config_name ? f->config_name : "");
}

fsdp_status fetch_name_commit(const fetch *f)
{
    char path[PATH_MAX];
    if (strcmp(f->revision, f->commit) == 0)
        return FSDP_OK;
    snprintf(path, sizeof path, "%s/refs/%s", f->folder, f->revision);
    *strrchr(path, '/') = '\0'; /* names of branches may have slashes */
    FSDP_TRY(file_make_directories(path));
    path[strlen(path)] = '/';
    return file_write_atomic(path, f->commit, strlen(f->commit));
}

fsdp_status fetch_list(fetch *f, json_t **listed)
{
    char url[PATH_MAX], *body = NULL, blobs[PATH_MAX], revision[3 * MAX_NAME + 1] = "";
    size_t bytes;
    *listed = NULL;
    for (const char *p = f->revision; *p; p++)
        snprintf(revision + strlen(revision), 4, *p == '/' ? "%%2F" : "%c", *p);
    snprintf(url, sizeof url, "%s/api/%s/%s/revision/%s?blobs=true", f->endpoint, f->is_dataset ? "datasets" : "models",
             f->name, revision);
    FSDP_TRY(http_get(f->http, url, f->api_timeout, &body, &bytes));
    fsdp_status status = json_parse(url, body, bytes, listed);
    free(body);
    FSDP_TRY(status);
    snprintf(blobs, sizeof blobs, "%s/blobs", f->folder);
    return file_make_directories(blobs);
}

static fsdp_status fetch_repository(fetch *f)
{
    json_t *listed;
    fsdp_status status = fetch_list(f, &listed);
    if (status == FSDP_OK)
        status = fetch_files(f, listed);
    json_decref(listed);
    return status == FSDP_OK ? fetch_name_commit(f) : status;
}

/* Whether the lock was stamped since *last, which is when it was then. */
static bool was_stamped(int lock, struct timespec *last)
{
    struct stat now;
    if (fstat(lock, &now) != 0 || (now.st_mtim.tv_sec == last->tv_sec && now.st_mtim.tv_nsec == last->tv_nsec))
        return false;
    *last = now.st_mtim;
    return true;
}

static fsdp_status wait_for_lock(const fetch *f, const char *path, const atomic_bool *stop)
{
    struct timespec pause = {0, POLL_MILLISECONDS * 1000000L}, last = {0, 0};
    double began = clock_seconds();
    bool said = false;
    was_stamped(f->lock, &last);
    while (flock(f->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) /* a file system without locks */
            return FSDP_OK;
        if (stop != NULL && atomic_load(stop))
            return error_set(FSDP_ERR_STATE, "%s: the download was stopped", f->name);
        if (was_stamped(f->lock, &last))
            note_move(f);
        if (clock_seconds() - began > LOCK_SECONDS)
            return error_set(FSDP_ERR_TIMEOUT, "%s: another process has been downloading for %d s", path, LOCK_SECONDS);
        if (!said)
            log_write(FSDP_LOG_INFO, "%s: another process of this host is downloading it; waiting", f->name);
        said = true;
        nanosleep(&pause, NULL);
    }
    return FSDP_OK;
}

fsdp_status fetch_lock(fetch *f, const atomic_bool *stop)
{
    char path[PATH_MAX];
    FSDP_TRY(file_make_directories(f->folder));
    snprintf(path, sizeof path, "%s/.fsdp.lock", f->folder);
    f->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->lock < 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot be opened", path);
    fsdp_status status = wait_for_lock(f, path, stop);
    if (status != FSDP_OK)
        fetch_unlock(f);
    return status;
}

void fetch_unlock(fetch *f)
{
    if (f->lock >= 0)
        close(f->lock);
    f->lock = -1;
}

static fsdp_status check_names(const fetch *f)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+@";
    const char *r = f->revision;
    if (!hub_is_name(f->name))
        return error_set(FSDP_ERR_INPUT, "%s: is no name of the hub, which are like org/name", f->name);
    if (!is_safe(r) || r[strspn(r, allowed)] != '\0')
        return error_set(FSDP_ERR_INPUT, "%s: revision \"%s\" is no name of a branch, a tag or a commit", f->name, r);
    if (f->config_name != NULL && !is_safe(f->config_name))
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" is no name of a configuration", f->name, f->config_name);
    return FSDP_OK;
}

/* Where it lies. */
static fsdp_status find_path(const fetch *f)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/snapshots/%s%s%s", f->folder, f->commit, f->config_name ? "/" : "",
             f->config_name ? f->config_name : "");
    f->result->path = strdup(path);
    return f->result->path != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory");
}

fsdp_status fetch_connect(fetch *f)
{
    char *token = find_token();
    fsdp_status status = find_endpoint(f);
    if (status == FSDP_OK)
        status = find_folder(f);
    if (status == FSDP_OK)
        status = http_open(f->endpoint, token, &f->http);
    if (status == FSDP_OK)
        http_on_progress(f->http, hear_progress, f);
    free(token);
    return status;
}

static fsdp_status fetch_now(fetch *f, const atomic_bool *stop)
{
    fsdp_status status = fetch_connect(f);
    if (status == FSDP_OK) {
        http_stop_when(f->http, stop);
        status = fetch_lock(f, stop);
    }
    if (status == FSDP_OK)
        status = fetch_repository(f);
    fetch_unlock(f);
    http_close(f->http);
    return status == FSDP_OK ? find_path(f) : status;
}

fsdp_status fetch_use_cache(const fetch *f, fsdp_status status)
{
    char why[1024], *found = NULL;
    snprintf(why, sizeof why, "%s", fsdp_last_error());
    if (hub_find(f->is_dataset ? HUB_DATASET : HUB_MODEL, f->name, f->config_name, &found) != FSDP_OK)
        return error_set(status, "%s", why);
    log_write(FSDP_LOG_WARNING, "%s: the hub cannot be reached; %s is used as it is", f->name, found);
    free(found);
    return FSDP_OK;
}

fsdp_status fetch_begin(fetch *f, const fsdp_fetch_config *config, fsdp_fetch_result *result)
{
    *f = (fetch){.config = config,
                 .result = result,
                 .is_dataset = config->kind == FSDP_FETCH_DATASET,
                 .name = config->name,
                 .lock = -1,
                 .revision = config->revision ? config->revision : "main",
                 .api_timeout = seconds_of("HF_HUB_ETAG_TIMEOUT"),
                 .download_timeout = seconds_of("HF_HUB_DOWNLOAD_TIMEOUT")};
    f->config_name = f->is_dataset && config->config_name && config->config_name[0] ? config->config_name : NULL;
    return check_names(f);
}

fsdp_status fsdp_fetch(const fsdp_fetch_config *config, fsdp_fetch_result *result)
{
    return hub_fetch(config, result, NULL);
}

fsdp_status hub_fetch(const fsdp_fetch_config *config, fsdp_fetch_result *result, const atomic_bool *stop)
{
    SIZED_READ(fsdp_fetch_config, FSDP_FETCH_CONFIG_INIT, full, config);
    SIZED_CHECK(fsdp_fetch_result, FSDP_FETCH_RESULT_INIT, result);
    fsdp_fetch_result done = FSDP_FETCH_RESULT_INIT;
    fetch f;
    if (full.name == NULL)
        return error_set(FSDP_ERR_INPUT, "nothing to fetch is named");
    fsdp_status status = FSDP_OK;
    if (!full.prefer_local || hub_is_remote(full.name)) {
        status = fetch_begin(&f, &full, &done);
        if (status == FSDP_OK)
            status = fetch_now(&f, stop);
        if (status == FSDP_ERR_TIMEOUT && f.commit[0] == '\0' && full.prefer_local && full.revision == NULL)
            status = fetch_use_cache(&f, status);
    }
    if (result == NULL || status != FSDP_OK) {
        free(done.path);
        done.path = NULL;
    }
    sized_write(result, &done, sizeof done);
    return status;
}
