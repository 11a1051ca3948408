/* Optimizer and scheduler of ds_config.json. What the file leaves out is DeepSpeed's default there, not ours: an
 * optimizer that is only named must train as it did. */
#include "settings/foreign/deepspeed.h"

#include <string.h>

#include "base/error.h"
#include "settings/foreign/rows.h"

const foreign_row deepspeed_optimizer_params[] = {
    READ("lr"),
    READ("betas"),
    READ("eps"),
    READ("weight_decay"),
    READ("momentum"),
    READ("adam_w_mode"),
    READ("torch_adam"),
    MUST("bias_correction", "true 1", "moments are corrected; remove it"),
    MUST("amsgrad", "false 0", "remove it"),
    MUST("nesterov", "false 0", "remove it"),
    MUST("dampening", "0 0.0", "remove it"),
    MUST("maximize", "false 0", "remove it"),
    MUST("fp32_optimizer_states", "true 1", "remove it; --optimizer_state bf16 keeps moments in bf16"),
    MUST("max_grad_norm", "0", "DeepSpeed refuses it too; use gradient_clipping"),
    NOTE("fused", "the optimizer is one pass per unit"),
    NOTE("foreach", "the optimizer is one pass per unit"),
    NOTE("set_grad_none", "gradients are written first, then added to"),
    END,
};

const foreign_row deepspeed_scheduler_params[] = {
    READ("warmup_max_lr"),
    READ("warmup_num_steps"),
    READ("warmup_type"),
    READ("total_num_steps"),
    READ("cos_min_ratio"),
    MUST("warmup_min_lr", "0 0.0", "the warmup begins at 0"),
    MUST("warmup_min_ratio", "0 0.0", "the warmup begins at 0"),
    MUST("last_batch_iteration", "-1", "a resumed run knows its step; remove it"),
    END,
};

/* A number of the section, or DeepSpeed's default where it is not there; "auto" is left to flags. */
static fsdp_status take_or_default(foreign_file *f, const json_t *params, const char *key, const char *flag,
                                   double otherwise)
{
    double value = otherwise;
    bool given;
    FSDP_TRY(foreign_number(f, params, key, &value, &given));
    return given || !json_object_get(params, key) ? foreign_set_number(f, flag, value) : FSDP_OK;
}

static fsdp_status take_betas(foreign_file *f, const json_t *params)
{
    const json_t *betas = json_object_get(params, "betas");
    double values[2] = {0.9, 0.999};
    if (betas && foreign_open(betas))
        return FSDP_OK;
    if (betas && (json_array_size(betas) != 2 || !json_is_number(json_array_get(betas, 0)) ||
                  !json_is_number(json_array_get(betas, 1))))
        return foreign_refuse(f, "optimizer.params.betas: expected two numbers");
    for (size_t i = 0; betas && i < 2; i++)
        values[i] = json_number_value(json_array_get(betas, i));
    FSDP_TRY(foreign_set_number(f, "beta1", values[0]));
    return foreign_set_number(f, "beta2", values[1]);
}

/* DeepSpeed's Adam decays weights as AdamW does unless adam_w_mode is false. Decay is 0 unless set, but with torch's.
 */
static fsdp_status take_adam(foreign_file *f, const json_t *params, bool named_adamw)
{
    bool adam_w = true, torch = false, given;
    FSDP_TRY(foreign_switch(f, params, "adam_w_mode", &adam_w, &given));
    FSDP_TRY(foreign_switch(f, params, "torch_adam", &torch, &given));
    adam_w = adam_w || named_adamw;
    FSDP_TRY(foreign_set(f, "optimizer", adam_w ? "adamw" : "adam"));
    FSDP_TRY(take_betas(f, params));
    FSDP_TRY(take_or_default(f, params, "eps", "eps", 1e-8));
    return take_or_default(f, params, "weight_decay", "weight_decay", torch && adam_w ? 0.01 : 0);
}

static fsdp_status take_sgd(foreign_file *f, const json_t *params)
{
    FSDP_TRY(foreign_set(f, "optimizer", "sgd"));
    FSDP_TRY(take_or_default(f, params, "momentum", "momentum", 0));
    return take_or_default(f, params, "weight_decay", "weight_decay", 0);
}

fsdp_status deepspeed_take_optimizer(foreign_file *f, const json_t *optimizer)
{
    const json_t *params = json_object_get(optimizer, "params");
    char type[FOREIGN_TEXT];
    if (!optimizer || json_is_null(optimizer))
        return FSDP_OK;
    FSDP_TRY(foreign_text(f, optimizer, "type", type));
    bool adam = strcmp(type, "Adam") == 0 || strcmp(type, "adam") == 0;
    bool adamw = strcmp(type, "AdamW") == 0 || strcmp(type, "adamw") == 0;
    bool sgd = strcmp(type, "SGD") == 0 || strcmp(type, "sgd") == 0;
    if (!adam && !adamw && !sgd)
        return foreign_refuse(f, "optimizer.type: '%.60s' is not supported; Adam, AdamW and SGD are", type);
    FSDP_TRY(take_or_default(f, params, "lr", "lr", 1e-3));
    FSDP_TRY(sgd ? take_sgd(f, params) : take_adam(f, params, adamw));
    if (json_is_number(json_object_get(params, "weight_decay")) && f->settings->weight_decay > 0)
        return foreign_note(f,
                            "optimizer.params.weight_decay leaves out norms and biases, as transformers does; "
                            "--weight_decay_groups '*=%.9g' decays everything",
                            f->settings->weight_decay);
    return FSDP_OK;
}

