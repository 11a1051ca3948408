/* `fsdp tokenize`: text to ids and back, counts, and token files for training. The work is <fsdp/tokenizer.h>'s. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <fsdp/log.h>
#include <fsdp/tokenizer.h>

#include "commands.h"
#include "download.h"
#include "flag_rows.h"
#include "input.h"
#include "json_line.h"
#include "terminal.h"

typedef struct tokenize_options {
    fsdp_flag_state state;
    const char *tokenizer, *field, *output, *dataset_config_name, *text;
    bool decode, count, jsonl, special, strict, download;
    int64_t threads, max_tokens;
} tokenize_options;

#define OPTIONS tokenize_options

static const fsdp_flag tokenize_table[] = {
    {TEXT(tokenizer, "PATH", "a tokenizer.json, its folder or a hub name (default: one token per byte)")},
    {TEXT(text, "TEXT", "tokenize this text instead of files")},
    {SWITCH(decode, NULL, "turn ids into text instead of text into ids")},
    {SWITCH(count, NULL, "print only the number of tokens")},
    {SWITCH(jsonl, NULL, "read and print one JSON record per line, whatever the file names")},
    {TEXT(field, "NAME", "field to read (default: text, or ids with --decode)")},
    {SWITCH(special, "true", "add begin and end tokens; with --decode, show special tokens")},
    {TEXT(output, "FILE", "write a token file for training; reads text, JSONL (also .gz, .zst), Parquet and Arrow")},
    {INT(threads, NULL, 0, 4096, "N", "threads for --output (default: one per core)")},
    {TEXT(dataset_config_name, "NAME", "data set configuration, with --output and a hub name")},
    {SWITCH(download, NULL, DOWNLOAD_HELP)},
    {SWITCH(strict, NULL, "stop at a bad record instead of skipping it"), .aliases = "strict_data"},
    {INT(max_tokens, NULL, 0, 1e15, "N", "stop --output after N tokens (default: all)")},
    {.name = NULL},
};

static const fsdp_flag *tokenize_flags(void)
{
    return tokenize_table;
}

/* One run of the command over all its inputs. */
typedef struct tokenize_job {
    const tokenize_options *options;
    fsdp_tokenizer *tokenizer;
    int64_t total; /* tokens counted so far */
    json_text text;
    json_numbers numbers;
} tokenize_job;

static const char *field_of(const tokenize_options *o)
{
    return o->field ? o->field : o->decode ? "ids" : "text";
}

static void print_ids(const int32_t *ids, size_t n, bool as_json)
{
    fputs(as_json ? "{\"ids\": [" : "", stdout);
    for (size_t i = 0; i < n; i++)
        printf("%s%d", !i ? "" : as_json ? ", " : " ", ids[i]);
    puts(as_json ? "]}" : "");
}

static fsdp_status encode(tokenize_job *job, const char *text, size_t bytes)
{
    const int32_t *ids;
    size_t n;
    FSDP_TRY(fsdp_tokenizer_encode(job->tokenizer, text, bytes, job->options->special, &ids, &n));
    job->total += (int64_t)n;
    if (!job->options->count)
        print_ids(ids, n, job->options->jsonl);
    return FSDP_OK;
}

static fsdp_status decode(tokenize_job *job, const int32_t *ids, size_t n)
{
    const char *text;
    size_t bytes;
    FSDP_TRY(fsdp_tokenizer_decode(job->tokenizer, ids, n, !job->options->special, &text, &bytes));
    job->total += (int64_t)n;
    if (job->options->count)
        return FSDP_OK;
    if (job->options->jsonl) {
        fputs("{\"text\": ", stdout);
        json_line_print(stdout, text, bytes);
        puts("}");
    } else {
        fwrite(text, 1, bytes, stdout);
        putchar('\n');
    }
    return FSDP_OK;
}

static int run_record(tokenize_job *job, const char *name, int64_t number, const char *line)
{
    const char *field = field_of(job->options);
    bool read =
        job->options->decode ? json_line_numbers(line, field, &job->numbers) : json_line_text(line, field, &job->text);
    if (!read) {
        int code = command_misused("tokenize", "%s:%lld: not a JSON object with a %s called %s", name,
                                   (long long)number, job->options->decode ? "list of ids" : "text", field);
        return job->options->strict ? code : 0;
    }
    fsdp_status status = job->options->decode ? decode(job, job->numbers.values, job->numbers.n)
                                              : encode(job, job->text.bytes ? job->text.bytes : "", job->text.n);
    return status == FSDP_OK ? 0 : command_failed("tokenize", status);
}

static int run_records(tokenize_job *job, const char *name, FILE *in)
{
    char *line = NULL;
    size_t capacity = 0;
    int code = 0;
    for (int64_t number = 1; code == 0 && getline(&line, &capacity, in) >= 0; number++) {
        const char *record = number == 1 ? command_behind_mark(line) : line;
        if (record[strspn(record, " \t\r\n")])
            code = run_record(job, name, number, record);
    }
    free(line);
    return code;
}

