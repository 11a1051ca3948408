/* `fsdp ckpt`: looks at, checks, compares, converts and prunes checkpoints. The work is <fsdp/checkpoint.h>'s. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/checkpoint.h>

#include "commands.h"

typedef struct ckpt_options {
    fsdp_flag_state state;
    bool json, dry_run, average;
    double tolerance;
    const char *dtype, *tokenizer, *kind, *format, *adapter, *base;
    int64_t max_file_size, world_size, keep, keep_every;
} ckpt_options;

static const fsdp_choice dtypes[] = {{"fp32", 0, NULL}, {"bf16", 1, NULL}, {"fp16", 2, NULL}, {NULL, 0, NULL}};
static const fsdp_choice formats[] = {
    {"hf", 0, NULL}, {"pt", 1, NULL}, {"dcp", 2, NULL}, {"peft", 3, NULL}, {NULL, 0, NULL}};
static const fsdp_choice kinds[] = {{"sharded", 0, NULL}, {"full", 1, NULL}, {NULL, 0, NULL}};

#define FIELD(name) offsetof(ckpt_options, name)

/* `only`: the command, for which all are listed, and the actions. */
static const fsdp_flag ckpt_table[] = {
    {.name = "json", .type = FSDP_FLAG_SWITCH, .offset = FIELD(json), .help = "print one JSON object"},
    {.name = "tolerance",
     .only = "ckpt diff",
     .type = FSDP_FLAG_FLOAT,
     .offset = FIELD(tolerance),
     .default_value = "0",
     .max = 1e30,
     .unit = "X",
     .help = "diff: ignore differences up to X; 0: compare bit by bit"},
    {.name = "dtype",
     .only = "ckpt export",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(dtype),
     .default_value = "fp32",
     .choices = dtypes,
     .help = "export: element type of the weights"},
    {.name = "format",
     .only = "ckpt export",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(format),
     .default_value = "hf",
     .choices = formats,
     .help = "export: hf: a Hugging Face folder; pt: a PyTorch file; dcp: a PyTorch DCP folder with optimizer state; "
             "peft: the adapter of a LoRA run"},
    {.name = "average",
     .only = "ckpt export",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(average),
     .help = "export: the averaged weights of a run with --ema"},
    {.name = "adapter",
     .only = "ckpt export",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(adapter),
     .unit = "DIR,...",
     .help = "export: merge these adapters (peft's format) into the weights"},
    {.name = "base",
     .only = "ckpt export",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(base),
     .unit = "PATH",
     .help = "export of a LoRA checkpoint: the base model (default: where training had it)"},
    {.name = "tokenizer",
     .only = "ckpt export",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(tokenizer),
     .unit = "DIR",
     .help = "export: take tokenizer files from this folder, not from the checkpoint"},
    {.name = "max_file_size",
     .only = "ckpt export",
     .type = FSDP_FLAG_BYTES,
     .offset = FIELD(max_file_size),
     .default_value = "5GB",
     .min = 1,
     .max = 9e18,
     .unit = "SIZE",
     .help = "export: split larger models into files of this size, with an index"},
    {.name = "kind",
     .only = "ckpt import reshard",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(kind),
     .default_value = "sharded",
     .choices = kinds,
     .help = "import, reshard: kind of checkpoint to write"},
    {.name = "world_size",
     .only = "ckpt import reshard export",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(world_size),
     .default_value = "1",
     .min = 1,
     .max = 99999,
     .unit = "N",
     .help = "import, reshard, export --format dcp: number of files to write, one per rank"},
    {.name = "keep_checkpoints",
     .only = "ckpt prune",
     .aliases = "keep",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(keep),
     .default_value = "1",
     .min = 1,
     .max = 1e6,
     .unit = "K",
     .help = "prune: keep the K newest complete checkpoints"},
    {.name = "keep_every",
     .only = "ckpt prune",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(keep_every),
     .default_value = "0",
     .min = 0,
     .max = 1e15,
     .unit = "M",
     .help = "prune: also keep checkpoints whose step is a multiple of M"},
    {.name = "dry_run",
     .only = "ckpt prune",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(dry_run),
     .help = "prune: only list what would be removed"},
    {.name = NULL},
};

