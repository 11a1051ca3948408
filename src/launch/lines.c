/* Cuts a rank's output into lines and writes each in one call. */
#include "launch/lines.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Who is waited for before every piece of output. */
typedef struct outlet {
    line_patience wait;
    void *context;
    int *refused;
} outlet;

/* Pieces that a pipe takes without blocking. Output that cannot be written is dropped and the ranks work on; unless the
 * reader closed its pipe, the failure is kept for the end. */
static bool write_part(const outlet *o, int to, const char *text, size_t bytes)
{
    while (bytes > 0) {
        if (!o->wait(o->context, to))
            return false;
        ssize_t written = write(to, text, bytes < PIPE_BUF ? bytes : PIPE_BUF);
        if (written < 0 && errno != EINTR && errno != EAGAIN) {
            if (errno != EPIPE && *o->refused == 0)
                *o->refused = errno;
            return false;
        }
        if (written > 0)
            text += written, bytes -= (size_t)written;
    }
    return true;
}

/* Into the file, which is not waited for. */
static void keep(const outlet *o, int file, const char *text, size_t bytes)
{
    while (file >= 0 && bytes > 0) {
        ssize_t written = write(file, text, bytes);
        if (written < 0 && errno != EINTR) {
            if (*o->refused == 0)
                *o->refused = errno;
            return;
        }
        if (written > 0)
            text += written, bytes -= (size_t)written;
    }
}

#define CLEAR_LINE "\r\033[K"

/* What stays begins where the line stands that is rewritten. */
static void clear_live(const outlet *o, const line_pipe *p)
{
    if (*p->live)
        write_part(o, STDOUT_FILENO, CLEAR_LINE, sizeof CLEAR_LINE - 1);
    *p->live = false;
}

static void write_live(const outlet *o, const line_pipe *p, const char *text, size_t bytes)
{
    *p->live = write_part(o, p->to, CLEAR_LINE, sizeof CLEAR_LINE - 1) && write_part(o, p->to, text, bytes);
}

/* Short lines, most of them, go out in one call. */
static void write_line(const outlet *o, const line_pipe *p, const char *text, size_t bytes, bool newline)
{
    char whole[PIPE_BUF];
    size_t front = strlen(p->prefix);
    keep(o, p->file, text, bytes);
    if (p->to < 0)
        return;
    clear_live(o, p);
    if (front + bytes + 1 <= sizeof whole) {
        memcpy(whole, p->prefix, front);
        memcpy(whole + front, text, bytes);
        whole[front + bytes] = '\n';
        write_part(o, p->to, whole, front + bytes + newline);
    } else if (write_part(o, p->to, p->prefix, front) && write_part(o, p->to, text, bytes) && newline) {
        write_part(o, p->to, "\n", 1);
    }
}

/* Where the next line ends; NULL: not yet. "\r\n" is one end. */
static char *find_end(const line_pipe *p, size_t start)
{
    char *text = (char *)p->line + start;
    size_t bytes = p->bytes - start;
    char *newline = memchr(text, '\n', bytes), *back = p->rewrites ? memchr(text, '\r', bytes) : NULL;
    return back && (!newline || back + 1 < newline) ? back : newline;
}

static void pass_lines(const outlet *o, line_pipe *p)
{
    size_t start = 0;
    for (;;) {
        char *end = find_end(p, start);
        if (!end)
            break;
        size_t next = (size_t)(end - p->line) + 1;
        if (*end == '\r')
            write_live(o, p, p->line + start, next - start - 1);
        else
            write_line(o, p, p->line + start, next - start, false);
        start = next;
    }
    if (start == 0 && p->bytes == LINE_BYTES) {
        write_line(o, p, p->line, p->bytes, true);
        start = p->bytes;
    }
    p->bytes -= start;
    memmove(p->line, p->line + start, p->bytes);
}

void line_pipe_drain(line_pipe *p, line_patience wait, void *context)
{
    outlet o = {wait, context, &p->refused};
    ssize_t got = read(p->from, p->line + p->bytes, LINE_BYTES - p->bytes);
    if (got > 0) {
        p->bytes += (size_t)got;
        pass_lines(&o, p);
        return;
    }
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (p->bytes)
        write_line(&o, p, p->line, p->bytes, true);
    p->bytes = 0;
    close(p->from);
    if (p->file >= 0)
        close(p->file);
    p->from = p->file = -1;
}
