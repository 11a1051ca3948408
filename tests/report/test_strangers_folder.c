/* A run folder of a stranger's making: files of a real run, changed at random (numbers, texts, bytes, length, kind of
 * file), go through the report, its pictures, `fsdp top` and the trace's summary. Each succeeds or names what is wrong;
 * nothing that the files hold becomes markup or reaches the terminal, and nothing outside is read or written.
 * FSDP_TEST_SEED and FSDP_TEST_CASES draw others. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include <fsdp/report.h>
#include <fsdp/top.h>
#include <fsdp/trace.h>

#include "base/file.h"
#include "base/record/ring.h"
#include "support/draw.h"

enum { CASES = 100, STEPS = 24, MOST_BYTES = 1 << 20, MOST_CHANGES = 6 };

static const char secret[] = "what nobody may read";

/* ---- The files ---- */

typedef struct file {
    const char *name;
    char *bytes;
    size_t n;
} file;

enum { METRICS, VALIDATION, SETTINGS, RUN, RANK_FACTS, TRACE, FLIGHT, PLACE, N_FILES };

static void write_metrics(FILE *to)
{
    for (int step = 1; step <= STEPS; step++)
        fprintf(
            to,
            "{\"step\": %d, \"loss\": %g, \"grad_norm\": 1.5, \"lr\": 0.001, \"samples\": 8, \"tokens\": 512, "
            "\"seconds\": 0.02, \"tokens_per_s\": 25600, \"memory\": 3743120, \"memory_peak\": 3743120, "
            "\"epoch\": 0.5, \"utilization\": 0.4, \"predicted_seconds\": 0.019, \"times\": {\"exposed\": {\"min\": "
            "0.001, \"mean\": 0.002, \"max\": 0.003, \"rank\": 1}, \"backward\": {\"min\": 0.01, \"mean\": 0.012, "
            "\"max\": 0.02, \"rank\": 0}}, \"waited_for\": {\"rank\": 1, \"phase\": \"other\"}, \"slow_rank\": "
            "{\"rank\": 1, \"phase\": \"data\", \"seconds\": 0.1}}\n",
            step, step == 20 ? 99.0 : 5.0 - 0.1 * step);
}

static void write_validation(FILE *to)
{
    for (int step = 4; step <= STEPS; step += 4)
        fprintf(to, "{\"step\": %d, \"validation_loss\": %g, \"perplexity\": 240, \"accuracy\": 0.5}\n", step,
                5.5 - 0.1 * step);
}

static void write_settings(FILE *to)
{
    fputs("{\"preset\": \"none\", \"output_dir\": \"a\", \"max_steps\": 24, \"dropout\": 0.1, \"trace\": "
          "\"trace.json\", \"tie_word_embeddings\": false, \"dataset\": \"text.txt\"}\n",
          to);
}

static void write_run(FILE *to)
{
    fputs("{\"format\": \"fsdp-run\", \"run\": \"09ad42e12d636e50\", \"checkpoints\": \"elsewhere\", \"sessions\": "
          "[{\"began\": \"2020-01-01T00:00:00Z\", \"step\": 0, \"ranks\": 2, \"host\": \"vm\", \"resumed_from\": \"\", "
          "\"ended\": {\"how\": \"failed\", \"last_step\": 12, \"reason\": \"rank 0: no more\"}}, {\"began\": "
          "\"2020-01-02T00:00:00Z\", \"step\": 12, \"ranks\": 2, \"host\": \"vm\", \"resumed_from\": \"step-12\"}], "
          "\"origins\": {\"max_steps\": \"command line\", \"dropout\": \"the model\"}}\n",
          to);
}

static void write_ranks(FILE *to)
{
    fputs("{\"format\": \"fsdp-ranks\", \"ranks\": [", to);
    for (int rank = 0; rank < 2; rank++)
        fprintf(to,
                "%s{\"planned\": 4511896, \"measured\": 4511896, \"host_planned\": 0, \"host_measured\": 0, "
                "\"available\": 23467761664, \"classes\": {\"parameters\": 148992, \"activations\": 256768}, "
                "\"taken\": {\"parameters\": 148992, \"activations\": 256768}, \"seconds\": {\"data\": 0.5, "
                "\"backward\": 2.5}}",
                rank ? ", " : "");
    fputs("]}\n", to);
}

