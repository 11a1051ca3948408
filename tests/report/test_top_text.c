/* What `fsdp top` prints of a document: the numbers of a run, cut to the terminal, and of a stranger's document nothing
 * that a terminal would obey. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "report/live/top_text.h"

static char *text_of(const char *json, int columns, int rows)
{
    json_error_t error;
    json_t *document = json_loads(json, 0, &error);
    char *text = NULL;
    if (!document)
        fail_msg("%s: %s", json, error.text);
    fsdp_status status = top_text(document, columns, rows, &text);
    json_decref(document);
    assert_true((status == FSDP_OK) == (text != NULL));
    return text;
}

static const char run_json[] =
    "{\"runs\": [{\"name\": \"a\", \"path\": \"runs/a\", \"curves\": {\"step\": [1, 2], \"loss\": [3.5, 2.25], "
    "\"grad_norm\": "
    "[1, null], \"lr\": [0.1, 0.01], \"tokens_per_s\": [1000, 12000], \"seconds\": [1, 0.5], \"utilization\": [0.1, "
    "0.25]}, \"validation\": {\"step\": [2], \"loss\": [2.5]}, \"times\": {\"laps\": [{\"name\": \"forward\", "
    "\"values\": [1, "
    "3]}, {\"name\": \"all_gather\", \"values\": [1, 1]}]}, \"ranks\": [{\"planned\": 2048, \"measured\": 1024, "
    "\"seconds\": "
    "[[\"forward\", 0.25], [\"all_gather\", 0.125]]}]}], \"live\": {\"step\": 2, \"steps\": 8, \"left\": 185, "
    "\"step_age\": 3, "
    "\"n_ranks\": 1, \"restarts\": 2, \"model\": \"m\", \"strategy\": \"full\", \"device\": \"d\", \"checkpoint\": "
    "{\"step\": 1, "
    "\"age\": 90, \"failures\": 0}, \"slow\": {\"rank\": 0, \"phase\": \"data\", \"seconds\": 0.5}, \"places\": [[2, "
    "17, "
    "\"all_gather of layers.3\", 512, 4096, 0]], \"log\": [[\"2026-11-16T08:09:54.368Z\", 0, \"warning\", \"disk\"]], "
    "\"gpus\": [{\"rank\": 0, \"utilization\": 0.97, \"memory_used\": 1024, \"celsius\": 61, \"watts\": 650, "
    "\"watts_limit\": "
    "700, \"sm_hertz\": 1980000000}]}}";

static void a_run_is_told(void **state)
{
    static const char *const wanted[] = {"step 2 of 8 (25.0%), 3:05 left, last step 3 s ago",
                                         "[###############.............................................]",
                                         "loss 2.25   validation 2.5 (step 2)   gradient norm -   learning rate 0.01",
                                         "12.0k tokens/s   utilization 25.0%   step 500.00 ms",
                                         "checkpoint step 1, 1:30 ago   restarts 2",
                                         "SLOW: rank 0, in data, costs 500.00 ms a step",
                                         "forward 75% all_gather 25%",
                                         "1.00 KiB     50%    250.00 ms    125.00 ms  all_gather of layers.3",
                                         "97%     1.00 KiB    61 C    650 W    700 W   1980 MHz",
                                         "08:09:54 rank 0 warning: disk"};
    (void)state;
    char *text = text_of(run_json, 0, 0);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(text, wanted[i]))
            fail_msg("no \"%s\" in:\n%s", wanted[i], text);
    free(text);
}

static void lines_fit_the_terminal(void **state)
{
    (void)state;
    for (int columns = 1; columns < 100; columns += 7)
        for (int rows = 1; rows < 12; rows += 3) {
            char *text = text_of(run_json, columns, rows);
            int lines = 1;
            for (const char *p = text; *p;) {
                size_t n = strcspn(p, "\n");
                assert_true((int)n <= columns);
                lines += p[n] == '\n';
                p += n + (p[n] == '\n');
            }
            assert_true(lines <= rows);
            free(text);
        }
}

static void a_strangers_document_is_shown_and_not_obeyed(void **state)
{
    static const char *const documents[] = {
        "{\"runs\": [{\"name\": \"\\u001b[2J\\u202e\", \"path\": \"\\n\\r\\u0007\", \"curves\": {\"step\": [1e300], "
        "\"loss\": [\"x\", "
        "-1e308, 1e308]}}], \"live\": {\"step\": -5, \"steps\": 1e17, \"places\": 3, \"log\": [[1, 2, 3]], \"gpus\": "
        "[1]}}",
        "{\"runs\": [{\"curves\": [], \"validation\": 1, \"times\": {\"laps\": [1, {\"values\": [1]}]}, \"ranks\": [1, "
        "null, {}]}]}",
        "{\"runs\": [{\"ranks\": [{\"seconds\": [[], [1], [\"a\", \"b\"], 7], \"planned\": -1, \"measured\": 1e17}]}], "
        "\"live\": {}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        char *text = text_of(documents[i], 80, 24);
        assert_non_null(text);
        assert_null(strpbrk(text, "\033\r\a"));
        assert_null(strstr(text, "\xE2\x80\xAE"));
        free(text);
    }
    assert_null(text_of("{}", 0, 0));
    assert_null(text_of("{\"runs\": [3]}", 0, 0));
    assert_null(text_of("{\"runs\": [{}], \"live\": 5}", 0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_told),
        cmocka_unit_test(lines_fit_the_terminal),
        cmocka_unit_test(a_strangers_document_is_shown_and_not_obeyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