/* Whole numbers between anything that is none: "1 2 3", "[1, 2, 3]". */
static int run_ids(tokenize_job *job, const char *name, const char *text)
{
    json_numbers *ids = &job->numbers;
    ids->n = 0;
    size_t most = strlen(text) / 2 + 1;
    int32_t *grown = most > ids->capacity ? realloc(ids->values, most * sizeof *grown) : ids->values;
    if (!grown)
        return command_misused("tokenize", "%s: out of memory", name);
    ids->values = grown;
    ids->capacity = most > ids->capacity ? most : ids->capacity;
    for (const char *at = text + strspn(text, " \t\r\n,[]"); *at; at += strspn(at, " \t\r\n,[]")) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || value < INT32_MIN || value > INT32_MAX)
            return command_misused("tokenize", "%s: '%.12s' is no id", name, at);
        ids->values[ids->n++] = (int32_t)value;
        at = end;
    }
    fsdp_status status = decode(job, ids->values, ids->n);
    return status == FSDP_OK ? 0 : command_failed("tokenize", status);
}

static int run_stream(tokenize_job *job, const char *name, FILE *in)
{
    int64_t before = job->total;
    int code;
    if (job->options->jsonl) {
        code = run_records(job, name, in);
    } else {
        size_t bytes;
        char *text = input_read(in, &bytes);
        if (!text)
            return command_misused("tokenize", "%s: cannot read: %s", name, strerror(errno));
        fsdp_status status = FSDP_OK;
        code = 0;
        if (job->options->decode)
            code = run_ids(job, name, text);
        else
            status = encode(job, command_behind_mark(text), bytes - (size_t)(command_behind_mark(text) - text));
        if (status != FSDP_OK)
            code = command_failed("tokenize", status);
        free(text);
    }
    if (code == 0 && ferror(in))
        code = command_misused("tokenize", "%s: cannot read: %s", name, strerror(errno));
    if (code == 0 && job->options->count)
        printf("%lld %s\n", (long long)(job->total - before), name);
    return code;
}

static int run_file(tokenize_job *job, const char *path)
{
    if (strcmp(path, "-") == 0)
        return run_stream(job, "standard input", stdin);
    size_t length = strlen(path);
    if ((length > 3 && strcmp(path + length - 3, ".gz") == 0) || (length > 4 && strcmp(path + length - 4, ".zst") == 0))
        return command_misused("tokenize", "%s: compressed files are read with --output; otherwise pipe them in", path);
    FILE *in = fopen(path, "r");
    if (!in)
        return command_misused("tokenize", "%s: cannot open: %s", path, strerror(errno));
    int code = run_stream(job, path, in);
    fclose(in);
    return code;
}

static int run_inputs(tokenize_job *job, const char *const *paths, int n)
{
    const char *const standard_input[] = {"-"};
    if (job->options->text && job->options->decode)
        return run_ids(job, "--text", job->options->text);
    if (job->options->text) {
        fsdp_status status = encode(job, job->options->text, strlen(job->options->text));
        if (status == FSDP_OK && job->options->count)
            printf("%lld\n", (long long)job->total);
        return status == FSDP_OK ? 0 : command_failed("tokenize", status);
    }
    int code = 0;
    for (int i = 0; code == 0 && i < (n ? n : 1); i++)
        code = run_file(job, n ? paths[i] : standard_input[i]);
    if (code == 0 && job->options->count && n > 1)
        printf("%lld total\n", (long long)job->total);
    return code;
}

/* The signal that asked for an end of --output; 0: none. A handler can reach nothing else. */
static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

static int stop_requested(void *context)
{
    (void)context;
    return (int)stop_signal;
}

