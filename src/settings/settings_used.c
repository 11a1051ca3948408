/* Overlays the architecture and the choices of a run on its settings, and lists them. A model's shape is shape.c's. */
#include "settings/settings_used.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "settings/settings_table.h"

static const char *const origins[] = {
    [FSDP_FROM_DEFAULT] = "default",
    [FSDP_FROM_OTHERS] = "other settings",
    [FSDP_FROM_MODEL] = "model or data",
    [FSDP_FROM_SIZE] = "model size",
    [FSDP_FROM_PRESET] = "preset",
    [FSDP_FROM_FILE] = "config file",
    [FSDP_FROM_COMMAND] = "flag",
    [FSDP_FROM_DEEPSPEED] = "DeepSpeed file",
    [FSDP_FROM_ACCELERATE] = "accelerate file",
};

static uint8_t *origin_of(fsdp_settings *s, const fsdp_flag *flag)
{
    return &s->state.origin[flag - settings_table];
}

static void choose(fsdp_settings *s, const char *name, int *field, int value)
{
    if (*field == value)
        return;
    *field = value;
    *origin_of(s, fsdp_flags_find(settings_table, name)) = FSDP_FROM_SIZE;
}

static void choose_switch(fsdp_settings *s, const char *name, bool *field, bool value)
{
    if (*field == value)
        return;
    *field = value;
    *origin_of(s, fsdp_flags_find(settings_table, name)) = FSDP_FROM_SIZE;
}

void settings_take_tokenizer(fsdp_settings *s, const char *folder)
{
    s->tokenizer = folder;
    *origin_of(s, fsdp_flags_find(settings_table, "tokenizer")) = FSDP_FROM_MODEL;
}

void settings_take_sharding(fsdp_settings *s, const fsdp_config *sharding)
{
    choose(s, "sharding_strategy", &s->sharding_strategy, (int)sharding->strategy);
    choose(s, "activation_checkpointing", &s->activation_checkpointing, (int)sharding->checkpointing);
    choose_switch(s, "offload_activations", &s->offload_activations, sharding->offload_activations);
    choose_switch(s, "cpu_offload", &s->cpu_offload, sharding->cpu_offload);
    choose(s, "fp8_weights", &s->fp8_weights, (int)sharding->fp8_weights);
    if (s->cpu_offload_resident != sharding->cpu_offload_resident) {
        s->cpu_offload_resident = sharding->cpu_offload_resident;
        *origin_of(s, fsdp_flags_find(settings_table, "cpu_offload_resident")) = FSDP_FROM_SIZE;
    }
}

static int flag_of(const model_config *model)
{
    static const int types[] = {[MODEL_T5] = FSDP_MODEL_T5, [MODEL_CNN] = FSDP_MODEL_CNN, [MODEL_MLP] = FSDP_MODEL_MLP};
    static const int families[FSDP_FAMILY_COUNT] = {
        [FSDP_FAMILY_LLAMA] = FSDP_MODEL_LLAMA_V3, [FSDP_FAMILY_MISTRAL] = FSDP_MODEL_MISTRAL,
        [FSDP_FAMILY_QWEN2] = FSDP_MODEL_QWEN2,    [FSDP_FAMILY_QWEN3] = FSDP_MODEL_QWEN3,
        [FSDP_FAMILY_GEMMA3] = FSDP_MODEL_GEMMA3,  [FSDP_FAMILY_GPT2] = FSDP_MODEL_GPT2,
        [FSDP_FAMILY_PHI3] = FSDP_MODEL_PHI3};
    return model->type == MODEL_DECODER ? families[model->decoder.family] : types[model->type];
}

fsdp_status settings_take_type(fsdp_settings *s, const model_config *model)
{
    const fsdp_flag *flag = fsdp_flags_find(settings_table, "model_type");
    int type = flag_of(model);
    if (type == s->model_type || (fsdp_model_is_llama(type) && fsdp_model_is_llama(s->model_type)))
        return FSDP_OK;
    char *given = *origin_of(s, flag) >= FSDP_FROM_PRESET ? fsdp_flags_value(flag, s) : NULL;
    if (given) {
        fsdp_status status =
            error_set(FSDP_ERR_INPUT, "--model_type=%s contradicts the model's config.json: it is a %s", given,
                      model_type_name(model));
        free(given);
        return status;
    }
    s->model_type = type;
    *origin_of(s, flag) = FSDP_FROM_MODEL;
    return FSDP_OK;
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static void print_row(FILE *out, const fsdp_settings *used, const fsdp_settings *defaults, const fsdp_flag *flag)
{
    char *value = fsdp_flags_value(flag, used), *usual = fsdp_flags_value(flag, defaults);
    fprintf(out, "\n%s %-32s %-28s %s", same_text(value, usual) ? " " : "*", flag->name, value ? value : "-",
            origins[used->state.origin[flag - settings_table]]);
    free(value);
    free(usual);
}

fsdp_status settings_used_text(const fsdp_settings *used, char **text)
{
    size_t bytes;
    const char *group = "";
    fsdp_settings defaults;
    FSDP_TRY(fsdp_settings_init(&defaults));
    FILE *out = open_memstream(text, &bytes);
    if (!out) {
        fsdp_settings_free(&defaults);
        return error_set(FSDP_ERR_MEMORY, "listing settings: out of host memory");
    }
    fprintf(out, "Settings as they would be used (* not the default), and where each comes from:");
    for (const fsdp_flag *flag = settings_table; flag->name; flag++) {
        if (flag->only)
            continue;
        if (strcmp(flag->group, group) != 0)
            fprintf(out, "\n\n%s", group = flag->group);
        print_row(out, used, &defaults, flag);
    }
    fsdp_settings_free(&defaults);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(*text);
        *text = NULL;
        return error_set(FSDP_ERR_MEMORY, "listing settings: out of host memory");
    }
    return FSDP_OK;
}

json_t *settings_used_json(const fsdp_settings *used)
{
    char *text = NULL;
    if (fsdp_flags_json(settings_table, used, &used->state, &text) != FSDP_OK)
        return NULL;
    json_t *values = json_loads(text, 0, NULL), *all = json_object();
    free(text);
    for (const fsdp_flag *flag = settings_table; all && values && flag->name; flag++) {
        json_t *value = json_object_get(values, flag->name);
        if (value)
            json_object_set_new(
                all, flag->name,
                json_pack("{s:O, s:s}", "value", value, "from", origins[used->state.origin[flag - settings_table]]));
    }
    json_decref(values);
    return all;
}
