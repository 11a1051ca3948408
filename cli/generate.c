/* `fsdp generate`: a prompt to a trained model, and its text as it comes. The work is <fsdp/generate.h>'s. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdp/generate.h>

#include "commands.h"
#include "download.h"
#include "flag_rows.h"
#include "input.h"
#include "json_line.h"
#include "terminal.h"

typedef struct generate_options {
    fsdp_flag_state state;
    const char *model, *base, *adapter, *tokenizer, *prompt, *prompt_file, *prompts, *chat_template, *device;
    int64_t max_new_tokens, top_k, seed, threads, batch_size;
    double temperature, top_p;
    bool stop_at_eos, echo, stats, download, chat;
    int dtype;
} generate_options;

static const fsdp_choice dtypes[] = {
    {"fp32", FSDP_F32, "float32"},
    {"bf16", FSDP_BF16, "bfloat16"},
    {"fp16", FSDP_F16, "float16"},
    {NULL, 0, NULL},
};

static const fsdp_choice devices[] = {{"auto", 0, NULL}, {"cpu", 0, NULL}, {"cuda", 0, "gpu"}, {NULL, 0, NULL}};

/* Texts malloc'd. */
typedef struct prompt_list {
    fsdp_prompt *prompts;
    int64_t n;
} prompt_list;

#define OPTIONS generate_options

static const fsdp_flag generate_table[] = {
    {TEXT(model, "PATH",
          "a Hugging Face folder, a checkpoint, a run or folder of checkpoints (the newest one), or a hub name")},
    {TEXT(tokenizer, "PATH",
          "a tokenizer.json, its folder or a hub name (default: the model's, otherwise one token per byte)")},
    {TEXT(base, "PATH", "LoRA checkpoints: the base model (default: where training had it)")},
    {TEXT(adapter, "DIR,...", "apply these adapters (peft's format)")},
    {TEXT(prompt, "TEXT", "text to continue (T5: to answer)")},
    {TEXT(prompt_file, "FILE", "read the prompt from a file; -: standard input")},
    {TEXT(prompts, "FILE",
          "read many prompts, one per line (JSON: a text, or an object with \"prompt\"), and print a line of JSON for "
          "each; -: standard input")},
    {INT(batch_size, "8", 1, 65536, "N", "prompts of --prompts to generate side by side")},
    {SWITCH(chat, NULL, "prompts are user messages: render them with the chat template")},
    {TEXT(chat_template, "FILE", "render prompts with this chat template (default: the tokenizer's)")},
    {INT(max_new_tokens, "128", 1, 1e9, "N", "generate at most N tokens")},
    {FLOAT(temperature, "0", 0, 1e6, "X", "0: greedy; 1: the model's distribution; above 1: more random")},
    {INT(top_k, NULL, 0, 1e9, "N", "sample from the N likeliest tokens (default: all)")},
    {FLOAT(top_p, "1", 1e-9, 1, "P", "sample from the likeliest tokens whose probabilities add up to P")},
    {INT(seed, "42", 0, 1e15, "N", "random seed")},
    {SWITCH(stop_at_eos, "true", "stop at the model's end token")},
    {SWITCH(echo, NULL, "print the prompt before the text")},
    {SWITCH(stats, NULL, "print token counts and speed to standard error")},
    {SWITCH(download, NULL, DOWNLOAD_HELP)},
    {CHOICE(dtype, dtypes, "precision of the computation"), .aliases = "param_dtype"},
    {TEXT(device, "NAME", "device; auto: cuda if available"), .default_value = "auto", .choices = devices},
    {INT(threads, NULL, 0, 4096, "N", "threads (default: OMP_NUM_THREADS, otherwise all cores)")},
    {.name = NULL},
};

static const fsdp_flag *generate_flags(void)
{
    return generate_table;
}

static void show_text(void *context, const char *text, size_t bytes)
{
    if (isatty(fileno(context)))
        terminal_text(context, text, bytes);
    else
        fwrite(text, 1, bytes, context); /* a program gets every byte */
    fflush(context);
}

static void print_written(void *context, const fsdp_written_text *written)
{
    const prompt_list *list = context;
    const fsdp_prompt *prompt = &list->prompts[written->index];
    printf("{\"index\": %lld, \"prompt\": ", (long long)written->index);
    json_line_print(stdout, prompt->text, prompt->bytes);
    fputs(", \"text\": ", stdout);
    json_line_print(stdout, written->text, written->bytes);
    printf(", \"tokens\": %lld, \"ended\": %s}\n", (long long)written->new_tokens, written->ended ? "true" : "false");
    fflush(stdout);
}

