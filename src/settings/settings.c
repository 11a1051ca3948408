/* Joins the sources of settings in their order (command line, file, preset, defaults), applies what flags imply for
 * each other, and refuses contradictions. flags.c knows how flags are spelled; the code that reads a field knows what
 * it means. */
#include <fsdp/settings.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "settings/flags_value.h"
#include "settings/foreign/foreign.h"
#include "settings/presets.h"
#include "settings/settings_table.h"
#include "shard/build/strategy.h"

const fsdp_flag *fsdp_settings_flags(void)
{
    return settings_table;
}

fsdp_status fsdp_settings_init(fsdp_settings *settings)
{
    memset(settings, 0, sizeof *settings);
    settings->size = sizeof *settings;
    return fsdp_flags_init(settings_table, settings, &settings->state);
}

fsdp_status settings_check_size(const fsdp_settings *settings)
{
    if (settings->size == sizeof *settings)
        return FSDP_OK;
    return error_set(
        FSDP_ERR_INPUT,
        "fsdp_settings has size %zu, this library's has %zu: start from fsdp_settings_init, and build with "
        "the headers of this version",
        settings->size, sizeof *settings);
}

void fsdp_settings_free(fsdp_settings *settings)
{
    fsdp_flags_free(&settings->state);
}

bool fsdp_settings_given(const fsdp_settings *settings, const char *name)
{
    return fsdp_flags_given(settings_table, &settings->state, name);
}

fsdp_status fsdp_settings_set(fsdp_settings *settings, const char *name, const char *value)
{
    return fsdp_flags_set(settings_table, settings, &settings->state, name, value, FSDP_FROM_COMMAND);
}

fsdp_status fsdp_settings_json(const fsdp_settings *settings, char **text)
{
    return fsdp_flags_json(settings_table, settings, &settings->state, text);
}

int64_t fsdp_settings_warmup_steps(const fsdp_settings *settings, int64_t n_steps)
{
    if (settings->warmup >= 1)
        return (int64_t)settings->warmup;
    return (int64_t)llround(settings->warmup * (double)n_steps);
}

static bool given(const fsdp_settings *s, const char *name)
{
    return fsdp_settings_given(s, name);
}

/* Given, and not merely its default spelled out: a settings file of an earlier run spells out everything. */
static bool given_otherwise(const fsdp_settings *s, const char *name)
{
    const fsdp_flag *flag = fsdp_flags_find(settings_table, name);
    char *value = given(s, name) ? fsdp_flags_value(flag, s) : NULL;
    bool otherwise = value && (!flag->default_value || strcmp(value, flag->default_value) != 0);
    free(value);
    return otherwise;
}

/* "--a=1 and --b=2 contradict each other: why" */
static fsdp_status contradiction(const fsdp_settings *s, const char *a, const char *b, const char *why)
{
    char *first = fsdp_flags_value(fsdp_flags_find(settings_table, a), s);
    char *second = fsdp_flags_value(fsdp_flags_find(settings_table, b), s);
    fsdp_status status = error_set(FSDP_ERR_INPUT, "--%s=%s and --%s=%s contradict each other: %s", a,
                                   first ? first : "", b, second ? second : "", why);
    free(first);
    free(second);
    return status;
}

static bool same_family(int a, int b)
{
    return a == b || (fsdp_model_is_llama(a) && fsdp_model_is_llama(b)); /* they differ in defaults only */
}

static const fsdp_flag notes_row = {.name = "notes", .offset = offsetof(fsdp_settings, notes)};

