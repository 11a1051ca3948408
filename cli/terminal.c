/* Writes lines and progress; knows escape sequences, and nothing of what is written. */
#include "terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

terminal terminal_open(FILE *out)
{
    terminal t = {.out = out};
    const char *kind = getenv("TERM");
    struct winsize size;
    t.live = isatty(fileno(out)) && kind && strcmp(kind, "dumb") != 0;
    if (t.live)
        t.columns = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    return t;
}

static void clear_progress(terminal *t)
{
    if (t->shown)
        fputs("\r\033[K", t->out);
    t->shown = false;
}

void terminal_progress(terminal *t, const char *text)
{
    if (!t->live) {
        terminal_line(t, text);
        return;
    }
    clear_progress(t);
    /* A line that wraps cannot be taken back: it is cut one short of the edge. */
    fprintf(t->out, "%.*s", t->columns - 1, text);
    fflush(t->out);
    t->shown = true;
}

void terminal_line(terminal *t, const char *text)
{
    clear_progress(t);
    fprintf(t->out, "%s\n", text);
    fflush(t->out);
}

void terminal_close(terminal *t)
{
    if (t->shown)
        fputc('\n', t->out);
    t->shown = false;
    fflush(t->out);
}
