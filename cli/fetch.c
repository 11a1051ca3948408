/* `fsdp fetch`: models, tokenizers and data sets from the hub into the cache. The work is <fsdp/fetch.h>'s. */
#include <stdlib.h>

#include "commands.h"
#include "download.h"
#include "flag_rows.h"

typedef struct fetch_options {
    fsdp_flag_state state;
    fsdp_text_list tokenizer, dataset;
    const char *dataset_config_name, *include, *revision;
} fetch_options;

#define OPTIONS fetch_options

static const fsdp_flag fetch_table[] = {
    {ROW(tokenizer, FSDP_FLAG_LIST, "fetch only the tokenizers of these models"), .unit = "NAME,..."},
    {ROW(dataset, FSDP_FLAG_LIST, "fetch these data sets"), .unit = "NAME,..."},
    {TEXT(dataset_config_name, "NAME", "configuration of the data sets: the folder to fetch (default: all)")},
    {TEXT(include, "GLOB,...", "fetch only data set files whose names match, such as 'en/c4-train.0000*'")},
    {TEXT(revision, "NAME", "branch, tag or commit (default: main)")},
    {.name = NULL},
};

static const fsdp_flag *fetch_flags(void)
{
    return fetch_table;
}

static int fetch_one(const fetch_options *o, fsdp_fetch_kind kind, const char *name)
{
    fsdp_fetch_config config = FSDP_FETCH_CONFIG_INIT;
    fsdp_fetch_result result = FSDP_FETCH_RESULT_INIT;
    config.kind = kind;
    config.name = name;
    config.revision = o->revision;
    if (kind == FSDP_FETCH_DATASET) {
        config.config_name = o->dataset_config_name;
        config.include = o->include;
    }
    fsdp_status status = download_shown("fetch", &config, &result);
    if (status != FSDP_OK)
        return command_failed("fetch", status);
    fprintf(stderr, "fsdp fetch: %s: %lld file%s, %.1f MB (%.1f MB downloaded)\n", name, (long long)result.n_files,
            result.n_files == 1 ? "" : "s", 1e-6 * (double)result.bytes, 1e-6 * (double)result.downloaded);
    puts(result.path); /* alone on standard output, for scripts */
    free(result.path);
    return 0;
}

static int fetch_list(const fetch_options *o, fsdp_fetch_kind kind, const char *const *names, int n)
{
    int code = 0;
    for (int i = 0; code == 0 && i < n; i++)
        code = fetch_one(o, kind, names[i]);
    return code;
}

static int fetch(const fetch_options *o, const char *const *names, int n)
{
    if (n + o->tokenizer.n + o->dataset.n == 0)
        return command_misused("fetch", "nothing is named: fsdp fetch NAME..., --tokenizer NAME or --dataset NAME");
    if ((o->dataset_config_name || o->include) && o->dataset.n == 0)
        return command_misused("fetch", "--%s is about data sets: name one with --dataset",
                               o->include ? "include" : "dataset_config_name");
    int code = fetch_list(o, FSDP_FETCH_MODEL, names, n);
    if (code == 0)
        code = fetch_list(o, FSDP_FETCH_TOKENIZER, o->tokenizer.items, o->tokenizer.n);
    return code ? code : fetch_list(o, FSDP_FETCH_DATASET, o->dataset.items, o->dataset.n);
}

static int run_fetch(int argc, char **argv)
{
    fetch_options options;
    int n = 0;
    const char **names = calloc((size_t)argc + 1, sizeof *names);
    if (!names)
        return command_misused("fetch", "out of memory");
    fsdp_status status = command_options(fetch_table, &options, &options.state, "fetch", argc, argv, names, &n);
    int code = status == FSDP_OK ? fetch(&options, names, n) : command_failed("fetch", status);
    fsdp_flags_free(&options.state);
    free(names);
    return code;
}

const command command_fetch = {
    .name = "fetch",
    .summary = "Fetch models, tokenizers and data sets from the Hugging Face hub",
    .usage = "[NAME...] [--tokenizer NAME,...] [--dataset NAME,...] [FLAGS...]",
    .details =
        "  fsdp fetch google-t5/t5-small\n"
        "  fsdp fetch --tokenizer hf-internal-testing/llama-tokenizer\n"
        "  fsdp fetch --dataset allenai/c4 --include 'en/c4-train.0000*,en/c4-validation.00000*'\n\n"
        "Files go into the Hugging Face cache (HF_HOME), where other commands find them by the same name. Prints\n"
        "the folder of each. Files that are already there are not fetched again, interrupted downloads resume,\n"
        "and every file's hash is checked. HF_ENDPOINT and HF_TOKEN are read as usual.",
    .flags = fetch_flags,
    .run = run_fetch,
};