static void write_trace(FILE *to)
{
    fputs("[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank 0\"}},\n"
          "{\"ph\":\"M\",\"pid\":0,\"name\":\"trace\",\"args\":{\"events\":40,\"dropped\":0}}",
          to);
    for (int i = 0; i < 24; i++) {
        static const char *const kinds[][2] = {{"phase", "step"},
                                               {"phase", "forward"},
                                               {"op", "linear"},
                                               {"collective", "all_gather"},
                                               {"wait", "all_gather"}};
        fprintf(to,
                ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%d.5,\"dur\":%d,\"cat\":\"%s\",\"name\":\"%s\",\"args\":"
                "{\"detail\":\"layers.1\",\"bytes\":4096}}",
                i % 2, i % 3, 1000 + 10 * (i / 5), i % 5 == 0 ? 40 : 3, kinds[i % 5][0], kinds[i % 5][1]);
    }
    fputs("\n]\n", to);
}

static void write_flight(FILE *to)
{
    ring_open(0, 2);
    fwrite(ring_own(), sizeof(ring), 1, to);
}

static void write_place(FILE *to)
{
    fputs("{\"host\": \"elsewhere\", \"address\": \"203.0.113.1\", \"port\": 80, \"token\": \"abc\", \"id\": \"1\"}\n",
          to);
}

static const struct {
    const char *name;
    void (*write)(FILE *to);
} made[N_FILES] = {
    [METRICS] = {"metrics.jsonl", write_metrics},   [VALIDATION] = {"validation.jsonl", write_validation},
    [SETTINGS] = {"settings.json", write_settings}, [RUN] = {"run.json", write_run},
    [RANK_FACTS] = {"ranks.json", write_ranks},     [TRACE] = {"trace.json", write_trace},
    [FLIGHT] = {"flight-0.bin", write_flight},      [PLACE] = {"dashboard.json", write_place}};

static void make_files(file files[N_FILES])
{
    for (int i = 0; i < N_FILES; i++) {
        files[i] = (file){.name = made[i].name};
        FILE *to = open_memstream(&files[i].bytes, &files[i].n);
        made[i].write(to);
        fclose(to);
    }
}

/* ---- Changes ---- */

/* Puts `bytes` in the place of the `cut` bytes at `at`. */
static void replace(file *f, size_t at, size_t cut, const char *bytes, size_t n)
{
    if (f->n - cut + n > MOST_BYTES)
        return;
    char *changed = malloc(f->n - cut + n + 1);
    assert_non_null(changed);
    memcpy(changed, f->bytes, at);
    memcpy(changed + at, bytes, n);
    memcpy(changed + at + n, f->bytes + at + cut, f->n - at - cut);
    free(f->bytes);
    f->bytes = changed;
    f->n += n - cut;
}

static bool in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e';
}

/* One of the numbers becomes one that nobody expects. */
static void change_number(file *f, uint64_t *random)
{
    static const char *const odd[] = {"1e308",
                                      "-1e308",
                                      "1e400",
                                      "NaN",
                                      "Infinity",
                                      "-Infinity",
                                      "-0",
                                      "1e-320",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "18446744073709551616",
                                      "99999999999999999999999999999999999999",
                                      "4294967296",
                                      "2147483648",
                                      "-1",
                                      "0.1e",
                                      "00",
                                      "null",
                                      "true",
                                      "[]",
                                      "{}",
                                      "\"7\"",
                                      "16777216",
                                      "1e18"};
    size_t at = (size_t)draw_below(random, (int)f->n), end;
    while (at < f->n && !(f->bytes[at] >= '0' && f->bytes[at] <= '9'))
        at++;
    while (at > 0 && in_number(f->bytes[at - 1]))
        at--;
    for (end = at; end < f->n && in_number(f->bytes[end]);)
        end++;
    const char *number = odd[draw_below(random, sizeof odd / sizeof *odd)];
    replace(f, at, end - at, number, strlen(number));
}

/* One of the texts, a key or a value, becomes hostile. */
static void change_text(file *f, uint64_t *random)
{
    static const char *const odd[] = {"\"</script><img src=x onerror=hacked=1>\"",
                                      "\"<svg onload=onerror=hacked>\"",
                                      "\"\\u202e\\u001b[31m\"",
                                      "\"\\u0000\"",
                                      "\"\\ud800\"",
                                      "\"\xff\xfe\"",
                                      "\"\xc0\xaf\"",
                                      "\"\x1b]0;title\x07\"",
                                      "\"../../../etc/passwd\"",
                                      "\"%s%n%s%n\"",
                                      "\"\"",
                                      "\"--><!--\"",
                                      "\"]]>\"",
                                      "\"'\\\"&amp;<>\"",
                                      "\"finished\"",
                                      "\"stopped\"",
                                      "7"};
    size_t at = (size_t)draw_below(random, (int)f->n);
    const char *begin = memchr(f->bytes + at, '"', f->n - at);
    const char *end = begin ? memchr(begin + 1, '"', (size_t)(f->bytes + f->n - begin - 1)) : NULL;
    const char *text = odd[draw_below(random, sizeof odd / sizeof *odd)];
    if (end)
        replace(f, (size_t)(begin - f->bytes), (size_t)(end + 1 - begin), text, strlen(text));
}

