/* `fsdp generate`: a prompt to a trained model, and its text as it comes. The work is <fsdp/generate.h>'s. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/generate.h>

#include "commands.h"

typedef struct generate_options {
    fsdp_flag_state state;
    const char *model, *tokenizer, *prompt, *prompt_file, *device;
    int64_t max_new_tokens, top_k, seed, threads;
    double temperature, top_p;
    bool stop_at_eos, echo, stats;
    int dtype;
} generate_options;

#define FIELD(name) offsetof(generate_options, name)

static const fsdp_choice dtypes[] = {
    {"fp32", FSDP_F32, "float32"},
    {"bf16", FSDP_BF16, "bfloat16"},
    {"fp16", FSDP_F16, "float16"},
    {NULL, 0, NULL},
};

static const fsdp_choice devices[] = {{"auto", 0, NULL}, {"cpu", 0, NULL}, {"cuda", 0, "gpu"}, {NULL, 0, NULL}};

static const fsdp_flag generate_table[] = {
    {.name = "model",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(model),
     .unit = "PATH",
     .help = "a Hugging Face folder, a checkpoint, a folder of checkpoints (the newest is taken) or a hub name"},
    {.name = "tokenizer",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(tokenizer),
     .unit = "PATH",
     .help = "a tokenizer.json, its folder or a hub name; by default the model's, else every byte is a token"},
    {.name = "prompt",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(prompt),
     .unit = "TEXT",
     .help = "what a LLaMA continues and a T5 answers"},
    {.name = "prompt_file",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(prompt_file),
     .unit = "FILE",
     .help = "take the prompt from a file, - for standard input"},
    {.name = "max_new_tokens",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(max_new_tokens),
     .fallback = "128",
     .least = 1,
     .most = 1e9,
     .unit = "N",
     .help = "write at most so many tokens"},
    {.name = "temperature",
     .type = FSDP_FLAG_FLOAT,
     .offset = FIELD(temperature),
     .fallback = "0",
     .least = 0,
     .most = 1e6,
     .unit = "X",
     .help = "0 takes the likeliest token, 1 draws as the model says, more is wilder"},
    {.name = "top_k",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(top_k),
     .least = 0,
     .most = 1e9,
     .unit = "N",
     .help = "draw from so many of the likeliest tokens; by default from all"},
    {.name = "top_p",
     .type = FSDP_FLAG_FLOAT,
     .offset = FIELD(top_p),
     .fallback = "1",
     .least = 1e-9,
     .most = 1,
     .unit = "P",
     .help = "draw from the likeliest tokens that together have this probability"},
    {.name = "seed",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(seed),
     .fallback = "42",
     .least = 0,
     .most = 1e15,
     .unit = "N",
     .help = "seed of what is drawn"},
    {.name = "stop_at_eos",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(stop_at_eos),
     .fallback = "true",
     .help = "end at the model's end token"},
    {.name = "echo", .type = FSDP_FLAG_SWITCH, .offset = FIELD(echo), .help = "print the prompt in front"},
    {.name = "stats",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(stats),
     .help = "say on standard error how many tokens were read and written, and how fast"},
    {.name = "dtype",
     .aliases = "param_dtype",
     .type = FSDP_FLAG_CHOICE,
     .offset = FIELD(dtype),
     .choices = dtypes,
     .help = "what the model computes in"},
    {.name = "device",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(device),
     .fallback = "auto",
     .choices = devices,
     .unit = "NAME",
     .help = "what computes; auto takes cuda where there is one"},
    {.name = "threads",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(threads),
     .least = 0,
     .most = 4096,
     .unit = "N",
     .help = "threads; by default OMP_NUM_THREADS, else all cores"},
    {.name = NULL},
};

static const fsdp_flag *generate_flags(void)
{
    return generate_table;
}

/* The whole file with a NUL behind it; NULL, with errno set, when it cannot be read. A newline at its end is no part
 * of the prompt. */
static char *read_prompt(const char *path, size_t *bytes)
{
    FILE *in = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    *bytes = 0;
    if (!in)
        return NULL;
    while (!feof(in) && !ferror(in)) {
        char *grown = realloc(text, capacity += 65536);
        if (!grown)
            break;
        text = grown;
        *bytes += fread(text + *bytes, 1, capacity - *bytes - 1, in);
    }
    if (!text || ferror(in) || !feof(in)) {
        int reason = ferror(in) ? EIO : ENOMEM;
        free(text);
        text = NULL;
        errno = reason;
    } else {
        *bytes -= *bytes > 0 && text[*bytes - 1] == '\n';
        text[*bytes] = 0;
    }
    if (in != stdin)
        fclose(in);
    return text;
}

static void show_text(void *context, const char *text, size_t bytes)
{
    fwrite(text, 1, bytes, context);
    fflush(context);
}

static int generate(const generate_options *o, const char *prompt, size_t bytes)
{
    fsdp_generate_config config = FSDP_GENERATE_CONFIG_INIT;
    fsdp_generate_result result = FSDP_GENERATE_RESULT_INIT;
    config.model = o->model;
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
    fsdp_status status = fsdp_generate(&config, &result);
    if (status != FSDP_OK)
        return command_failed("generate", status);
    if (result.rank != 0)
        return 0;
    putchar('\n');
    if (o->stats)
        fprintf(stderr, "loaded in %.2f s; read %lld tokens in %.3f s; wrote %lld in %.3f s (%.1f tokens/s)%s\n",
                result.load_seconds, (long long)result.prompt_tokens, result.prompt_seconds,
                (long long)result.new_tokens, result.seconds, (double)result.new_tokens / (result.seconds + 1e-9),
                result.ended ? ", to an end token" : "");
    return 0;
}

static int start(const generate_options *o)
{
    if (!o->model)
        return command_misused("generate", "no model: name its folder or a checkpoint with --model");
    if (!o->prompt == !o->prompt_file)
        return command_misused("generate", o->prompt
                                               ? "--prompt and --prompt_file contradict each other: name one of them"
                                               : "no prompt: give one with --prompt or --prompt_file");
    if (o->prompt)
        return generate(o, o->prompt, strlen(o->prompt));
    size_t bytes;
    char *prompt = read_prompt(o->prompt_file, &bytes);
    if (!prompt)
        return command_misused("generate", "%s: cannot read: %s", o->prompt_file, strerror(errno));
    int code = generate(o, prompt, bytes);
    free(prompt);
    return code;
}

static int run_generate(int argc, char **argv)
{
    generate_options options;
    fsdp_status status = fsdp_flags_init(generate_table, &options, &options.state);
    if (status == FSDP_OK)
        status = fsdp_flags_parse(generate_table, &options, &options.state, "generate", argc, argv, NULL, NULL);
    int code = status == FSDP_OK ? start(&options) : command_failed("generate", status);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_generate = {
    .name = "generate",
    .summary = "Write text with a trained LLaMA or T5",
    .usage = "--model PATH --prompt TEXT [FLAGS...]",
    .details =
        "  fsdp generate --model fsdp_run/checkpoints --prompt 'static int' --temperature 0.7\n"
        "  fsdp generate --model t5-small --prompt_file article.txt --max_new_tokens 60\n\n"
        "Text is printed as it is written. A model too big for one process is sharded over the ranks of `fsdp run`.",
    .flags = generate_flags,
    .run = run_generate,
};
