/* Reads a run folder. Lines and documents that are not what a run writes are counted and named, not obeyed. */
#include "report/run_files.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text/printable.h"
#include "ckpt/save/directory.h"
#include "observe/flight.h"

enum { MOST_ROWS = 1000000, MOST_LINE = 65536, MOST_CHECKPOINTS = 1000, MOST_TROUBLES = 50, SHOWN_BYTES = 400 };
enum { MOST_FLIGHTS = 4096, MOST_FAILURES = 8 };
static const int64_t most_lines_bytes = (int64_t)2 << 30, most_document_bytes = 16 << 20, most_step = (int64_t)1 << 53;

const char *const figure_names[N_FIGURES] = {
    "loss",   "grad_norm", "lr",          "seconds",           "tokens_per_s",     "utilization",
    "tflops", "memory",    "memory_peak", "predicted_seconds", "predicted_exposed"};

json_t *shown_text(const char *text)
{
    char shown[SHOWN_BYTES];
    if (!text)
        return json_null();
    printable(text, false, shown, sizeof shown);
    return json_string(shown);
}

void run_files_trouble(run_files *r, const char *format, ...)
{
    char text[SHOWN_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (json_array_size(r->troubles) < MOST_TROUBLES)
        json_array_append_new(r->troubles, shown_text(text));
}

char *run_files_find(run_files *r, const char *name, int64_t most)
{
    struct stat info;
    char *path = file_join(r->path, name);
    if (!path || lstat(path, &info) != 0) {
        free(path);
        return NULL;
    }
    if (S_ISREG(info.st_mode) && info.st_size <= most)
        return path;
    run_files_trouble(r, "%s is %s: not read", name,
                      S_ISLNK(info.st_mode)    ? "a link"
                      : !S_ISREG(info.st_mode) ? "no regular file"
                                               : "too large");
    free(path);
    return NULL;
}

/* ---- Lines ---- */

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool read_step(const json_t *line, int64_t *step)
{
    const json_t *value = json_object_get(line, "step");
    *step = json_integer_value(value);
    return json_is_integer(value) && *step >= 0 && *step < most_step;
}

static float mean_of(const json_t *times, const char *name)
{
    double mean = number_of(json_object_get(times, name), "mean");
    return mean > 0 && mean < 1e9 ? (float)mean : 0;
}

static void read_slow_rank(const json_t *line, metrics_row *row)
{
    const json_t *slow = json_object_get(line, "slow_rank"), *rank = json_object_get(slow, "rank");
    const char *phase = json_string_value(json_object_get(slow, "phase"));
    json_int_t number = json_integer_value(rank);
    row->slow_rank = -1;
    for (int i = 0; phase && json_is_integer(rank) && number >= 0 && number < 1 << 24 && i < LAP_COUNT; i++)
        if (strcmp(phase, lap_name((lap)i)) == 0) {
            row->slow_rank = (int)number;
            row->slow_phase = (lap)i;
        }
}

static bool add_metrics(run_files *r, const json_t *line)
{
    metrics_row row = {0};
    const json_t *times = json_object_get(line, "times");
    if (!read_step(line, &row.step) || (r->n_rows > 0 && row.step <= r->rows[r->n_rows - 1].step))
        return false;
    for (int i = 0; i < N_FIGURES; i++)
        row.figures[i] = number_of(line, figure_names[i]);
    for (int i = 0; i < LAP_COUNT; i++)
        row.laps[i] = mean_of(times, lap_name((lap)i));
    row.exposed = mean_of(times, "exposed");
    read_slow_rank(line, &row);
    r->rows[r->n_rows++] = row;
    return true;
}

static bool add_validation(run_files *r, const json_t *line)
{
    validation_row row = {.loss = number_of(line, "validation_loss"), .accuracy = number_of(line, "accuracy")};
    if (!read_step(line, &row.step) || (r->n_validations > 0 && row.step <= r->validations[r->n_validations - 1].step))
        return false;
    r->validations[r->n_validations++] = row;
    return true;
}

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t n = 1;
    for (size_t i = 0; i < bytes; i++)
        n += text[i] == '\n';
    return n < MOST_ROWS ? n : MOST_ROWS;
}