/* The first signal ends the work and removes the unfinished file; a second one ends the command at once. */
static void listen_for_signals(void)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK | (int)SA_RESETHAND},
                     before;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (sigaction(taken[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* as nohup wants it */
            sigaction(taken[i], &action, NULL);
}

/* The bar of --output: rewritten in place on a terminal, a line every few seconds otherwise. */
typedef struct progress_bar {
    terminal terminal;
    double started, shown;
} progress_bar;

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void show_progress(void *context, int64_t bytes, int64_t tokens, double part)
{
    progress_bar *bar = context;
    double now = now_seconds(), seconds = now - bar->started;
    if (now - bar->shown < (bar->terminal.live ? 0.1 : 5))
        return;
    bar->shown = now;
    char line[160], cells[25];
    terminal_bar(cells, part);
    snprintf(line, sizeof line, "[%s] %3.0f%%  %.1f MB, %.2f M tokens, %.1f MB/s, left: %.0f s", cells, 100 * part,
             1e-6 * (double)bytes, 1e-6 * (double)tokens, 1e-6 * (double)bytes / (seconds + 1e-9),
             part > 0 ? seconds * (1 - part) / part : 0);
    terminal_progress(&bar->terminal, line);
}

static void show_log(void *context, fsdp_log_level level, const char *text)
{
    (void)level;
    terminal_line(context, text);
}

static int make_token_file(const tokenize_options *o, const fsdp_tokenizer *tokenizer, const char *const *paths, int n)
{
    progress_bar bar = {.terminal = terminal_open(stderr), .started = now_seconds()};
    fsdp_tokenize_config config = FSDP_TOKENIZE_CONFIG_INIT;
    fsdp_tokenize_result result = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    config.inputs = paths;
    config.n_inputs = (size_t)n;
    config.config_name = o->dataset_config_name;
    config.field = field_of(o);
    config.output = o->output;
    config.n_threads = o->threads ? (int)o->threads : cores > 0 ? (int)cores : 1;
    config.strict = o->strict;
    config.jsonl = o->jsonl;
    config.stop_requested = stop_requested;
    config.max_tokens = o->max_tokens;
    config.progress = show_progress;
    config.context = &bar;
    bar.shown = bar.terminal.live ? 0 : bar.started; /* a terminal sees it at once */
    fsdp_log_set_sink(show_log, &bar.terminal, FSDP_LOG_WARNING);
    listen_for_signals();
    fsdp_status status = fsdp_tokenize_files(tokenizer, &config, &result);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
    terminal_close(&bar.terminal);
    if (status != FSDP_OK) {
        int code = command_failed("tokenize", status);
        return stop_signal ? 128 + (int)stop_signal : code;
    }
    double seconds = now_seconds() - bar.started;
    printf("%s: %lld tokens in %lld documents, from %.1f MB of text in %.2f s (%.1f MB/s)\n", o->output,
           (long long)result.n_tokens, (long long)result.n_documents, 1e-6 * (double)result.n_bytes, seconds,
           1e-6 * (double)result.n_bytes / (seconds + 1e-9));
    if (result.n_skipped)
        printf("skipped %lld bad records\n", (long long)result.n_skipped);
    return 0;
}

/* Says what contradicts; NULL when nothing does. */
static const char *wrong_options(const tokenize_options *o, int n_paths)
{
    if (o->output && (o->decode || o->count || o->text))
        return "--output makes a file of tokens; it goes with none of --decode, --count and --text";
    if (o->output && n_paths == 0)
        return "--output wants the files that hold the text";
    if (o->text && n_paths)
        return "--text and files contradict each other: name one of them";
    return NULL;
}

/* Token files are made of data sets; anything else is read from paths. */
static fsdp_status fetch_inputs(const tokenize_options *o, const char *const *paths, int n)
{
    FSDP_TRY(download("tokenize", FSDP_FETCH_TOKENIZER, o->tokenizer, NULL));
    for (int i = 0; o->output && i < n; i++)
        FSDP_TRY(download("tokenize", FSDP_FETCH_DATASET, paths[i], o->dataset_config_name));
    return FSDP_OK;
}

static int tokenize(const tokenize_options *options, const char *const *paths, int n)
{
    const char *wrong = wrong_options(options, n);
    if (wrong)
        return command_misused("tokenize", "%s", wrong);
    tokenize_job job = {.options = options};
    fsdp_status status = options->download ? fetch_inputs(options, paths, n) : FSDP_OK;
    if (status == FSDP_OK)
        status = options->tokenizer ? fsdp_tokenizer_load(options->tokenizer, &job.tokenizer)
                                    : fsdp_tokenizer_byte(&job.tokenizer);
    if (status != FSDP_OK)
        return command_failed("tokenize", status);
    int code = options->output ? make_token_file(options, job.tokenizer, paths, n) : run_inputs(&job, paths, n);
    fsdp_tokenizer_free(job.tokenizer);
    free(job.text.bytes);
    free(job.numbers.values);
    return code;
}

static int run_tokenize(int argc, char **argv)
{
    tokenize_options options;
    int n = 0;
    const char **paths = calloc((size_t)argc + 1, sizeof *paths);
    if (!paths)
        return command_misused("tokenize", "out of memory");
    fsdp_status status = command_options(tokenize_table, &options, &options.state, "tokenize", argc, argv, paths, &n);
    int code = status == FSDP_OK ? tokenize(&options, paths, n) : command_failed("tokenize", status);
    fsdp_flags_free(&options.state);
    free(paths);
    return code;
}

const command command_tokenize = {
    .name = "tokenize",
    .summary = "Convert text to token ids and back, count tokens, write token files for training",
    .usage = "[--tokenizer PATH] [FLAGS...] [FILE...]",
    .details = "  echo Hello | fsdp tokenize --tokenizer model/tokenizer.json\n"
               "  fsdp tokenize --tokenizer model --decode --text '1 15043'\n"
               "  fsdp tokenize --tokenizer model --output c4.bin --jsonl 'c4/en/*.json.gz'\n\n"
               "Without files, reads standard input. Each file is one text; with --jsonl, each line.",
    .flags = tokenize_flags,
    .run = run_tokenize,
};