fsdp_status settings_note(fsdp_settings *s, const char *format, ...)
{
    char line[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    const char **all = calloc((size_t)s->notes.n + 1, sizeof *all);
    if (!all)
        return error_set(FSDP_ERR_MEMORY, "settings: out of host memory");
    for (int i = 0; i < s->notes.n; i++)
        all[i] = s->notes.items[i];
    all[s->notes.n] = line;
    fsdp_status status = flags_store_list(&notes_row, s, &s->state, all, s->notes.n + 1);
    free(all);
    return status;
}

/* The preset's settings, except those that the user set. */
static fsdp_status apply_preset(fsdp_settings *s)
{
    if (s->preset != FSDP_PRESET_NONE && s->model_config)
        return contradiction(s, "preset", "model_config", "both give the shape of the model");
    int wanted = s->model_type;
    bool type_given = given(s, "model_type");
    for (const preset_setting *p = preset_settings((fsdp_preset)s->preset); p->name; p++) {
        if (strcmp(p->name, "model_type") == 0) {
            const fsdp_choice *type = flags_choice(fsdp_flags_find(settings_table, p->name), p->value);
            if (type_given && !same_family(wanted, type->value))
                return contradiction(s, "preset", "model_type", "the preset is another architecture");
        }
        /* Who asks for another precision does not want the preset's. */
        bool precision_given = given(s, "param_dtype") || given(s, "fp16") || given(s, "bf16");
        if (given(s, p->name) || (strcmp(p->name, "bf16") == 0 && precision_given))
            continue;
        FSDP_TRY(fsdp_flags_set(settings_table, s, &s->state, p->name, p->value, FSDP_FROM_PRESET));
    }
    return FSDP_OK;
}

static fsdp_status check_precision(fsdp_settings *s)
{
    if (s->bf16 && s->fp16)
        return contradiction(s, "bf16", "fp16", "a run computes in one type");
    if (s->bf16 && given(s, "param_dtype") && s->param_dtype != FSDP_BF16)
        return contradiction(s, "bf16", "param_dtype", "--bf16 is short for --param_dtype=bf16");
    if (s->fp16 && given(s, "param_dtype") && s->param_dtype != FSDP_F16)
        return contradiction(s, "fp16", "param_dtype", "--fp16 is short for --param_dtype=fp16");
    if (s->bf16)
        s->param_dtype = FSDP_BF16;
    if (s->fp16)
        s->param_dtype = FSDP_F16;
    if (s->fp8_check > 0 && s->fp8 == FSDP_FP8_OFF)
        return contradiction(s, "fp8_check", "fp8", "there are no 8-bit products to check");
    for (int i = 0; i < (int)s->fp8_skip.n && s->fp8 != FSDP_FP8_OFF; i++)
        if (strcmp(s->fp8_skip.items[i], "*") == 0)
            return contradiction(s, "fp8", "fp8_skip", "no layer is left for 8 bits");
    bool wide = s->optimizer == FSDP_MUON || s->optimizer == FSDP_ADAFACTOR;
    if (wide && s->optimizer_state != FSDP_F32)
        return contradiction(s, "optimizer", "optimizer_state", "Muon and Adafactor keep their moments in fp32");
    if (s->gradient_dtype == FSDP_F32)
        return FSDP_OK;
    if (wide)
        return contradiction(s, "optimizer", "gradient_dtype", "Muon and Adafactor read gradients in fp32");
    if (given(s, "reduce_dtype") && s->reduce_dtype != s->gradient_dtype)
        return contradiction(s, "gradient_dtype", "reduce_dtype", "the sum would be rounded after it was made");
    if (s->gradient_accumulation_steps > 1)
        return contradiction(s, "gradient_dtype", "gradient_accumulation_steps",
                             "micro-batches are added up in fp32 gradients only");
    s->reduce_dtype = s->gradient_dtype;
    return FSDP_OK;
}

static bool is_hybrid(int strategy)
{
    return strategy == FSDP_HYBRID || strategy == FSDP_HYBRID_ZERO2;
}

fsdp_status settings_shard_weights(const fsdp_settings *s, int *out)
{
    for (int i = 0; i < (int)s->shard_weights.n; i++) {
        char *end;
        long weight = strtol(s->shard_weights.items[i], &end, 10);
        if (*end || end == s->shard_weights.items[i] || weight < 1 || weight > 1000000)
            return error_set(
                FSDP_ERR_INPUT,
                "--shard_weights: '%s' is not a weight; expected whole numbers from 1 to 1000000, such as 2,1,1",
                s->shard_weights.items[i]);
        if (out)
            out[i] = (int)weight;
    }
    return FSDP_OK;
}

/* *grouped: some unit is hybrid. */
static fsdp_status check_unit_strategies(const fsdp_settings *s, bool *grouped)
{
    *grouped = false;
    for (int i = 0; i < (int)s->unit_strategies.n; i++) {
        strategy_rule rule;
        FSDP_TRY(strategy_rule_parse(s->unit_strategies.items[i], &rule));
        *grouped |= is_hybrid(rule.strategy);
    }
    return FSDP_OK;
}

static fsdp_status check_sharding(fsdp_settings *s)
{
    bool grouped;
    FSDP_TRY(settings_shard_weights(s, NULL));
    FSDP_TRY(check_unit_strategies(s, &grouped));
    if (s->shard_group_size > 0 && s->sharding_strategy >= 0 && !is_hybrid(s->sharding_strategy) && !grouped)
        return contradiction(s, "shard_group_size", "sharding_strategy", "only hybrid strategies have groups");
    if (s->shard_weights.n && s->sharding_strategy == FSDP_NO_SHARD)
        return contradiction(s, "shard_weights", "sharding_strategy", "nothing is sharded");
    if (given_otherwise(s, "gather_buffers") && !s->limit_all_gathers)
        return contradiction(s, "gather_buffers", "limit_all_gathers", "without a limit there is no number");
    if (s->offload_activations && given(s, "activation_checkpointing") &&
        s->activation_checkpointing == FSDP_CHECKPOINT_NONE)
        return contradiction(s, "offload_activations", "activation_checkpointing",
                             "what is offloaded are the inputs of checkpointed units");
    if (s->offload_activations && s->activation_checkpointing == FSDP_CHECKPOINT_NONE)
        s->activation_checkpointing = FSDP_CHECKPOINT_FULL;
    if (given_otherwise(s, "min_num_params") && !given(s, "wrap_policy"))
        s->wrap_policy = FSDP_WRAP_SIZE;
    if (given_otherwise(s, "min_num_params") && s->wrap_policy != FSDP_WRAP_SIZE)
        return contradiction(s, "min_num_params", "wrap_policy", "only the size policy counts parameters");
    if (s->wrap_types.n && s->wrap_policy != FSDP_WRAP_TYPE)
        return contradiction(s, "wrap_types", "wrap_policy", "only the transformer policy goes by type");
    if (s->cpu_offload_units.n && given(s, "cpu_offload") && !s->cpu_offload)
        return contradiction(s, "cpu_offload_units", "cpu_offload", "units are offloaded or not");
    if (s->cpu_offload_units.n)
        s->cpu_offload = true;
    return FSDP_OK;
}

/* Defaults that depend on the architecture. */
static void settle_model(fsdp_settings *s)
{
    bool qwen_or_gemma =
        s->model_type == FSDP_MODEL_QWEN2 || s->model_type == FSDP_MODEL_QWEN3 || s->model_type == FSDP_MODEL_GEMMA3;
    if (s->rotary_emb_base == 0)
        s->rotary_emb_base = s->model_type == FSDP_MODEL_LLAMA_V3 ? 500000 : qwen_or_gemma ? 1000000 : 10000;
    if (s->norm_eps == 0)
        s->norm_eps = s->model_type == FSDP_MODEL_T5 || qwen_or_gemma ? 1e-6 : 1e-5;
    if ((s->model_type == FSDP_MODEL_GPT2 || s->model_type == FSDP_MODEL_GEMMA3) && !given(s, "tie_word_embeddings") &&
        s->preset == FSDP_PRESET_NONE)
        s->tie_word_embeddings = true;
    if (s->model_type == FSDP_MODEL_T5 && s->preset == FSDP_PRESET_NONE) {
        if (!given(s, "tie_word_embeddings"))
            s->tie_word_embeddings = true;
        if (!given(s, "initializer_range"))
            s->initializer_range = 1;
    }
    if (s->num_decoder_layers == 0)
        s->num_decoder_layers = s->num_layers;
    if (s->num_key_value_heads == 0)
        s->num_key_value_heads = s->num_heads;
}

static fsdp_status check_model(fsdp_settings *s)
{
    bool decoder = fsdp_model_is_decoder(s->model_type), transformer = decoder || s->model_type == FSDP_MODEL_T5;
    if (!transformer || s->model_config)
        return FSDP_OK;
    if (s->head_dim == 0 && s->hidden_width % s->num_heads != 0)
        return contradiction(s, "hidden_width", "num_heads",
                             "the width is no multiple of the heads; --head_dim sets the width of a head by itself");
    if (s->head_dim == 0)
        s->head_dim = s->hidden_width / s->num_heads;
    if (s->num_heads % s->num_key_value_heads != 0)
        return contradiction(s, "num_heads", "num_key_value_heads", "heads must be a multiple of those of keys");
    if (s->model_type == FSDP_MODEL_T5 && s->num_key_value_heads != s->num_heads)
        return contradiction(s, "model_type", "num_key_value_heads", "T5 has as many heads of keys as of queries");
    if (decoder && s->model_type != FSDP_MODEL_GPT2 && s->head_dim % 2 != 0)
        return error_set(FSDP_ERR_INPUT, "--head_dim=%lld: rotary positions want an even number",
                         (long long)s->head_dim);
    return FSDP_OK;
}

/* Nothing of the model was said: the plan of a default would be taken for that of one's own. */
static fsdp_status check_plan(const fsdp_settings *s)
{
    for (const fsdp_flag *flag = settings_table; flag->name; flag++)
        if ((strcmp(flag->group, "Model") == 0 || strcmp(flag->name, "preset") == 0) && given(s, flag->name))
            return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "no model to plan for: give --preset NAME, --model_config FILE (a config.json), or "
                     "its shape (--hidden_width, --num_layers, --num_heads, ...)");
}