/* Hands each line that is an object to `add`, which says whether it is one of ours. */
static void read_lines(run_files *r, const char *name, const char *text, size_t bytes, int64_t most,
                       bool (*add)(run_files *, const json_t *))
{
    const char *at = text, *end = text + bytes;
    int64_t bad = 0, first_bad = 0, number = 0, added = 0;
    while (at < end && added < most) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        json_fault fault;
        number++;
        json_t *line =
            stop - at <= MOST_LINE ? json_parser_read(at, (size_t)(stop - at), JSON_AS_PYTHON, &fault) : NULL;
        bool good = json_is_object(line) && add(r, line);
        json_decref(line);
        added += good;
        if (!good && bad++ == 0)
            first_bad = number;
        at = stop + 1;
    }
    if (bad > 0)
        run_files_trouble(r, "%s: %lld lines are torn, out of order or no metrics; line %lld is the first", name,
                          (long long)bad, (long long)first_bad);
    if (at < end)
        run_files_trouble(r, "%s: only the first %d lines are shown", name, MOST_ROWS);
}

static fsdp_status read_steps(run_files *r, const char *name, bool validation)
{
    char *text = NULL, *path = run_files_find(r, name, most_lines_bytes);
    size_t bytes = 0;
    if (!path)
        return FSDP_OK;
    /* Read, not mapped: a run that resumes or goes back cuts its file, and a map would end in SIGBUS. */
    if (file_read_at_most(path, (uint64_t)most_lines_bytes, &text, &bytes) != FSDP_OK)
        run_files_trouble(r, "%s", fsdp_last_error());
    free(path);
    int64_t n = count_lines(text, bytes);
    void *room = calloc((size_t)n, validation ? sizeof *r->validations : sizeof *r->rows);
    fsdp_status status = room ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", r->path);
    if (validation)
        r->validations = room;
    else
        r->rows = room;
    if (room && text)
        read_lines(r, name, text, bytes, n, validation ? add_validation : add_metrics);
    free(text);
    return status;
}

/* ---- Documents ---- */

static json_t *read_document(run_files *r, const char *name)
{
    char *path = run_files_find(r, name, most_document_bytes);
    json_t *value = NULL;
    if (path && json_read_file(path, &value) != FSDP_OK)
        run_files_trouble(r, "%s", fsdp_last_error());
    free(path);
    if (value && !json_is_object(value)) {
        run_files_trouble(r, "%s holds no object: left out", name);
        json_decref(value);
        value = NULL;
    }
    return value;
}

static void list_checkpoints_in(run_files *r, const char *path)
{
    ckpt_listing listing = {0};
    struct stat info;
    if (path && lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && ckpt_directory_list(path, &listing) == FSDP_OK) {
        for (int i = 0; i < listing.n_entries && i < MOST_CHECKPOINTS; i++) {
            const ckpt_entry *e = &listing.entries[i];
            char written[32] = "";
            struct tm utc;
            if (!e->temporary && lstat(e->path, &info) == 0 && gmtime_r(&info.st_mtime, &utc)) {
                strftime(written, sizeof written, "%Y-%m-%d %H:%M:%S UTC", &utc);
                json_array_append_new(r->checkpoints, json_pack("{s:o, s:I, s:s, s:I}", "name", shown_text(e->name),
                                                                "step", (json_int_t)e->step, "written", written, "time",
                                                                (json_int_t)info.st_mtime));
            }
        }
        ckpt_listing_free(&listing);
    }
}

/* Checkpoints in the folder itself: a path in run.json may be anyone's. */
static void list_checkpoints(run_files *r)
{
    char *path = file_join(r->path, "checkpoints");
    list_checkpoints_in(r, path);
    free(path);
    const char *elsewhere = json_string_value(json_object_get(r->run, "checkpoints"));
    if (elsewhere && elsewhere[0])
        run_files_trouble(r, "the run saves in %s, which is not looked into", elsewhere);
}

/* ---- Failures ---- */

