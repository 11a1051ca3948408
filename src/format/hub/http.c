/* libcurl does one exchange at a time; what to make of its outcome is decided here. */
#include "format/hub/http.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

#ifdef FSDP_WITH_CURL
#include "format/hub/libcurl.h"

enum {
    ATTEMPTS = 5,
    MAX_REDIRECTS = 10,
    CONNECT_SECONDS = 10,
    MAX_WAIT_SECONDS = 300,
    MAX_BODY = 256 << 20 /* a list of a million files */
};

struct http {
    curl_api api;
    CURL *curl;
    char *endpoint;
    struct curl_slist *authorized, *plain; /* headers with the token, and without */
    void (*progress)(void *context, int64_t bytes);
    void *progress_context;
    const atomic_bool *stop; /* NULL: never */
};

/* One exchange: what came back, and where the body goes. */
typedef struct exchange {
    const http *http;
    long code;
    char location[4096];
    double retry_after;
    int fd; /* -1: into memory */
    int64_t limit, written;
    bool begun, refused; /* the body was begun; it could not be kept */
    char *body;
    size_t bytes, capacity;
} exchange;

fsdp_status http_open(const char *endpoint, const char *token, http **out)
{
    char line[4200];
    *out = NULL;
    if (token != NULL && (strlen(token) > 4000 || strpbrk(token, "\r\n") != NULL))
        return error_set(FSDP_ERR_INPUT, "HF_TOKEN is not a token: it is too long or has line breaks");
    http *h = calloc(1, sizeof *h);
    if (h == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    fsdp_status status = libcurl_open(&h->api);
    if (status != FSDP_OK) {
        free(h);
        return status;
    }
    if (h->api.curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || (h->curl = h->api.curl_easy_init()) == NULL ||
        (h->endpoint = strdup(endpoint)) == NULL) {
        http_close(h);
        return error_set(FSDP_ERR_MEMORY, "libcurl cannot be started");
    }
    h->plain = h->api.curl_slist_append(NULL, "User-Agent: fsdp");
    h->authorized = h->api.curl_slist_append(NULL, "User-Agent: fsdp");
    snprintf(line, sizeof line, "Authorization: Bearer %s", token != NULL ? token : "");
    if (token != NULL && h->authorized != NULL)
        h->authorized = h->api.curl_slist_append(h->authorized, line);
    *out = h;
    return FSDP_OK;
}

void http_close(http *h)
{
    if (h == NULL)
        return;
    h->api.curl_slist_free_all(h->plain);
    h->api.curl_slist_free_all(h->authorized);
    h->api.curl_easy_cleanup(h->curl);
    free(h->endpoint);
    free(h);
}

void http_on_progress(http *h, void (*progress)(void *context, int64_t bytes), void *context)
{
    h->progress = progress;
    h->progress_context = context;
}

void http_stop_when(http *h, const atomic_bool *stop)
{
    h->stop = stop;
}

static bool is_stopped(const http *h)
{
    return h->stop != NULL && atomic_load(h->stop);
}

/* libcurl asks this every second at the least; other than 0 ends the exchange. */
static int ask_to_stop(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return is_stopped(context);
}

/* --- one exchange ------------------------------------------------------------------------------------------------ */

static size_t take_header(char *data, size_t size, size_t n, void *context)
{
    exchange *x = context;
    size_t bytes = size * n;
    if (bytes > 9 && strncmp(data, "HTTP/", 5) == 0) {
        const char *space = memchr(data, ' ', bytes);
        x->code = space ? strtol(space, NULL, 10) : 0;
    } else if (bytes > 9 && strncasecmp(data, "location:", 9) == 0) {
        snprintf(x->location, sizeof x->location, "%.*s", (int)(bytes - 9), data + 9);
        x->location[strcspn(x->location, "\r\n")] = '\0';
    } else if (bytes > 12 && strncasecmp(data, "retry-after:", 12) == 0) {
        x->retry_after = strtod(data + 12, NULL);
    }
    return bytes;
}

static bool keep_in_memory(exchange *x, const char *data, size_t bytes)
{
    if (x->bytes + bytes > (size_t)x->limit)
        return false;
    if (x->bytes + bytes + 1 > x->capacity) {
        size_t larger = 2 * (x->bytes + bytes) + 1024;
        char *body = realloc(x->body, larger);
        if (body == NULL)
            return false;
        x->body = body;
        x->capacity = larger;
    }
    memcpy(x->body + x->bytes, data, bytes);
    x->bytes += bytes;
    x->body[x->bytes] = '\0';
    return true;
}

/* A server that does not know ranges sends all of it again. */
static bool keep_in_file(exchange *x, const char *data, size_t bytes)
{
    if (!x->begun && x->code == 200) {
        if (ftruncate(x->fd, 0) != 0 || lseek(x->fd, 0, SEEK_SET) != 0)
            return false;
        x->written = 0;
    }
    x->begun = true;
    if (x->written + (int64_t)bytes > x->limit) /* more than was promised: wrong, whatever follows */
        return false;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = write(x->fd, data + done, bytes - done);
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    x->written += (int64_t)bytes;
    if (x->http->progress != NULL)
        x->http->progress(x->http->progress_context, x->written);
    return true;
}

static size_t take_body(char *data, size_t size, size_t n, void *context)
{
    exchange *x = context;
    size_t bytes = size * n;
    if (x->code != 200 && x->code != 206)
        return bytes; /* what an error or a redirect says in its body is nobody's file */
    bool kept = x->fd < 0 ? keep_in_memory(x, data, bytes) : keep_in_file(x, data, bytes);
    x->refused = !kept;
    return kept ? bytes : 0;
}

/* Scheme, host and port. */
static bool same_origin(const curl_api *api, const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *urls[2] = {api->curl_url(), api->curl_url()};
    bool same = urls[0] && urls[1] && api->curl_url_set(urls[0], CURLUPART_URL, a, 0) == CURLUE_OK &&
                api->curl_url_set(urls[1], CURLUPART_URL, b, 0) == CURLUE_OK;
    for (int i = 0; i < 3 && same; i++) {
        char *values[2] = {NULL, NULL};
        for (int k = 0; k < 2; k++)
            api->curl_url_get(urls[k], parts[i], &values[k], CURLU_DEFAULT_PORT);
        same = values[0] && values[1] && strcasecmp(values[0], values[1]) == 0;
        api->curl_free(values[0]);
        api->curl_free(values[1]);
    }
    api->curl_url_cleanup(urls[0]);
    api->curl_url_cleanup(urls[1]);
    return same;
}

/* Where `location`, absolute or not, leads from `url`; malloc'd, NULL: nowhere that may be followed. */
static char *redirected(const curl_api *api, const char *url, const char *location)
{
    CURLU *u = api->curl_url();
    char *whole = NULL, *copy = NULL;
    while (*location == ' ')
        location++;
    if (u && api->curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        api->curl_url_set(u, CURLUPART_URL, location, 0) == CURLUE_OK &&
        api->curl_url_get(u, CURLUPART_URL, &whole, 0) == CURLUE_OK) {
        bool weaker = strncasecmp(url, "https:", 6) == 0 && strncasecmp(whole, "https:", 6) != 0;
        copy = weaker ? NULL : strdup(whole);
    }
    api->curl_free(whole);
    api->curl_url_cleanup(u);
    return copy;
}

static CURLcode exchange_once(http *h, const char *url, double timeout, exchange *x)
{
    const curl_api *api = &h->api;
    CURL *c = h->curl;
    char range[32];
    x->code = 0;
    x->location[0] = '\0';
    x->retry_after = 0;
    x->begun = x->refused = false;
    api->curl_easy_reset(c);
    api->curl_easy_setopt(c, CURLOPT_URL, url);
    api->curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    api->curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    api->curl_easy_setopt(c, CURLOPT_HTTPHEADER, same_origin(&h->api, h->endpoint, url) ? h->authorized : h->plain);
    api->curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    api->curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    api->curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)(timeout < 1 ? 1 : timeout));
    api->curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    api->curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    api->curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    api->curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    api->curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    api->curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, ask_to_stop);
    api->curl_easy_setopt(c, CURLOPT_XFERINFODATA, h);
    if (x->fd >= 0 && x->written > 0) { /* not RESUME_FROM, with which libcurl gives up on a server without ranges */
        snprintf(range, sizeof range, "%lld-", (long long)x->written);
        api->curl_easy_setopt(c, CURLOPT_RANGE, range);
    }
    return api->curl_easy_perform(c);
}