static void change_bytes(file *f, uint64_t *random)
{
    size_t at = (size_t)draw_below(random, (int)f->n), n = 1 + (size_t)draw_below(random, 12);
    char noise[16];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)draw_below(random, 256);
    size_t cut = n < f->n - at ? n : f->n - at;
    replace(f, at, draw_below(random, 2) ? cut : 0, noise, draw_below(random, 3) ? n : 0);
}

/* Deep, long, torn, twice. */
static void change_shape(file *f, uint64_t *random)
{
    static char run[60000];
    size_t at = (size_t)draw_below(random, (int)f->n), n = 1 + (size_t)draw_below(random, (int)sizeof run);
    memset(run, "[{\"x9 \n"[draw_below(random, 7)], sizeof run);
    switch (draw_below(random, 4)) {
    case 0:
        replace(f, at, 0, run, n);
        break;
    case 1:
        replace(f, at, f->n - at, "", 0);
        break;
    case 2:
        replace(f, at, 0, f->bytes, f->n);
        break;
    default:
        replace(f, 0, at, "", 0);
    }
}

static void change(file *f, uint64_t *random)
{
    static void (*const kinds[])(file *, uint64_t *) = {change_number, change_number, change_text,
                                                        change_text,   change_bytes,  change_shape};
    if (f->n > 0)
        kinds[draw_below(random, 6)](f, random);
}

/* ---- A folder ---- */

typedef struct place {
    char folder[64], outside[96];
} place;

static char *path_in(const place *p, const char *name)
{
    char *path = file_join(p->folder, name);
    assert_non_null(path);
    return path;
}

/* As a file, or sometimes as something else of that name. */
static void put(const place *p, const file *f, uint64_t *random)
{
    char *path = path_in(p, f->name);
    int kind = draw_below(random, 60);
    if (kind == 0)
        assert_int_equal(symlink(p->outside, path), 0);
    else if (kind == 1)
        assert_int_equal(mkdir(path, 0777), 0);
    else if (kind == 2)
        assert_int_equal(mkfifo(path, 0666), 0);
    else if (kind > 3)
        assert_int_equal(file_write_atomic(path, f->bytes, f->n), FSDP_OK);
    free(path);
}

static void fill(const place *p, uint64_t seed)
{
    uint64_t random = seed * 7919 + 1;
    file files[N_FILES];
    char *step = path_in(p, "checkpoints/step-00000012"), *page = path_in(p, "report.html");
    make_files(files);
    for (int n = 1 + draw_below(&random, MOST_CHANGES); n > 0; n--)
        change(&files[draw_below(&random, N_FILES)], &random);
    for (int i = 0; i < N_FILES; i++) {
        put(p, &files[i], &random);
        free(files[i].bytes);
    }
    assert_int_equal(file_make_directories(step), FSDP_OK);
    if (draw_below(&random, 4) == 0)
        assert_int_equal(symlink(p->outside, page), 0);
    free(step);
    free(page);
}

/* ---- What comes of it ---- */

static void check_status(fsdp_status status, const char *text, const char *what, uint64_t seed)
{
    if (status != FSDP_OK && status != FSDP_ERR_INPUT && status != FSDP_ERR_IO)
        fail_msg("FSDP_TEST_SEED=%d: %s: %s", (int)seed, what, fsdp_last_error());
    if (status != FSDP_OK && !fsdp_last_error()[0])
        fail_msg("FSDP_TEST_SEED=%d: %s fails without a word", (int)seed, what);
    for (const char *c = text; c && *c; c++)
        if (((unsigned char)*c < 32 && *c != '\n') || *c == 127 || strncmp(c, "\u202e", 3) == 0)
            fail_msg("FSDP_TEST_SEED=%d: %s prints a control character: %.60s", (int)seed, what, c);
    if (text && strstr(text, secret))
        fail_msg("FSDP_TEST_SEED=%d: %s has read what a link names", (int)seed, what);
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        n++;
    return n;
}