/* Seconds since 1970 of "2026-11-16T11:27:57Z"; 0: it is none. */
static int64_t time_of(const char *text)
{
    struct tm t = {0};
    const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &t) : NULL;
    return end && !*end ? (int64_t)timegm(&t) : 0;
}

/* Flight files that the last session left, where something had failed. */
static void read_failures(run_files *r)
{
    const json_t *sessions = json_object_get(r->run, "sessions"),
                 *last = json_array_get(sessions, json_array_size(sessions) - 1);
    int64_t began = time_of(json_string_value(json_object_get(last, "began")));
    json_int_t ranks = json_integer_value(json_object_get(last, "ranks"));
    for (int rank = 0; rank < ranks && rank < MOST_FLIGHTS && json_array_size(r->failures) < MOST_FAILURES; rank++) {
        char name[32], text[RING_REASON_BYTES + 64];
        flight f = {0};
        snprintf(name, sizeof name, "flight-%d.bin", rank);
        char *path = run_files_find(r, name, sizeof(ring));
        if (path && flight_open(path, rank, &f) == FSDP_OK && f.ring->reason[0] &&
            flight_written(&f) / 1000000000 >= began) {
            snprintf(text, sizeof text, "rank %d: ", rank);
            size_t said =
                strncmp(f.ring->reason, text, strlen(text)) == 0 ? strlen(text) : 0; /* messages name it, too */
            snprintf(text, sizeof text, "rank %d: %.*s", rank, (int)(RING_REASON_BYTES - said), f.ring->reason + said);
            json_array_append_new(r->failures, shown_text(text));
        }
        flight_close(&f);
        free(path);
    }
}

static char *last_part(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    char *part = strndup(path + begin, n - begin), *shown = part ? printable_copy(part, false) : NULL;
    free(part);
    return shown;
}

static fsdp_status begin(const char *path, run_files *out)
{
    *out = (run_files){.path = strdup(path), .name = last_part(path)};
    out->troubles = json_array();
    out->checkpoints = json_array();
    out->failures = json_array();
    return out->path && out->name && out->troubles && out->checkpoints && out->failures
               ? FSDP_OK
               : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", path);
}

fsdp_status run_files_read_documents(const char *path, const char *checkpoints, run_files *out)
{
    FSDP_TRY(begin(path, out));
    out->settings = read_document(out, "settings.json");
    out->run = read_document(out, "run.json");
    list_checkpoints_in(out, checkpoints);
    return FSDP_OK;
}

fsdp_status run_files_read(const char *path, run_files *out)
{
    FSDP_TRY(begin(path, out));
    if (!file_is_directory(path))
        return error_set(FSDP_ERR_INPUT, "%s: no such folder; give the folder of a run (fsdp_runs/latest)", path);
    FSDP_TRY(read_steps(out, "metrics.jsonl", false));
    FSDP_TRY(read_steps(out, "validation.jsonl", true));
    out->settings = read_document(out, "settings.json");
    out->run = read_document(out, "run.json");
    out->ranks = read_document(out, "ranks.json");
    list_checkpoints(out);
    read_failures(out);
    if (!out->rows && !out->settings && !out->run)
        return error_set(FSDP_ERR_INPUT, "%s: holds no run (metrics.jsonl, settings.json or run.json)", path);
    if (out->n_rows == 0)
        run_files_trouble(out, "metrics.jsonl has no step: there are no curves");
    if (!out->settings)
        run_files_trouble(out, "settings.json is missing or cannot be read: settings are not known");
    if (!out->ranks)
        run_files_trouble(out, "ranks.json is missing or cannot be read: a run writes it when it ends, so memory and "
                               "times of each rank are not known");
    return FSDP_OK;
}

void run_files_clear(run_files *r)
{
    free(r->path);
    free(r->name);
    free(r->rows);
    free(r->validations);
    json_decref(r->settings);
    json_decref(r->run);
    json_decref(r->ranks);
    json_decref(r->checkpoints);
    json_decref(r->failures);
    json_decref(r->troubles);
    *r = (run_files){0};
}