enum { LEAST_FIT = 1 << 20 };

/* 0 is how these are left open, so a file of settings may hold it; who writes it on the command line expects something
 * else. */
static fsdp_status check_zeros(const fsdp_settings *s)
{
    const struct {
        const char *flag;
        int64_t value;
        const char *what;
    } rows[] = {
        {"max_steps", s->max_steps,
         "trains nothing: give the number of steps, or leave it out for --epochs; --dry_run only checks the job"},
        {"epochs", s->epochs,
         "trains nothing: give the number of passes, or leave it out for --max_steps; --dry_run only checks the job"},
        {"world_size", s->world_size, "leaves nobody to plan for: give the number of ranks, or auto"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value == 0 &&
            s->state.origin[fsdp_flags_find(settings_table, rows[i].flag) - settings_table] == FSDP_FROM_COMMAND)
            return error_set(FSDP_ERR_INPUT, "--%s=0 %s", rows[i].flag, rows[i].what);
    return FSDP_OK;
}

static fsdp_status check_run(const fsdp_settings *s)
{
    if (s->dashboard_address && s->dashboard == 0)
        return error_set(FSDP_ERR_INPUT, "--dashboard_address %s has no page to serve; give --dashboard, too",
                         s->dashboard_address);
    if (s->fit > 0 && s->fit < LEAST_FIT)
        return error_set(FSDP_ERR_INPUT,
                         "--fit=%lld is a number of bytes, and no model is that small: write --fit "
                         "%lldGB, for instance",
                         (long long)s->fit, (long long)s->fit);
    if (s->overwrite && s->resume_from_checkpoint && strcmp(s->resume_from_checkpoint, "auto") == 0)
        return contradiction(s, "overwrite", "resume_from_checkpoint", "what is resumed is not replaced");
    if (s->overwrite && !s->output_dir && !s->checkpoint_dir)
        return error_set(FSDP_ERR_INPUT, "--overwrite: name the folder of the run to replace with --output_dir");
    return check_zeros(s);
}

/* A file of prompts that is missing is said before hours of training, not after. */
static fsdp_status check_samples(const fsdp_settings *s)
{
    const char *prompt = s->sample_prompt;
    if (s->sample_tokens > 0 && prompt && prompt[0] == '@' && !file_exists(prompt + 1))
        return error_set(FSDP_ERR_INPUT, "--sample_prompt=%s: there is no such file", prompt);
    return FSDP_OK;
}

/* Options of adapters that are not asked for. */
static fsdp_status check_adapters(const fsdp_settings *s)
{
    const struct {
        const char *name;
        bool set;
    } options[] = {{"lora_alpha", given_otherwise(s, "lora_alpha")},
                   {"lora_targets", s->lora_targets.n > 0},
                   {"lora_rslora", s->lora_rslora},
                   {"lora_dropout", !s->adapter && s->lora_dropout > 0}};
    for (size_t i = 0; i < sizeof options / sizeof *options && s->lora_rank == 0; i++) {
        if (options[i].set)
            return error_set(FSDP_ERR_INPUT,
                             s->adapter ? "--%s: the adapter's own is taken" : "--%s: set --lora_rank, too",
                             options[i].name);
    }
    return FSDP_OK;
}

static fsdp_status check_optimisation(fsdp_settings *s)
{
    if (s->min_lr > s->lr)
        return contradiction(s, "lr", "min_lr", "the decay would rise");
    if (s->max_steps == 0 && s->epochs == 0)
        s->epochs = 1;
    if (s->warmup >= 1 && s->warmup != floor(s->warmup))
        return error_set(FSDP_ERR_INPUT, "--warmup=%.9g: from 1 on it counts steps and must be whole", s->warmup);
    if (s->max_steps > 0 && fsdp_settings_warmup_steps(s, s->max_steps) > s->max_steps) {
        if (fsdp_settings_given(s, "warmup"))
            return contradiction(s, "warmup", "max_steps", "the warmup would not end");
        /* a preset's warmup is meant for the preset's steps */
        FSDP_TRY(fsdp_flags_set(settings_table, s, &s->state, "warmup", "0.1", FSDP_FROM_OTHERS));
    }
    if (s->validation_split > 0 && s->validation_dataset.n)
        return contradiction(s, "validation_split", "validation_dataset", "validation data has one source");
    if (s->val_batch_size == 0)
        s->val_batch_size = s->train_batch_size;
    return FSDP_OK;
}

static bool differs(const fsdp_settings *s, const fsdp_settings *defaults, const fsdp_flag *flag)
{
    char *value = fsdp_flags_value(flag, s), *usual = fsdp_flags_value(flag, defaults);
    bool other = value && (!usual || strcmp(value, usual) != 0);
    free(value);
    free(usual);
    return other;
}

/* Rows that no source has set and that hold something else than their default now. */
static void note_implied(fsdp_settings *s)
{
    fsdp_settings defaults;
    if (fsdp_settings_init(&defaults) != FSDP_OK)
        return;
    for (const fsdp_flag *flag = settings_table; flag->name; flag++) {
        uint8_t *origin = &s->state.origin[flag - settings_table];
        if (*origin == FSDP_FROM_DEFAULT && differs(s, &defaults, flag))
            *origin = FSDP_FROM_OTHERS;
    }
    fsdp_settings_free(&defaults);
}

/* Flags that another one gives a meaning, where that is not given: a line says that they do nothing. */
static fsdp_status note_idle(fsdp_settings *s)
{
    const struct {
        const char *flag;
        bool idle;
        const char *without;
    } rows[] = {
        {"fp8_skip", s->fp8 == FSDP_FP8_OFF, "--fp8"},
        {"fp8_weights", s->fp8 == FSDP_FP8_OFF, "--fp8"},
        {"fp8_max_error", s->fp8_check == 0, "--fp8_check"},
        {"optimizer_state", s->optimizer == FSDP_SGD && s->momentum == 0, "--momentum"},
        {"reduce_accumulation", s->reduce_dtype == FSDP_F32, "--reduce_dtype bf16 or fp16"},
        {"loss_scale", s->param_dtype != FSDP_F16, "--fp16"},
    };
    fsdp_settings defaults;
    FSDP_TRY(fsdp_settings_init(&defaults));
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == FSDP_OK; i++) {
        const fsdp_flag *flag = fsdp_flags_find(settings_table, rows[i].flag);
        uint8_t origin = s->state.origin[flag - settings_table];
        bool asked = origin == FSDP_FROM_COMMAND || origin == FSDP_FROM_FILE;
        if (rows[i].idle && asked && differs(s, &defaults, flag))
            status = settings_note(s, "--%s has no effect without %s", rows[i].flag, rows[i].without);
    }
    fsdp_settings_free(&defaults);
    return status;
}