/* One exchange and those that it is redirected to. */
static fsdp_status follow(http *h, const char *url, double timeout, exchange *x, CURLcode *rc)
{
    char *at = strdup(url);
    for (int i = 0; at != NULL; i++) {
        *rc = exchange_once(h, at, timeout, x);
        bool moved = x->code >= 301 && x->code <= 308 && x->code != 304 && x->location[0];
        if (!moved)
            break;
        char *next = i < MAX_REDIRECTS ? redirected(&h->api, at, x->location) : NULL;
        free(at);
        at = next;
        if (next == NULL)
            return error_set(FSDP_ERR_IO, "%s: redirects that cannot be followed", url);
    }
    fsdp_status status = at != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory");
    free(at);
    return status;
}

/* --- until it is done -------------------------------------------------------------------------------------------- */

static void pause_for(const http *h, double seconds)
{
    for (; seconds > 0 && !is_stopped(h); seconds -= 0.25) {
        struct timespec pause = {0, (long)((seconds < 0.25 ? seconds : 0.25) * 1e9)};
        nanosleep(&pause, NULL);
    }
}

static bool may_pass(long code)
{
    return code == 408 || code == 429 || (code >= 500 && code <= 504);
}

static fsdp_status refuse(const char *url, const exchange *x)
{
    if (x->code == 200 || x->code == 206)
        return error_set(FSDP_ERR_TIMEOUT, "%s: the hub sends %lld of %lld bytes, again and again", url,
                         (long long)x->written, (long long)x->limit);
    if (may_pass(x->code))
        return error_set(FSDP_ERR_TIMEOUT, "%s: the hub answers %ld, again and again; try later", url, x->code);
    if (x->code == 401 || x->code == 403)
        return error_set(
            FSDP_ERR_INPUT,
            "%s: the hub refuses it (%ld): it does not exist, or is private or gated: set HF_TOKEN to a token "
            "that may read it",
            url, x->code);
    return error_set(x->code == 404 ? FSDP_ERR_INPUT : FSDP_ERR_IO, "%s: the hub answers %ld%s", url, x->code,
                     x->code == 404 ? ": there is no such thing" : "");
}

