/* `fsdp explain`: two steps of a small model, told unit by unit. The work is <fsdp/explain.h>'s. */
#include <stdlib.h>

#include <fsdp/explain.h>

#include "commands.h"
#include "flag_rows.h"

typedef struct explain_options {
    fsdp_flag_state state;
    int64_t ranks;
    int sharding_strategy, lang;
    const char *html;
} explain_options;

#define OPTIONS explain_options

static const fsdp_choice strategies[] = {
    {"full", FSDP_FULL, "FULL_SHARD zero3"}, {"shard_grad_op", FSDP_SHARD_GRAD_OP, "SHARD_GRAD_OP zero2"},
    {"shard_op", FSDP_SHARD_OP, "zero1"},    {"no_shard", FSDP_NO_SHARD, "NO_SHARD ddp zero0"},
    {"hybrid", FSDP_HYBRID, "HYBRID_SHARD"}, {"hybrid_zero2", FSDP_HYBRID_ZERO2, "_HYBRID_SHARD_ZERO2"},
    {"all", FSDP_EXPLAIN_ALL, NULL},         {NULL, 0, NULL},
};
static const fsdp_choice languages[] = {{"en", 0, NULL}, {"ko", 1, NULL}, {NULL, 0, NULL}};

static const fsdp_flag explain_table[] = {
    {INT(ranks, "2", 2, FSDP_EXPLAIN_RANKS, "N", "ranks to start on this host")},
    {CHOICE(sharding_strategy, strategies, "strategy to explain; all: every strategy, then a comparison"),
     .default_value = "full"},
    {TEXT(html, "FILE.html", "also write a page that animates the steps")},
    {CHOICE(lang, languages, "language of the text: English or Korean"), .default_value = "en"},
    {.name = NULL},
};

static const fsdp_flag *explain_flags(void)
{
    return explain_table;
}

static int run_explain(int argc, char **argv)
{
    explain_options options;
    fsdp_explain_config config = FSDP_EXPLAIN_CONFIG_INIT;
    char *text = NULL;
    fsdp_status status = command_options(explain_table, &options, &options.state, "explain", argc, argv, NULL, NULL);
    if (status == FSDP_OK) {
        config.ranks = (int)options.ranks;
        config.strategy = options.sharding_strategy;
        config.language = languages[options.lang].name;
        config.html = options.html;
        status = fsdp_explain(&config, &text);
    }
    int code = status == FSDP_OK ? 0 : command_failed("explain", status);
    if (text)
        puts(text);
    free(text);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_explain = {
    .name = "explain",
    .summary = "Run two steps of a small model and explain what FSDP does, unit by unit",
    .usage = "[--sharding_strategy S|all] [--ranks N] [--html FILE.html] [--lang en|ko]",
    .details = "  fsdp explain\n"
               "  fsdp explain --sharding_strategy all --html lecture.html\n"
               "  fsdp explain --ranks 4 --sharding_strategy hybrid --lang ko\n\n"
               "The steps really run, one process per rank; all numbers come from their recorded events.",
    .flags = explain_flags,
    .run = run_explain,
};
