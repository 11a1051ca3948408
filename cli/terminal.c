/* Writes lines and progress; knows escape sequences, and nothing of what is written. */
#include "terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The width of the terminal that `fsdp run` shows `out` on; 0: it does not. The variable names the pipe because
 * whatever we start, or whoever starts us, has it too. */
static int passed_columns(FILE *out)
{
    const char *text = getenv("FSDP_TERMINAL");
    unsigned long long number;
    struct stat file;
    int columns;
    if (!text || sscanf(text, "%d:%llu", &columns, &number) != 2 || columns < 2)
        return 0;
    return fstat(fileno(out), &file) == 0 && S_ISFIFO(file.st_mode) && file.st_ino == number ? columns : 0;
}

terminal terminal_open(FILE *out)
{
    terminal t = {.out = out};
    const char *kind = getenv("TERM");
    struct winsize size;
    t.live = isatty(fileno(out)) && kind && strcmp(kind, "dumb") != 0;
    if (t.live)
        t.columns = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    else if ((t.columns = passed_columns(out)) > 0)
        t.live = t.passed = true;
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
    if (t->passed) {
        fprintf(t->out, "%.*s\r", t->columns - 1, text);
        fflush(t->out);
        return;
    }
    clear_progress(t);
    /* A line that wraps cannot be taken back: it is cut one short of the edge. */
    fprintf(t->out, "%.*s", t->columns - 1, text);
    fflush(t->out);
    t->shown = true;
}

void terminal_bar(char *cells, double part)
{
    for (int i = 0; i < 24; i++)
        cells[i] = i < 24 * part ? '#' : '.';
    cells[24] = 0;
}

void terminal_line(terminal *t, const char *text)
{
    clear_progress(t);
    fprintf(t->out, "%s\n", text);
    fflush(t->out);
}

/* Bytes of the UTF-8 character at `p`; 0: there is none. */
static size_t character(const unsigned char *p, size_t bytes)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80                   ? 1
               : p[0] >= 0xF0 && p[0] < 0xF5 ? 4
               : p[0] >= 0xE0 && p[0] < 0xF0 ? 3
               : p[0] >= 0xC2 && p[0] < 0xE0 ? 2
                                             : 0;
    unsigned code = n < 2 ? p[0] : p[0] & (0xFFu >> (n + 1));
    if (n == 0 || n > bytes)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3F);
    }
    return n > 1 && (code < least[n] || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) ? 0 : n;
}

void terminal_text(FILE *out, const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t n; bytes > 0; p += n, bytes -= n) {
        n = character(p, bytes);
        bool control = n == 1 && (p[0] < 0x20 || p[0] == 0x7F) && p[0] != '\n' && p[0] != '\t';
        bool late_control = n == 2 && p[0] == 0xC2 && p[1] < 0xA0;
        if (n == 0 || control || late_control) {
            fputs("\xEF\xBF\xBD", out); /* U+FFFD, the mark for what cannot be shown */
            n = n == 0 ? 1 : n;
        } else {
            fwrite(p, 1, n, out);
        }
    }
}

void terminal_close(terminal *t)
{
    if (t->shown)
        fputc('\n', t->out);
    t->shown = false;
    fflush(t->out);
}