static const fsdp_flag *ckpt_flags(void)
{
    return ckpt_table;
}

/* ---- The actions: `paths` are the words after the action's name ---- */

static fsdp_status act_show(const ckpt_options *o, const char **paths, char **text, int *code)
{
    (void)code;
    return fsdp_checkpoint_show(paths[0], o->json, text);
}

static fsdp_status act_verify(const ckpt_options *o, const char **paths, char **text, int *code)
{
    fsdp_status status = fsdp_checkpoint_verify(paths[0], o->json, text);
    *code = status != FSDP_OK && *text ? 1 : 0; /* with a report, the checkpoint is wrong, not what the user typed */
    return status;
}

static fsdp_status act_diff(const ckpt_options *o, const char **paths, char **text, int *code)
{
    bool same = true;
    fsdp_status status = fsdp_checkpoint_diff(paths[0], paths[1], o->tolerance, o->json, &same, text);
    *code = same ? 0 : 1;
    return status;
}

static fsdp_status act_export(const ckpt_options *o, const char **paths, char **text, int *code)
{
    (void)code;
    fsdp_checkpoint_export_config config = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
    config.source = paths[0];
    config.destination = paths[1];
    config.tokenizer = o->tokenizer;
    config.max_file_bytes = o->max_file_size;
    config.json = o->json;
    config.format = o->format;
    config.average = o->average;
    config.adapters = o->adapter;
    config.base = o->base;
    config.world_size = (int)o->world_size;
    FSDP_TRY(fsdp_dtype_parse(o->dtype, &config.dtype));
    return fsdp_checkpoint_export(&config, text);
}

static fsdp_checkpoint_convert_config convert_config(const ckpt_options *o, const char **paths)
{
    fsdp_checkpoint_convert_config config = FSDP_CHECKPOINT_CONVERT_CONFIG_INIT;
    config.source = paths[0];
    config.destination = paths[1];
    config.kind = o->kind;
    config.world_size = (int)o->world_size;
    config.json = o->json;
    return config;
}

static fsdp_status act_import(const ckpt_options *o, const char **paths, char **text, int *code)
{
    (void)code;
    fsdp_checkpoint_convert_config config = convert_config(o, paths);
    return fsdp_checkpoint_import(&config, text);
}

static fsdp_status act_reshard(const ckpt_options *o, const char **paths, char **text, int *code)
{
    (void)code;
    fsdp_checkpoint_convert_config config = convert_config(o, paths);
    return fsdp_checkpoint_reshard(&config, text);
}

static fsdp_status act_prune(const ckpt_options *o, const char **paths, char **text, int *code)
{
    (void)code;
    fsdp_checkpoint_prune_config config = FSDP_CHECKPOINT_PRUNE_CONFIG_INIT;
    config.directory = paths[0];
    config.keep = (int)o->keep;
    config.keep_every = o->keep_every;
    config.dry_run = o->dry_run;
    config.json = o->json;
    return fsdp_checkpoint_prune(&config, text);
}

typedef struct action {
    const char *name;
    int n_paths;
    const char *paths; /* what they are, for messages */
    fsdp_status (*act)(const ckpt_options *o, const char **paths, char **text, int *code);
} action;

static const action actions[] = {
    {"show", 1, "PATH", act_show},
    {"verify", 1, "PATH", act_verify},
    {"diff", 2, "PATH PATH", act_diff},
    {"export", 2, "CHECKPOINT FOLDER", act_export},
    {"import", 2, "FOLDER|FILE DIRECTORY", act_import},
    {"reshard", 2, "CHECKPOINT DIRECTORY", act_reshard},
    {"prune", 1, "DIRECTORY", act_prune},
};
enum { N_ACTIONS = sizeof actions / sizeof *actions };

