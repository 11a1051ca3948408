/* Reads torchrun's ways to say which stream goes where. */
#include "launch/outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <limits.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

enum { BOTH = OUTPUT_OUT | OUTPUT_ERR };

static void add(output_choice *c, long streams, bool shows)
{
    for (int k = 0; k < 2; k++)
        if (streams & (k == 0 ? OUTPUT_OUT : OUTPUT_ERR)) {
            c->kept[k] = true;
            c->shown[k] = shows;
        }
}

/* "3", or "0:1,1:3": streams of all ranks, or by local rank. */
static fsdp_status read_streams(const char *flag, const char *text, outputs *o, bool shows)
{
    for (const char *at = text; at && *at;) {
        char *end;
        long rank = -1, streams = strtol(at, &end, 10);
        if (end != at && *end == ':') {
            rank = streams;
            at = end + 1;
            streams = strtol(at, &end, 10);
        }
        if (end == at || (*end && *end != ',') || streams < 0 || streams > BOTH || rank >= o->n || (rank < 0 && *end))
            return error_set(FSDP_ERR_INPUT,
                             "%s '%s' is neither 0, 1 (stdout), 2 (stderr), 3 (both) nor a list such as 0:1,1:3 of "
                             "local ranks up to %d",
                             flag, text, o->n - 1);
        for (int i = 0; i < o->n; i++)
            if (rank < 0 || rank == i)
                add(&o->ranks[i], streams, shows);
        at = *end ? end + 1 : end;
    }
    return FSDP_OK;
}

static fsdp_status read_filter(const char *text, outputs *o)
{
    bool *wanted = calloc((size_t)o->n, sizeof *wanted);
    fsdp_status status = wanted ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "no memory for %d ranks", o->n);
    for (const char *at = text; status == FSDP_OK && *at;) {
        char *end;
        long rank = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || rank < 0 || rank >= o->n)
            status = error_set(FSDP_ERR_INPUT, "--local_ranks_filter '%s' is not a list of local ranks from 0 to %d",
                               text, o->n - 1);
        else
            wanted[rank] = true;
        at = *end ? end + 1 : end;
    }
    for (int i = 0; status == FSDP_OK && i < o->n; i++)
        if (!wanted[i])
            o->ranks[i].shown[0] = o->ranks[i].shown[1] = false;
    free(wanted);
    return status;
}

fsdp_status outputs_read(const fsdp_launch_config *c, outputs *out)
{
    *out = (outputs){.n = c->n_ranks, .log_dir = c->log_dir};
    out->ranks = calloc((size_t)c->n_ranks, sizeof *out->ranks);
    if (!out->ranks)
        return error_set(FSDP_ERR_MEMORY, "no memory for %d ranks", c->n_ranks);
    for (int i = 0; i < out->n; i++)
        out->ranks[i].shown[0] = out->ranks[i].shown[1] = true;
    FSDP_TRY(read_streams("--redirects", c->redirects, out, false));
    FSDP_TRY(read_streams("--tee", c->tee, out, true));
    if (c->shown_ranks)
        FSDP_TRY(read_filter(c->shown_ranks, out));
    for (int i = 0; i < out->n; i++)
        if ((out->ranks[i].kept[0] || out->ranks[i].kept[1]) && !c->log_dir)
            return error_set(FSDP_ERR_INPUT, "--redirects and --tee need --log_dir: where the files go");
    return FSDP_OK;
}

void outputs_free(outputs *o)
{
    free(o->ranks);
    *o = (outputs){0};
}

/* Length of the macro at `at`, "$rank", "${rank}" or "$$", and its value; 0: there is none. */
static size_t read_macro(const char *at, int rank, int local_rank, char value[HOST_NAME_MAX + 1])
{
    static const char *const names[] = {"rank", "local_rank", "role_name", "hostname"};
    bool braced = at[0] == '$' && at[1] == '{';
    const char *name = at + 1 + braced;
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"), which = 0;
    if (at[0] != '$')
        return 0;
    if (at[1] == '$')
        return snprintf(value, 2, "$"), 2;
    while (which < 4 && (strlen(names[which]) != length || strncmp(names[which], name, length) != 0))
        which++;
    if (which == 4 || (braced && name[length] != '}'))
        return 0;
    if (which < 2)
        snprintf(value, HOST_NAME_MAX + 1, "%d", which == 0 ? rank : local_rank);
    else if (which == 2 || gethostname(value, HOST_NAME_MAX + 1) != 0)
        snprintf(value, HOST_NAME_MAX + 1, "%s", which == 2 ? "default" : "localhost");
    return 1 + length + (braced ? 2 : 0);
}

void outputs_prefix(const char *template, int rank, int local_rank, char out[LINE_PREFIX_BYTES])
{
    char value[HOST_NAME_MAX + 1] = "";
    size_t n = 0;
    for (const char *at = template ? template : "[rank ${rank}] "; *at && n + 1 < LINE_PREFIX_BYTES;) {
        size_t macro = read_macro(at, rank, local_rank, value);
        size_t room = LINE_PREFIX_BYTES - n, bytes = macro ? strlen(value) : 1;
        bytes = bytes < room ? bytes : room - 1;
        memcpy(out + n, macro ? value : at, bytes);
        n += bytes;
        at += macro ? macro : 1;
    }
    out[n] = 0;
}

fsdp_status outputs_open(const outputs *o, int local_rank, int restart, int rank, int stream, int *fd)
{
    char *folder = NULL, *path = NULL;
    fsdp_status status = FSDP_OK;
    *fd = -1;
    if (!o->ranks[local_rank].kept[stream])
        return FSDP_OK;
    if (asprintf(&folder, "%s/attempt_%d/%d", o->log_dir, restart, rank) < 0 ||
        asprintf(&path, "%s/%s.log", folder, stream == 0 ? "stdout" : "stderr") < 0)
        status = error_set(FSDP_ERR_MEMORY, "no memory for a path");
    if (status == FSDP_OK)
        status = file_make_directories(folder);
    if (status == FSDP_OK && (*fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot be written", path);
    free(path);
    free(folder);
    return status;
}
