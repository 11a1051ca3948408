/* `fsdp top`: finds the run, asks its page or reads its folder. */
#include <fsdp/top.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/host/environment.h"
#include "base/json.h"
#include "base/sized.h"
#include "report/history.h"
#include "report/live/server_ask.h"
#include "report/live/top_text.h"
#include "report/report_data.h"

enum { TOKEN_BYTES = 64, MOST_PLACE = 4096 };
static const size_t most_document = 32 << 20;
static const double patience = 10; /* seconds */
static const char newest_run[] = "fsdp_runs/latest";

typedef struct target {
    const char *folder; /* NULL: an address */
    endpoint server;
    bool silent; /* the folder names a page of this host that does not answer for the run */
    char token[TOKEN_BYTES];
} target;

/* ---- Which run ---- */

static fsdp_status set_token(target *t, const char *text, size_t bytes)
{
    if (bytes >= sizeof t->token)
        return error_set(FSDP_ERR_INPUT, "a token has at most %d characters", TOKEN_BYTES - 1);
    memcpy(t->token, text, bytes);
    t->token[bytes] = '\0';
    return FSDP_OK;
}

/* "8080", "host:8080", or the address that the run printed: "http://host:8080/?token=...". */
static fsdp_status read_address(const char *text, target *t)
{
    char place[ENDPOINT_TEXT_BYTES];
    const char *begin = strncmp(text, "http://", 7) == 0 ? text + 7 : text, *token = strstr(begin, "?token=");
    size_t n = strcspn(begin, "/?");
    if (n == 0 || n >= sizeof place || strncmp(begin, "unix:", 5) == 0)
        return error_set(FSDP_ERR_INPUT, "%s: no folder of a run, and no HOST:PORT", text);
    bool only_port = n > 0 && strspn(begin, "0123456789") == n;
    snprintf(place, sizeof place, "%s%.*s", only_port ? "127.0.0.1:" : "", (int)n, begin);
    FSDP_TRY(endpoint_parse(place, 0, &t->server));
    if (t->server.port == 0)
        return error_set(FSDP_ERR_INPUT, "%s: no folder of a run; of a host, give its port, too: %s:PORT", text, place);
    return token ? set_token(t, token + 7, strcspn(token + 7, "&#")) : FSDP_OK;
}

static fsdp_status find_target(const fsdp_top_config *c, target *t)
{
    const char *token = c->token ? c->token : environment_text("FSDP_DASHBOARD_TOKEN");
    const char *text = c->target ? c->target : newest_run;
    *t = (target){0};
    if (token)
        FSDP_TRY(set_token(t, token, strlen(token)));
    if (file_is_directory(text)) {
        t->folder = text;
        return FSDP_OK;
    }
    if (!c->target)
        return error_set(FSDP_ERR_INPUT, "there is no %s here; give a run's folder, or HOST:PORT of its --dashboard",
                         newest_run);
    return read_address(text, t);
}

/* ---- Asking ---- */

static fsdp_status ask(const target *t, json_t **out)
{
    char *text, where[ENDPOINT_TEXT_BYTES];
    size_t bytes;
    FSDP_TRY(server_ask(&t->server, "/now.json", t->token, most_document, patience, &text, &bytes));
    fsdp_status status = json_parse(endpoint_text(&t->server, where), text, bytes, out);
    free(text);
    return status;
}

/* dashboard.json says where the run shows itself. It counts only when it is our own user's and of this host, address
 * and all (others may share the folder; the token is not for whoever listens elsewhere). */
static bool read_place(target *t, json_t **place)
{
    struct stat info;
    char *path = file_join(t->folder, "dashboard.json"), host[256] = "";
    int fd;
    gethostname(host, sizeof host - 1);
    bool own = path && lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= MOST_PLACE &&
               info.st_uid == geteuid() && json_read_file(path, place) == FSDP_OK;
    free(path);
    json_int_t port = json_integer_value(json_object_get(*place, "port"));
    const char *token = json_string_value(json_object_get(*place, "token"));
    const char *at = json_string_value(json_object_get(*place, "host"));
    const char *address = json_string_value(json_object_get(*place, "address"));
    if (!own || !at || strcmp(at, host) != 0 || !address || port <= 0 || port >= 65536 ||
        (token && set_token(t, token, strlen(token)) != FSDP_OK))
        return false;
    endpoint here = {.port = 0};
    snprintf(here.host, sizeof here.host, "%s", address);
    if (endpoint_listen(&here, false, &fd) != FSDP_OK) /* not an address of this host */
        return false;
    close(fd);
    t->server = here;
    t->server.port = (int)port;
    return true;
}

/* The answer counts only when it has the file's id: the file may be of a run that was killed. */
static bool ask_folder(target *t, json_t **out)
{
    json_t *place = NULL;
    const json_t *id;
    bool known = read_place(t, &place), found = known && ask(t, out) == FSDP_OK;
    if (found) {
        id = json_object_get(place, "id");
        found = json_is_string(id) && json_equal(id, json_object_get(json_object_get(*out, "live"), "id"));
        if (!found)
            json_decref(*out);
    }
    t->silent = known && !found;
    json_decref(place);
    return found;
}

/* Seconds since the last line of metrics.jsonl. */
static double age_of(const char *folder)
{
    struct stat info;
    char *path = file_join(folder, "metrics.jsonl");
    bool there = path && stat(path, &info) == 0;
    free(path);
    return there ? difftime(time(NULL), info.st_mtime) : NAN;
}

static fsdp_status read_folder(const target *t, json_t **out)
{
    const char *folder = t->folder;
    char where[ENDPOINT_TEXT_BYTES];
    run_files files = {0};
    fsdp_status status = run_files_read(folder, &files);
    if (status == FSDP_OK) {
        if (t->silent)
            run_files_trouble(&files, "the run's page at %s does not answer: this is what its files say",
                              endpoint_text(&t->server, where));
        json_t *run = report_data(&files, NULL);
        json_object_set_new(run, "age", history_number(age_of(folder)));
        *out = json_pack("{s:[o]}", "runs", run);
        if (!*out)
            status = error_set(FSDP_ERR_MEMORY, "%s: out of host memory", folder);
    }
    run_files_clear(&files);
    return status;
}

fsdp_status fsdp_top(const fsdp_top_config *config, char **text)
{
    target t;
    json_t *document = NULL;
    *text = NULL;
    SIZED_READ(fsdp_top_config, FSDP_TOP_CONFIG_INIT, c, config);
    FSDP_TRY(find_target(&c, &t));
    if (!t.folder)
        FSDP_TRY(ask(&t, &document));
    else if (!ask_folder(&t, &document))
        FSDP_TRY(read_folder(&t, &document));
    fsdp_status status = top_text(document, c.columns, c.rows, text);
    json_decref(document);
    return status;
}