static const action *find_action(const char *name)
{
    for (int i = 0; i < N_ACTIONS; i++)
        if (strcmp(actions[i].name, name) == 0)
            return &actions[i];
    return NULL;
}

static int unknown_action(const char *name)
{
    const char *names[N_ACTIONS];
    for (int i = 0; i < N_ACTIONS; i++)
        names[i] = actions[i].name;
    const char *near = fsdp_nearest(name, names, N_ACTIONS);
    return command_misused("ckpt", "unknown action '%s'%s%s%s", name, near ? "; did you mean `fsdp ckpt " : "",
                           near ? near : ": show, verify, diff, export, import, reshard or prune", near ? "`?" : "");
}

/* A flag of another action would do nothing, and nobody would see that. NULL: there is none. */
static const fsdp_flag *find_stray(const ckpt_options *o, const char *name)
{
    for (const fsdp_flag *flag = ckpt_table; flag->name; flag++)
        if (!fsdp_flags_belongs(flag, name) && fsdp_flags_given(ckpt_table, &o->state, flag->name))
            return flag;
    return NULL;
}

static int run_action(const ckpt_options *options, const char **words, int n_words)
{
    if (n_words == 0)
        return command_misused("ckpt", "say what to do: show, verify, diff, export, import, reshard or prune");
    const action *a = find_action(words[0]);
    if (!a)
        return unknown_action(words[0]);
    if (n_words - 1 != a->n_paths)
        return command_misused("ckpt", "usage: fsdp ckpt %s %s [FLAGS...]", a->name, a->paths);
    const fsdp_flag *stray = find_stray(options, a->name);
    if (stray) /* `only` begins with "ckpt" */
        return command_misused("ckpt", "--%s belongs to `fsdp %s`, not to %s", stray->name, stray->only, a->name);
    char *text = NULL;
    int code = 0;
    fsdp_status status = a->act(options, words + 1, &text, &code);
    if (text)
        fputs(text, stdout);
    free(text);
    fflush(stdout);
    if (status == FSDP_OK)
        return code;
    int failed = command_failed("ckpt", status);
    return code ? code : failed;
}

static int run_ckpt(int argc, char **argv)
{
    ckpt_options options;
    const char *words[64];
    int n_words = 0;
    if (argc > 64)
        return command_misused("ckpt", "too many words");
    command_show_warnings("ckpt");
    fsdp_status status = command_options(ckpt_table, &options, &options.state, "ckpt", argc, argv, words, &n_words);
    int code = status == FSDP_OK ? run_action(&options, words, n_words) : command_failed("ckpt", status);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_ckpt = {
    .name = "ckpt",
    .summary = "Show, verify, compare, convert and prune checkpoints",
    .usage = "show|verify|diff|export|import|reshard|prune PATH... [FLAGS...]",
    .details =
        "PATH is a checkpoint (run/step-00000020), a run or a folder of checkpoints (its newest complete one is used), "
        "a\n"
        "Hugging Face folder, a file of weights (.safetensors, or PyTorch's .pt, .pth, .bin), or a folder of\n"
        "torch.distributed.checkpoint.\n\n"
        "  fsdp ckpt show run                        list what it holds and whether it is complete\n"
        "  fsdp ckpt verify run                      read all checkpoints and check every checksum (damage: exit code "
        "1)\n"
        "  fsdp ckpt diff run/step-00000010 run      list tensors that differ, and by how much (exit code 1)\n"
        "  fsdp ckpt export run model --dtype bf16   write a folder that transformers can open\n"
        "  fsdp ckpt import model run                make a checkpoint from a Hugging Face or PyTorch model\n"
        "  fsdp ckpt export run model.pt --format pt    write a state dict for torch.load\n"
        "  fsdp ckpt export run folder --format dcp     write weights and optimizer for torch.distributed.checkpoint\n"
        "  fsdp ckpt reshard run run8 --world_size 8\n"
        "  fsdp ckpt prune run --keep_checkpoints 3 --keep_every 1000",
    .flags = ckpt_flags,
    .run = run_ckpt,
};
