/* Keeps what rank 0 said in a ring, and reads the ends of the other ranks' files when somebody looks. */
#include "report/live/log_tail.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text/printable.h"

enum { LINES = 64, LINE_BYTES = 400, TIME_BYTES = CLOCK_UTC_BYTES - 1, MOST_FILES = 64, TAIL_BYTES = 8192 };

typedef struct tail_line {
    char time[CLOCK_UTC_BYTES]; /* "2026-11-16T08:09:54.368Z" */
    int rank;
    bool warning;
    char text[LINE_BYTES];
} tail_line;

struct log_tail {
    pthread_mutex_t lock;
    char *folder;
    int n_ranks;
    int64_t said; /* lines so far */
    tail_line lines[LINES];
    tail_line shown[2 * LINES]; /* the reader's */
};

log_tail *log_tail_new(const char *folder, int n_ranks)
{
    log_tail *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->n_ranks = n_ranks;
    t->folder = strdup(folder);
    if (t->folder)
        return t;
    log_tail_free(t);
    return NULL;
}

void log_tail_free(log_tail *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t->folder);
    free(t);
}

static void set_line(tail_line *l, const char time[CLOCK_UTC_BYTES], int rank, bool warning, const char *text,
                     size_t bytes)
{
    memcpy(l->time, time, sizeof l->time);
    l->rank = rank;
    l->warning = warning;
    snprintf(l->text, sizeof l->text, "%.*s", (int)(bytes < LINE_BYTES ? bytes : LINE_BYTES - 1), text);
}

void log_tail_say(log_tail *t, bool warning, const char *text)
{
    char time[CLOCK_UTC_BYTES];
    clock_utc(time);
    pthread_mutex_lock(&t->lock);
    for (const char *at = text, *end; *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, '\n');
        if (end > at)
            set_line(&t->lines[t->said++ % LINES], time, 0, warning, at, (size_t)(end - at));
    }
    pthread_mutex_unlock(&t->lock);
}

/* "TIME warning: text"; false: a line of less weight, or none of ours. */
static bool read_line(tail_line *out, int rank, const char *line, size_t bytes)
{
    char time[TIME_BYTES + 1];
    if (bytes < TIME_BYTES + 10 || line[TIME_BYTES] != ' ' || line[TIME_BYTES - 1] != 'Z')
        return false;
    memcpy(time, line, TIME_BYTES);
    time[TIME_BYTES] = '\0';
    const char *level = line + TIME_BYTES + 1;
    size_t name = strncmp(level, "warning: ", 9) == 0 ? 9 : strncmp(level, "error: ", 7) == 0 ? 7 : 0;
    if (name)
        set_line(out, time, rank, true, level + name, bytes - TIME_BYTES - 1 - name);
    return name > 0;
}

/* The last warnings of a rank's file, at most `room`. Returns how many. */
static int read_file(const log_tail *t, int rank, tail_line *out, int room)
{
    char name[32], text[TAIL_BYTES];
    int fd = -1, n = 0;
    uint64_t bytes = 0;
    snprintf(name, sizeof name, "rank-%d.log", rank);
    char *path = file_join(t->folder, name);
    if (path && file_exists(path) && file_open_regular(path, FILE_ANY_SIZE, &fd, &bytes) != FSDP_OK)
        fd = -1;
    free(path);
    if (fd < 0)
        return 0;
    off_t from = bytes > sizeof text ? (off_t)(bytes - sizeof text) : 0;
    ssize_t got = pread(fd, text, sizeof text, from);
    close(fd);
    for (ssize_t end = got; end > 0 && n < room;) {
        const char *before = end > 1 ? memrchr(text, '\n', (size_t)end - 1) : NULL;
        ssize_t begin = before ? before - text + 1 : 0;
        ssize_t bytes_of_line = end - begin - (text[end - 1] == '\n');
        if (bytes_of_line > 0 && (begin > 0 || from == 0))
            n += read_line(&out[n], rank, text + begin, (size_t)bytes_of_line);
        end = begin;
    }
    return n;
}

static int by_time(const void *a, const void *b)
{
    return strcmp(((const tail_line *)a)->time, ((const tail_line *)b)->time);
}

json_t *log_tail_json(log_tail *t)
{
    int n = 0, ranks = t->n_ranks < MOST_FILES ? t->n_ranks : MOST_FILES;
    json_t *list = json_array();
    pthread_mutex_lock(&t->lock);
    for (int64_t i = t->said > LINES ? t->said - LINES : 0; i < t->said; i++)
        t->shown[n++] = t->lines[i % LINES];
    pthread_mutex_unlock(&t->lock);
    int own = n, each = ranks > 1 ? LINES / (ranks - 1) : 0;
    for (int rank = 1; rank < ranks; rank++)
        n += read_file(t, rank, &t->shown[n], each > 0 ? each : 1);
    if (n > own)
        qsort(t->shown, (size_t)n, sizeof *t->shown, by_time);
    for (int i = 0; i < n; i++) {
        char text[LINE_BYTES];
        printable(t->shown[i].text, false, text, sizeof text);
        json_array_append_new(list, json_pack("[s, i, s, s]", t->shown[i].time, t->shown[i].rank,
                                              t->shown[i].warning ? "warning" : "info", text));
    }
    return list;
}
