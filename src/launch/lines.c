/* Cuts a rank's output into lines and writes each in one call. */
#include "launch/lines.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Output that nobody takes any more (a closed pipe) is dropped: the ranks work on. */
static void write_parts(int to, struct iovec *parts, int n)
{
    while (n > 0) {
        ssize_t written = writev(to, parts, n);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            return;
        }
        while (n > 0 && (size_t)written >= parts->iov_len) {
            written -= (ssize_t)parts->iov_len;
            parts++, n--;
        }
        if (n > 0) {
            parts->iov_base = (char *)parts->iov_base + written;
            parts->iov_len -= (size_t)written;
        }
    }
}

static void write_line(const line_pipe *p, const char *text, size_t bytes, bool newline)
{
    struct iovec parts[] = {
        {.iov_base = (char *)p->prefix, .iov_len = strlen(p->prefix)},
        {.iov_base = (char *)text, .iov_len = bytes},
        {.iov_base = "\n", .iov_len = 1},
    };
    write_parts(p->to, parts, newline ? 3 : 2);
}

static void pass_lines(line_pipe *p)
{
    size_t start = 0;
    for (;;) {
        char *end = memchr(p->line + start, '\n', p->bytes - start);
        if (!end)
            break;
        size_t next = (size_t)(end - p->line) + 1;
        write_line(p, p->line + start, next - start, false);
        start = next;
    }
    if (start == 0 && p->bytes == LINE_BYTES) {
        write_line(p, p->line, p->bytes, true);
        start = p->bytes;
    }
    p->bytes -= start;
    memmove(p->line, p->line + start, p->bytes);
}

bool line_pipe_drain(line_pipe *p)
{
    for (;;) {
        ssize_t got = read(p->from, p->line + p->bytes, LINE_BYTES - p->bytes);
        if (got > 0) {
            p->bytes += (size_t)got;
            pass_lines(p);
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (p->bytes)
            write_line(p, p->line, p->bytes, true);
        p->bytes = 0;
        close(p->from);
        p->from = -1;
        return false;
    }
}
