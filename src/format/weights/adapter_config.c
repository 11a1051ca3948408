/* The fields of adapter_config.json. peft adds some in every version, each with an empty value where it is not used:
 * those with any other value ask for something that is not done here. */
#include "format/weights/adapter_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* Read below, or without effect on the numbers of a finished adapter. */
static const char *const known[] = {"peft_type",        "r",
                                    "lora_alpha",       "lora_dropout",
                                    "use_rslora",       "target_modules",
                                    "fan_in_fan_out",   "init_lora_weights",
                                    "task_type",        "base_model_name_or_path",
                                    "inference_mode",   "peft_version",
                                    "revision",         "auto_mapping",
                                    "megatron_core",    "qalora_group_size",
                                    "low_cpu_mem_usage"};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(key, known[i]) == 0)
            return true;
    }
    return false;
}

static bool is_empty(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && strcmp(json_string_value(value), "none") == 0);
}

static fsdp_status check_others(const char *name, const json_t *object)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!is_known(key) && !is_empty(value))
            return error_set(FSDP_ERR_UNSUPPORTED, "%s: %s is set, which is not implemented", name, key);
    }
    /* PiSSA and its like change the model below the adapter. */
    const json_t *init = json_object_get(object, "init_lora_weights");
    if (json_is_string(init) && strcmp(json_string_value(init), "gaussian") != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: init_lora_weights is %s, which changes the base model's weights",
                         name, json_string_value(init));
    return FSDP_OK;
}

static fsdp_status read_targets(const char *name, const json_t *value, char *out)
{
    size_t used = 0;
    if (json_is_string(value)) {
        bool all = strcmp(json_string_value(value), "all-linear") == 0;
        used = (size_t)snprintf(out, FSDP_LORA_TARGETS, "%s", all ? "all-linear" : "");
    } else if (json_array_size(value) == 0) {
        return error_set(FSDP_ERR_INPUT, "%s: target_modules names no layers", name);
    }
    for (size_t i = 0; i < json_array_size(value) && used < FSDP_LORA_TARGETS; i++) {
        const char *item = json_string_value(json_array_get(value, i));
        if (!item || strpbrk(item, ",*?[ ") || !*item)
            return error_set(FSDP_ERR_INPUT, "%s: target_modules has something else than names of layers", name);
        used += (size_t)snprintf(out + used, FSDP_LORA_TARGETS - used, "%s%s", i ? "," : "", item);
    }
    return used < FSDP_LORA_TARGETS ? FSDP_OK
                                    : error_set(FSDP_ERR_UNSUPPORTED, "%s: target_modules is longer than %d characters",
                                                name, FSDP_LORA_TARGETS);
}

fsdp_status adapter_config_parse(const char *name, const json_t *object, adapter_config *out)
{
    const char *type;
    *out = (adapter_config){.lora = FSDP_LORA_CONFIG_INIT};
    if (!json_is_object(object))
        return error_set(FSDP_ERR_INPUT, "%s: a JSON object is expected", name);
    FSDP_TRY(json_get_string(name, object, "peft_type", &type));
    if (strcmp(type, "LORA") != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: peft_type is %s; LORA is known", name, type);
    FSDP_TRY(json_get_int(name, object, "r", &out->lora.rank));
    FSDP_TRY(json_get_number(name, object, "lora_alpha", &out->lora.alpha));
    FSDP_TRY(json_opt_number(name, object, "lora_dropout", &out->lora.dropout));
    FSDP_TRY(json_opt_bool(name, object, "use_rslora", &out->lora.rslora));
    FSDP_TRY(json_opt_bool(name, object, "fan_in_fan_out", &out->input_major));
    FSDP_TRY(read_targets(name, json_object_get(object, "target_modules"), out->lora.targets));
    if (out->lora.rank < 1 || !isfinite(out->lora.alpha))
        return error_set(FSDP_ERR_INPUT, "%s: r is %lld and lora_alpha %g", name, (long long)out->lora.rank,
                         out->lora.alpha);
    return check_others(name, object);
}

static json_t *targets_json(const char *targets)
{
    json_t *list = json_array();
    for (const char *at = targets; list && *at;) {
        size_t n = strcspn(at, ",");
        json_array_append_new(list, json_stringn(at, n));
        at += n + (at[n] == ',');
    }
    return list;
}

static json_t *number_json(double x)
{
    return x == floor(x) && fabs(x) < 1e15 ? json_integer((json_int_t)x) : json_real(x);
}

json_t *adapter_config_json(const adapter_config *config, const char *task, const char *base)
{
    const fsdp_lora_config *c = &config->lora;
    return json_pack("{s:s, s:s?, s:s?, s:b, s:I, s:o, s:f, s:b, s:o, s:b, s:s, s:b, s:n, s:b, s:{}, s:{}}",
                     "peft_type", "LORA", "task_type", task, "base_model_name_or_path", base, "inference_mode", 1, "r",
                     (json_int_t)c->rank, "lora_alpha", number_json(c->alpha), "lora_dropout", c->dropout, "use_rslora",
                     (int)c->rslora, "target_modules", targets_json(c->targets), "fan_in_fan_out",
                     (int)config->input_major, "bias", "none", "init_lora_weights", 1, "modules_to_save", "use_dora", 0,
                     "rank_pattern", "alpha_pattern");
}