/* Of one prompt, or of a list. */
static int generate(const generate_options *o, const char *prompt, size_t bytes, prompt_list *list)
{
    fsdp_generate_config config = FSDP_GENERATE_CONFIG_INIT;
    fsdp_generate_result result = FSDP_GENERATE_RESULT_INIT;
    config.model = o->model;
    config.adapters = o->adapter;
    config.base = o->base;
    config.tokenizer = o->tokenizer;
    config.prompt = prompt;
    config.prompt_bytes = bytes;
    config.max_new_tokens = o->max_new_tokens;
    config.temperature = o->temperature;
    config.top_k = o->top_k;
    config.top_p = o->top_p;
    config.seed = (uint64_t)o->seed;
    config.stop_at_eos = o->stop_at_eos;
    config.echo = o->echo;
    config.dtype = (fsdp_dtype)o->dtype;
    config.device = o->device;
    config.threads = (int)o->threads;
    config.text = show_text;
    config.context = stdout;
    config.prompts = list ? list->prompts : NULL;
    config.n_prompts = list ? list->n : 0;
    config.batch = o->batch_size;
    config.written = print_written;
    config.written_context = list;
    config.chat_template = o->chat_template ? o->chat_template : o->chat ? "" : NULL;
    fsdp_status status = FSDP_OK;
    if (o->download)
        status = download("generate", FSDP_FETCH_MODEL, o->model, NULL);
    if (status == FSDP_OK && o->download)
        status = download("generate", FSDP_FETCH_TOKENIZER, o->tokenizer, NULL);
    if (status == FSDP_OK && o->download && o->base)
        status = download("generate", FSDP_FETCH_MODEL, o->base, NULL);
    command_show_warnings("generate");
    if (status == FSDP_OK)
        status = fsdp_generate(&config, &result);
    if (status != FSDP_OK)
        return command_failed("generate", status);
    if (result.rank != 0)
        return 0;
    if (!list)
        putchar('\n');
    if (o->stats)
        fprintf(stderr, "loaded in %.2f s; read %lld tokens in %.3f s; wrote %lld in %.3f s (%.1f tokens/s)%s\n",
                result.load_seconds, (long long)result.prompt_tokens, result.prompt_seconds,
                (long long)result.new_tokens, result.seconds, (double)result.new_tokens / (result.seconds + 1e-9),
                result.ended ? ", to an end token" : "");
    return 0;
}

static void free_prompts(prompt_list *list)
{
    for (int64_t i = 0; i < list->n; i++)
        free((char *)(uintptr_t)list->prompts[i].text);
    free(list->prompts);
}

/* A prompt for every line that is not blank; a line that is none is named. */
static int read_prompts(const char *path, char *text, prompt_list *list)
{
    json_text field = {NULL, 0, 0};
    int code = 0;
    long long number = 0;
    text = command_behind_mark(text);
    for (char *line; code == 0 && (line = strsep(&text, "\n"));) {
        number++;
        if (line[strspn(line, " \t\r")] == '\0')
            continue;
        fsdp_prompt *grown = realloc(list->prompts, (size_t)(list->n + 1) * sizeof *grown);
        list->prompts = grown ? grown : list->prompts;
        if (!json_line_text(line, "prompt", &field))
            code =
                command_misused("generate", "%s:%lld: neither a JSON text nor an object with \"prompt\"", path, number);
        char *copy = code == 0 && grown ? malloc(field.n + 1) : NULL;
        if (code == 0 && !copy)
            code = command_misused("generate", "%s: out of memory", path);
        if (copy) {
            memcpy(copy, field.n ? field.bytes : "", field.n);
            list->prompts[list->n++] = (fsdp_prompt){copy, field.n};
        }
    }
    free(field.bytes);
    if (code == 0 && list->n == 0)
        return command_misused("generate", "%s: there are no prompts there", path);
    return code;
}

static int start_many(const generate_options *o)
{
    prompt_list list = {NULL, 0};
    size_t bytes;
    char *text = input_read_path(o->prompts, &bytes);
    if (!text)
        return command_misused("generate", "%s: cannot read: %s", o->prompts, strerror(errno));
    int code = strlen(text) == bytes ? read_prompts(o->prompts, text, &list)
                                     : command_misused("generate", "%s: has a byte of 0: not text", o->prompts);
    if (code == 0)
        code = generate(o, NULL, 0, &list);
    free_prompts(&list);
    free(text);
    return code;
}

static int start(const generate_options *o)
{
    if (!o->model)
        return command_misused("generate", "no model: name its folder or a checkpoint with --model");
    int n_given = (o->prompt != NULL) + (o->prompt_file != NULL) + (o->prompts != NULL);
    if (n_given != 1)
        return command_misused(
            "generate", n_given > 1 ? "--prompt, --prompt_file and --prompts contradict each other: name one of them"
                                    : "no prompt: give one with --prompt or --prompt_file, or many with --prompts");
    if (o->prompts)
        return start_many(o);
    if (o->prompt)
        return generate(o, o->prompt, strlen(o->prompt), NULL);
    size_t bytes;
    char *prompt = input_read_path(o->prompt_file, &bytes);
    if (!prompt)
        return command_misused("generate", "%s: cannot read: %s", o->prompt_file, strerror(errno));
    bytes -= bytes > 0 && prompt[bytes - 1] == '\n'; /* a newline at its end is not part of the prompt */
    int code = generate(o, prompt, bytes, NULL);
    free(prompt);
    return code;
}

static int run_generate(int argc, char **argv)
{
    generate_options options;
    fsdp_status status = command_options(generate_table, &options, &options.state, "generate", argc, argv, NULL, NULL);
    int code = status == FSDP_OK ? start(&options) : command_failed("generate", status);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_generate = {
    .name = "generate",
    .summary = "Generate text with a trained language model or T5",
    .usage = "--model PATH --prompt TEXT [FLAGS...]",
    .details = "  fsdp generate --model fsdp_runs/latest --prompt 'static int' --temperature 0.7\n"
               "  fsdp generate --model t5-small --prompt_file article.txt --max_new_tokens 60\n"
               "  fsdp generate --model model --prompts questions.jsonl --chat --stats >answers.jsonl\n\n"
               "Text is printed as it is generated. To shard a model that is too big for one process, start it with "
               "`fsdp run`.",
    .flags = generate_flags,
    .run = run_generate,
};