/* Until the answer is good (200, 206), or nothing helps. Every attempt that gets further than all before it begins to
 * count anew. */
static fsdp_status persist(http *h, const char *url, double timeout, exchange *x)
{
    int64_t furthest = x->written;
    for (int attempt = 1;; attempt++) {
        CURLcode rc = CURLE_OK;
        x->bytes = 0;
        FSDP_TRY(follow(h, url, timeout, x, &rc));
        if (is_stopped(h))
            return error_set(FSDP_ERR_STATE, "%s: the download was stopped", url);
        if (x->refused)
            return error_set(FSDP_ERR_IO,
                             "%s: cannot be kept: there is no room for it, or more comes than the %lld bytes that were "
                             "promised",
                             url, (long long)x->limit);
        if (rc == CURLE_OK && (x->code == 200 || x->code == 206) && (x->fd < 0 || x->written == x->limit))
            return FSDP_OK;
        bool again = x->code == 0 || x->code == 200 || x->code == 206 || may_pass(x->code);
        if (!again)
            return refuse(url, x);
        attempt = x->written > furthest ? 1 : attempt;
        furthest = x->written > furthest ? x->written : furthest;
        double wait = x->retry_after > 0 ? x->retry_after : 0.25 * (double)(1 << attempt);
        if (attempt >= ATTEMPTS || wait > MAX_WAIT_SECONDS)
            return rc != CURLE_OK ? error_set(FSDP_ERR_TIMEOUT,
                                              "%s: %s, %d times in a row; check the network, HTTPS_PROXY and "
                                              "HF_ENDPOINT",
                                              url, h->api.curl_easy_strerror(rc), attempt)
                                  : refuse(url, x);
        log_write(FSDP_LOG_WARNING, "%s: %s; again in %.1f s", url,
                  rc != CURLE_OK   ? h->api.curl_easy_strerror(rc)
                  : x->code == 429 ? "the hub asks to wait"
                                   : "the hub is busy",
                  wait);
        pause_for(h, wait);
    }
}

fsdp_status http_get(http *h, const char *url, double timeout, char **body, size_t *bytes)
{
    exchange x = {.http = h, .fd = -1, .limit = MAX_BODY};
    fsdp_status status = persist(h, url, timeout, &x);
    if (status != FSDP_OK) {
        free(x.body);
        return status;
    }
    *body = x.body != NULL ? x.body : strdup("");
    *bytes = x.bytes;
    return *body != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory");
}

fsdp_status http_download(http *h, const char *url, double timeout, int fd, const char *path, int64_t bytes)
{
    exchange x = {.http = h, .fd = fd, .limit = bytes};
    x.written = (int64_t)lseek(fd, 0, SEEK_END);
    if (x.written < 0 || x.written > bytes) { /* not a part of this file */
        if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot be written", path);
        x.written = 0;
    }
    return x.written == bytes ? FSDP_OK : persist(h, url, timeout, &x);
}

#else

static fsdp_status missing(void)
{
    return error_set(FSDP_ERR_UNSUPPORTED,
                     "this build cannot download: it was made without libcurl (apt install libcurl4-openssl-dev, build "
                     "again)");
}

fsdp_status http_open(const char *endpoint, const char *token, http **out)
{
    (void)endpoint;
    (void)token;
    *out = NULL;
    return missing();
}

void http_close(http *h)
{
    (void)h;
}

void http_on_progress(http *h, void (*progress)(void *context, int64_t bytes), void *context)
{
    (void)h, (void)progress, (void)context;
}

void http_stop_when(http *h, const atomic_bool *stop)
{
    (void)h, (void)stop;
}

fsdp_status http_get(http *h, const char *url, double timeout, char **body, size_t *bytes)
{
    (void)h, (void)url, (void)timeout, (void)body, (void)bytes;
    return missing();
}

fsdp_status http_download(http *h, const char *url, double timeout, int fd, const char *path, int64_t bytes)
{
    (void)h, (void)url, (void)timeout, (void)fd, (void)path, (void)bytes;
    return missing();
}

#endif