fsdp_status fsdp_settings_check(fsdp_settings *settings)
{
    FSDP_TRY(flags_check_texts(settings_table, settings));
    FSDP_TRY(apply_preset(settings));
    settle_model(settings);
    FSDP_TRY(check_model(settings));
    FSDP_TRY(check_adapters(settings));
    FSDP_TRY(check_samples(settings));
    FSDP_TRY(check_precision(settings));
    FSDP_TRY(check_sharding(settings));
    FSDP_TRY(check_run(settings));
    FSDP_TRY(check_optimisation(settings));
    note_implied(settings);
    return FSDP_OK;
}

fsdp_status fsdp_settings_parse(fsdp_settings *settings, const char *command, int argc, char *const *argv)
{
    FSDP_TRY(fsdp_flags_parse(settings_table, settings, &settings->state, command, argc, argv, NULL, NULL));
    if (settings->config)
        FSDP_TRY(fsdp_flags_read(settings_table, settings, &settings->state, command, settings->config));
    FSDP_TRY(foreign_read_files(settings, command));
    if (strcmp(command, "train") == 0 && settings->json && !settings->dry_run)
        return error_set(FSDP_ERR_INPUT, "--json goes with --dry_run; a run's figures are in metrics.jsonl");
    FSDP_TRY(fsdp_settings_check(settings));
    FSDP_TRY(note_idle(settings));
    for (int i = 0; strcmp(command, "train") != 0 && i < settings->notes.n; i++)
        log_write(FSDP_LOG_WARNING, "%s", settings->notes.items[i]); /* a run says them itself, once for all ranks */
    return strcmp(command, "plan") == 0 ? check_plan(settings) : FSDP_OK;
}