/* ---- Scheduler ---- */

/* DeepSpeed's warmup is logarithmic unless the file says linear: that is another curve. A file that names its steps is
 * refused; where steps are left to --warmup, which is linear by its own definition, a line says so. */
static fsdp_status take_warmup(foreign_file *f, const json_t *params)
{
    int64_t steps = 1000;
    bool given;
    char shape[FOREIGN_TEXT];
    const json_t *value = json_object_get(params, "warmup_num_steps");
    FSDP_TRY(foreign_count(f, params, "warmup_num_steps", &steps, &given));
    FSDP_TRY(foreign_text(f, params, "warmup_type", shape));
    bool linear = strcmp(shape, "linear") == 0;
    if ((value && !given) || foreign_taken(f, "warmup"))
        return linear ? FSDP_OK
                      : foreign_note(f, "scheduler: the warmup (--warmup) is linear here, and logarithmic in DeepSpeed "
                                        "unless warmup_type is linear");
    if (steps < 1)
        return foreign_refuse(f, "scheduler.params.warmup_num_steps: %lld; expected 1 or more", (long long)steps);
    if (!linear)
        return foreign_refuse(
            f,
            "scheduler.params.warmup_type: %s is not supported; write \"warmup_type\": \"linear\", or "
            "give --warmup %lld",
            shape[0] ? shape : "log (DeepSpeed's default)", (long long)steps);
    FSDP_TRY(foreign_note(f, "scheduler: the warmup's first step is at lr / %lld here, and at 0 in DeepSpeed",
                          (long long)steps));
    return foreign_set_number(f, "warmup", (double)steps);
}

static fsdp_status take_total(foreign_file *f, const json_t *params)
{
    int64_t steps = 0;
    bool given;
    FSDP_TRY(foreign_count(f, params, "total_num_steps", &steps, &given));
    if (given && steps < 1)
        return foreign_refuse(f, "scheduler.params.total_num_steps: %lld; expected 1 or more", (long long)steps);
    return given ? foreign_set_number(f, "lr_decay_iters", (double)steps) : FSDP_OK;
}

/* The rate after the warmup is the scheduler's own if it names one; WarmupDecayLR has a default, WarmupLR has not. */
static fsdp_status take_peak(foreign_file *f, const json_t *params, bool has_default)
{
    double peak = 0.001;
    bool given;
    FSDP_TRY(foreign_number(f, params, "warmup_max_lr", &peak, &given));
    has_default = has_default && !json_object_get(params, "warmup_max_lr");
    return given || has_default ? foreign_set_number(f, "lr", peak) : FSDP_OK;
}

static fsdp_status take_cosine(foreign_file *f, const json_t *params)
{
    double ratio = 0.0001;
    bool given;
    FSDP_TRY(foreign_number(f, params, "cos_min_ratio", &ratio, &given));
    if (ratio < 0 || ratio > 1)
        return foreign_refuse(f, "scheduler.params.cos_min_ratio: %.9g; expected 0 to 1", ratio);
    FSDP_TRY(foreign_set(f, "lr_decay_style", "cosine"));
    return foreign_set_number(f, "min_lr", ratio * f->settings->lr);
}

fsdp_status deepspeed_take_scheduler(foreign_file *f, const json_t *scheduler)
{
    const json_t *params = json_object_get(scheduler, "params");
    char type[FOREIGN_TEXT];
    if (!scheduler || json_is_null(scheduler))
        return foreign_taken(f, "lr_decay_style")
                   ? FSDP_OK
                   : foreign_note(f, "no scheduler: --lr_decay_style applies (constant keeps the rate)");
    FSDP_TRY(foreign_text(f, scheduler, "type", type));
    bool constant = strcmp(type, "WarmupLR") == 0, linear = strcmp(type, "WarmupDecayLR") == 0;
    if (!constant && !linear && strcmp(type, "WarmupCosineLR") != 0)
        return foreign_refuse(
            f, "scheduler.type: '%.60s' is not supported; WarmupLR, WarmupDecayLR and WarmupCosineLR are", type);
    FSDP_TRY(take_warmup(f, params));
    if (!constant && !linear) {
        FSDP_TRY(take_total(f, params));
        return take_cosine(f, params);
    }
    FSDP_TRY(take_peak(f, params, linear));
    FSDP_TRY(foreign_set(f, "min_lr", "0"));
    if (linear)
        FSDP_TRY(take_total(f, params));
    return foreign_set(f, "lr_decay_style", constant ? "constant" : "linear");
}