static void check_page(const char *path, uint64_t seed)
{
    static const char begin[] = "id=\"data\">";
    char *text;
    size_t bytes;
    assert_int_equal(file_read_at_most(path, 64 << 20, &text, &bytes), FSDP_OK);
    char *data = strstr(text, begin), *end = data ? strstr(data, "</script>") : NULL;
    if (strlen(text) != bytes || count(text, "<script") != 4 || count(text, "<img") > 0 || strstr(text, secret) ||
        !end || strchr(text, 27) || strstr(text, "\u202e"))
        fail_msg("FSDP_TEST_SEED=%d: the page is not what it should be", (int)seed);
    data += strlen(begin);
    if (memchr(data, '<', (size_t)(end - data)) || memchr(data, '&', (size_t)(end - data)))
        fail_msg("FSDP_TEST_SEED=%d: there is markup in the data", (int)seed);
    json_t *document = json_loadb(data, (size_t)(end - data), 0, NULL);
    if (json_array_size(json_object_get(document, "runs")) == 0)
        fail_msg("FSDP_TEST_SEED=%d: the page's data cannot be read", (int)seed);
    json_decref(document);
    free(text);
}

/* Where a coordinate would stand; names may hold these letters. */
static bool has_no_number(const char *text)
{
    static const char *const begins[] = {"\"", " ", "M", "L", "\"-", " -", "M-", "L-"};
    char word[8];
    bool found = false;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        for (int inf = 0; inf < 2; inf++) {
            snprintf(word, sizeof word, "%s%s", begins[i], inf ? "inf" : "nan");
            found |= strstr(text, word) != NULL;
        }
    return found;
}

static void check_picture(const char *folder, const char *name, uint64_t seed)
{
    char *path = file_join(folder, name), *text;
    size_t bytes;
    if (file_read_at_most(path, 64 << 20, &text, &bytes) == FSDP_OK) {
        if (count(text, "<script") || count(text, "<img") || has_no_number(text))
            fail_msg("FSDP_TEST_SEED=%d: the picture %s is not what it should be", (int)seed, name);
        free(text);
    }
    free(path);
}

static void check_outside(const place *p, uint64_t seed)
{
    char *text;
    size_t bytes;
    assert_int_equal(file_read_at_most(p->outside, 4096, &text, &bytes), FSDP_OK);
    if (strcmp(text, secret) != 0)
        fail_msg("FSDP_TEST_SEED=%d: a file outside was written through a link", (int)seed);
    free(text);
}

/* Whether a report was made. */
static bool run_case(uint64_t seed)
{
    static const char *const pictures[] = {"loss.svg", "seconds.svg", "times.svg", "ranks.svg", "memory.svg"};
    place p;
    char *text = NULL;
    /* In memory where there is such a folder: the report waits for the disk. */
    snprintf(p.folder, sizeof p.folder, "%s/fsdp-stranger-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(p.folder));
    snprintf(p.outside, sizeof p.outside, "%s.outside", p.folder);
    assert_int_equal(file_write_atomic(p.outside, secret, strlen(secret)), FSDP_OK);
    fill(&p, seed);
    char *page = path_in(&p, "report.html"), *trace = path_in(&p, "trace.json"), *svg = path_in(&p, "pictures");
    const char *folders[] = {p.folder, p.folder}, *traces[] = {trace, trace};
    fsdp_report_config report = FSDP_REPORT_CONFIG_INIT;
    report.folders = folders;
    report.n_folders = 1 + (int)(seed % 2);
    report.html = page;
    report.svg = svg;
    fsdp_status status = fsdp_report(&report, &text);
    check_status(status, text, "the report", seed);
    bool reported = status == FSDP_OK;
    if (reported)
        check_page(page, seed);
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++)
        check_picture(svg, pictures[i], seed);
    free(text);
    fsdp_top_config top = FSDP_TOP_CONFIG_INIT;
    top.target = p.folder;
    top.columns = (int)(seed % 3) * 40;
    text = NULL;
    status = fsdp_top(&top, &text);
    check_status(status, text, "fsdp top", seed);
    free(text);
    struct stat info;
    if (lstat(trace, &info) == 0 && S_ISREG(info.st_mode)) { /* the user names it: then a link is followed */
        text = NULL;
        status = fsdp_trace_summary(traces, report.n_folders, &text);
        check_status(status, text, "the trace's summary", seed);
        free(text);
    }
    check_outside(&p, seed);
    free(page);
    free(trace);
    free(svg);
    assert_int_equal(file_remove_tree(p.folder), FSDP_OK);
    unlink(p.outside);
    return reported;
}

static void a_strangers_folder_is_shown_and_not_obeyed(void **state)
{
    const char *given = getenv("FSDP_TEST_SEED"), *cases = getenv("FSDP_TEST_CASES");
    int first = given ? atoi(given) : 1, n = cases ? atoi(cases) : CASES, reported = 0;
    (void)state;
    for (int seed = first; seed < first + n; seed++)
        reported += run_case((uint64_t)seed);
    if (n >= CASES && reported < n * 9 / 10) /* what is torn is said, and the rest shown */
        fail_msg("only %d of %d folders have a report", reported, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_strangers_folder_is_shown_and_not_obeyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
