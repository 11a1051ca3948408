/* DeepSpeed's ds_config.json as settings. The tables have its keys (DeepSpeed's runtime/constants.py and
 * zero/config.py); the functions below them have what several keys decide together. deepspeed_recipe.c reads optimizer
 * and scheduler. */
#include "settings/foreign/foreign.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "settings/foreign/deepspeed.h"
#include "settings/foreign/rows.h"

#define BUCKETS "units are gathered and reduced whole; see --bucket_mb and --gather_buffers"
#define BUFFERS "buffers are planned exactly"
#define HOST "host memory is pinned, and copies overlap with computing"
#define SAVED "checkpoints are sharded and can be exported whole: fsdp ckpt export"
#define QUANTIZED "set it to false"

static const foreign_row offload_rows[] = {
    READ("device"),
    NOTE("pin_memory", HOST),
    NOTE("nvme_path", "state lies in host memory"),
    NOTE("buffer_count", BUFFERS),
    NOTE("buffer_size", BUFFERS),
    NOTE("max_in_cpu", BUFFERS),
    NOTE("pipeline", HOST),
    NOTE("pipeline_read", HOST),
    NOTE("pipeline_write", HOST),
    NOTE("fast_init", HOST),
    READ("ratio"),
    NOTE("super_offload", HOST),
    NOTE("cpuadam_cores_perc", "see --threads"),
    END,
};

static const foreign_row zero_rows[] = {
    READ("stage"),
    SECTION("offload_param", offload_rows),
    SECTION("offload_optimizer", offload_rows),
    FLAG("cpu_offload", "cpu_offload"),
    FLAG("cpu_offload_param", "cpu_offload"),
    FLAG("cpu_offload_params", "cpu_offload"),
    NOTE("cpu_offload_use_pin_memory", HOST),
    NOTE("contiguous_gradients", "gradients of a unit are one buffer"),
    NOTE("overlap_comm", "collectives overlap with computing"),
    NOTE("reduce_scatter", "gradients are reduced to shards wherever they are sharded"),
    NOTE("allgather_partitions", BUCKETS),
    NOTE("reduce_bucket_size", BUCKETS),
    NOTE("allgather_bucket_size", BUCKETS),
    NOTE("use_multi_rank_bucket_allreduce", BUCKETS),
    NOTE("round_robin_gradients", "every rank reduces its own shard"),
    NOTE("sub_group_size", "the optimizer works through each unit's shard"),
    NOTE("prefetch_bucket_size", BUCKETS),
    NOTE("stage3_prefetch_bucket_size", BUCKETS),
    NOTE("param_persistence_threshold", BUCKETS),
    NOTE("stage3_param_persistence_threshold", BUCKETS),
    NOTE("model_persistence_threshold", BUCKETS),
    NOTE("stage3_model_persistence_threshold", BUCKETS),
    NOTE("max_live_parameters", BUCKETS),
    NOTE("stage3_max_live_parameters", BUCKETS),
    NOTE("max_reuse_distance", BUCKETS),
    NOTE("stage3_max_reuse_distance", BUCKETS),
    NOTE("module_granularity_threshold", "see --wrap_policy"),
    NOTE("stage3_module_granularity_threshold", "see --wrap_policy"),
    NOTE("use_all_reduce_for_fetch_params", BUCKETS),
    NOTE("stage3_use_all_reduce_for_fetch_params", BUCKETS),
    NOTE("allgather_sequential", BUCKETS),
    NOTE("stage3_allgather_sequential", BUCKETS),
    NOTE("gather_16bit_weights_on_model_save", SAVED),
    NOTE("stage3_gather_16bit_weights_on_model_save", SAVED),
    NOTE("stage3_gather_fp16_weights_on_model_save", SAVED),
    NOTE("ignore_unused_parameters", "parameters without a gradient stay as they are"),
    NOTE("legacy_stage1", "stage 1 is --sharding_strategy shard_op"),
    NOTE("elastic_checkpoint", "checkpoints load at any world size"),
    NOTE("load_from_fp32_weights", "checkpoints hold the fp32 master weights"),
    NOTE_UNLESS("zero_hpz_partition_size", "0 1",
                "shards have no second copy; --sharding_strategy hybrid is the nearest"),
    MUST("zero_quantized_weights", "false 0", QUANTIZED),
    MUST("zero_quantized_nontrainable_weights", "false 0", QUANTIZED),
    MUST("zero_quantized_gradients", "false 0", QUANTIZED),
    OFF("zeropp_loco_param", "remove it"),
    OFF("zenflow", "remove it"),
    READ("mics_shard_size"),
    NOTE("mics_hierarchical_params_gather", "groups gather within their node"),
    NOTE("memory_efficient_linear", "backward keeps only what it reads"),
    NOTE("pipeline_loading_checkpoint", "checkpoints are read in parallel"),
    NOTE("override_module_apply", "models are built sharded"),
    NOTE("log_trace_cache_warnings", "the order of units is planned"),
    NOTE("enable_sanity_checks", "ranks are always compared"),
    NOTE("save_muon_momentum_buffer_in_memory", BUFFERS),
    NOTE("leaf_module", "see --wrap_types"),
    END,
};

static const foreign_row fp16_rows[] = {
    READ("enabled"),
    READ("loss_scale"),
    READ("initial_scale_power"),
    NOTE("auto_cast", "inputs are cast where they are used"),
    NOTE_UNLESS("loss_scale_window", "1000", "the loss scale has its own rhythm"),
    NOTE_UNLESS("hysteresis", "2", "the loss scale falls at every overflow"),
    NOTE("consecutive_hysteresis", "the loss scale falls at every overflow"),
    NOTE_UNLESS("min_loss_scale", "1", "the loss scale has its own limits"),
    MUST("fp16_master_weights_and_grads", "false 0", "master weights are fp32; set it to false"),
    END,
};

static const foreign_row bf16_rows[] = {
    READ("enabled"),
    NOTE("immediate_grad_update", "gradients are reduced as soon as they are whole"),
    NOTE("check_grad_overflow", "see --nan_policy"),
    NOTE("check_overflow", "see --nan_policy"),
    MUST("bf16_master_weights_and_grads", "false 0", "master weights are fp32; set it to false"),
    MUST("bf16_optimizer_states", "false 0", "set it to false; --optimizer_state bf16 keeps moments in bf16"),
    END,
};

static const foreign_row data_type_rows[] = {
    READ("grad_accum_dtype"),
    FLAG("param_dtype", "param_dtype"),
    FLAG("buffer_dtype", "buffer_dtype"),
    END,
};

static const foreign_row activation_rows[] = {
    READ("cpu_checkpointing"),
    NOTE("partition_activations", "there is no model parallelism; activations are checkpointed"),
    NOTE("contiguous_memory_optimization", BUFFERS),
    NOTE("number_checkpoints", "every unit is checkpointed"),
    NOTE("synchronize_checkpoint_boundary", "see --trace"),
    NOTE("profile", "see --trace"),
    END,
};

static const foreign_row optimizer_rows[] = {
    READ("type"),
    SECTION("params", deepspeed_optimizer_params),
    NOTE("legacy_fusion", "the optimizer is one pass per unit"),
    END,
};

static const foreign_row scheduler_rows[] = {READ("type"), SECTION("params", deepspeed_scheduler_params), END};

#define RANKS "only data parallelism is there; remove it"
#define LOGS "see metrics.jsonl, --tensorboard_dir and fsdp report"
#define TIMES "see fsdp trace and fsdp bench step --breakdown"

static const foreign_row file_rows[] = {
    READ("train_batch_size"),
    READ("train_micro_batch_size_per_gpu"),
    READ("gradient_accumulation_steps"),
    NOTE("managed_gradient_accumulation", "accumulation is always managed"),
    READ("gradient_clipping"),
    FLAG("steps_per_print", "logging_freq"),
    SECTION("zero_optimization", zero_rows),
    SECTION("bf16", bf16_rows),
    SECTION("bfloat16", bf16_rows),
    SECTION("fp16", fp16_rows),
    SECTION("data_types", data_type_rows),
    READ("communication_data_type"),
    SECTION("optimizer", optimizer_rows),
    SECTION("scheduler", scheduler_rows),
    SECTION("activation_checkpointing", activation_rows),
    READ("tensorboard"),
    OFF("amp", "use bf16 or fp16"),
    OFF("torch_autocast", "use bf16 or fp16"),
    OFF("ddp_bf16", "use bf16"),
    OFF("elasticity", "remove it; fsdp run --nnodes MIN:MAX is elastic"),
    OFF("curriculum_learning", "remove it"),
    OFF("data_efficiency", "remove it"),
    OFF("progressive_layer_drop", "remove it"),
    OFF("compression_training", "remove it"),
    OFF("quantize_training", "remove it"),
    OFF("weight_quantization", "remove it"),
    OFF("sparse_attention", "remove it; --sliding_window limits attention"),
    OFF("tensor_parallel", RANKS),
    OFF("expert_parallel", RANKS),
    OFF("pipeline", RANKS),
    MUST("sequence_parallel_size", "1", RANKS),
    MUST("gradient_allreduce_op", "mean", "gradients are means; remove it"),
    NOTE("prescale_gradients", "gradients are divided once, at the end"),
    NOTE_UNLESS("gradient_predivide_factor", "1 1.0", "gradients are divided once, at the end"),
    NOTE("sparse_gradients", "gradients of embeddings are reduced whole"),
    NOTE("disable_allgather", BUCKETS),
    NOTE("zero_allow_untested_optimizer", "every optimizer works with every strategy"),
    NOTE("zero_force_ds_cpu_optimizer", "the optimizer runs where its state lies"),
    NOTE("wall_clock_breakdown", TIMES),
    NOTE("memory_breakdown", "see --memory_report"),
    NOTE("dump_state", "see --dry_run"),
    NOTE("flops_profiler", TIMES),
    NOTE("comms_logger", TIMES),
    NOTE("timers", TIMES),
    NOTE("autotuning", "see fsdp plan"),
    NOTE("monitor_config", LOGS),
    NOTE("wandb", LOGS),
    NOTE("comet", LOGS),
    NOTE("csv_monitor", LOGS),
    NOTE("log_level", "see --log_level"),
    NOTE("checkpoint", "see --checkpoint_kind and --checkpoint_freq"),
    NOTE("nebula", "checkpoints are written in the background: --async_checkpoint"),
    NOTE("datastates_ckpt", "checkpoints are written in the background: --async_checkpoint"),
    NOTE("aio", "nothing is offloaded to disk"),
    NOTE("hybrid_engine", "see fsdp generate"),
    NOTE("compile", "steps are always compiled"),
    NOTE("graph_harvesting", "steps are recorded on GPUs"),
    NOTE("eigenvalue", "only compression uses it"),
    NOTE("dataloader_drop_last", "every sample is used"),
    NOTE("use_data_before_expert_parallelism", "there are no experts"),
    NOTE("seq_parallel_communication_data_type", "sequences are not split"),
    END,
};

static const json_t *section(const json_t *object, const char *key)
{
    return json_object_get(object, key);
}

/* ---- Batches ---- */

typedef struct batch_sizes {
    int64_t global, micro, accumulation; /* 0: left open */
    bool theirs;                         /* micro and accumulation are both the file's own */
} batch_sizes;

static fsdp_status read_batches(foreign_file *f, const json_t *file, batch_sizes *b)
{
    const fsdp_settings *s = f->settings;
    const char *keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
    int64_t *fields[] = {&b->global, &b->micro, &b->accumulation};
    for (int i = 0; i < 3; i++) {
        bool given;
        FSDP_TRY(foreign_count(f, file, keys[i], fields[i], &given));
        if (given && *fields[i] < 1)
            return foreign_refuse(f, "%s: %lld; expected 1 or more", keys[i], (long long)*fields[i]);
    }
    bool micro_taken = foreign_taken(f, "train_batch_size");
    bool accumulation_taken = foreign_taken(f, "gradient_accumulation_steps");
    b->theirs = b->micro && b->accumulation && !micro_taken && !accumulation_taken;
    if (micro_taken)
        b->micro = s->train_batch_size;
    if (accumulation_taken)
        b->accumulation = s->gradient_accumulation_steps;
    return FSDP_OK;
}

static fsdp_status no_such_batch(const foreign_file *f, const batch_sizes *b, int64_t world)
{
    return foreign_refuse(f,
                          "train_batch_size %lld (all ranks) is not micro-batch %lld x accumulation %lld x %lld "
                          "rank%s: start as many ranks as the file is meant for, or change one of them",
                          (long long)b->global, (long long)b->micro, (long long)b->accumulation, (long long)world,
                          world == 1 ? "" : "s");
}

/* What the global batch leaves for the two others, as DeepSpeed has it. */
static fsdp_status divide_batch(foreign_file *f, batch_sizes *b)
{
    int64_t world;
    FSDP_TRY(foreign_world_size(f, &world));
    if (world == 0)
        return foreign_refuse(f, "train_batch_size %lld is that of all ranks: give --world_size a number",
                              (long long)b->global);
    bool both = b->micro && b->accumulation;
    if (!b->micro && !b->accumulation)
        b->accumulation = 1;
    if (!b->micro)
        b->micro = b->global / b->accumulation / world;
    else if (!b->accumulation)
        b->accumulation = b->global / b->micro / world;
    bool fits = b->micro > 0 && b->accumulation > 0 && b->global % b->micro == 0 &&
                b->global / b->micro % b->accumulation == 0 && b->global / b->micro / b->accumulation == world;
    if (!fits && both && !b->theirs)
        return foreign_note(f, "train_batch_size %lld is not kept: flags give micro-batches of %lld, %lld a step",
                            (long long)b->global, (long long)b->micro, (long long)b->accumulation);
    return fits ? FSDP_OK : no_such_batch(f, b, world);
}

static fsdp_status take_batches(foreign_file *f, const json_t *file)
{
    batch_sizes b = {0};
    FSDP_TRY(read_batches(f, file, &b));
    if (b.global)
        FSDP_TRY(divide_batch(f, &b));
    if (b.micro)
        FSDP_TRY(foreign_set_number(f, "train_batch_size", (double)b.micro));
    return b.accumulation ? foreign_set_number(f, "gradient_accumulation_steps", (double)b.accumulation) : FSDP_OK;
}

/* ---- Precision ---- */

static fsdp_status take_enabled(foreign_file *f, const json_t *of, const char *flag, bool *on)
{
    bool given;
    *on = false;
    FSDP_TRY(foreign_switch(f, of, "enabled", on, &given));
    return given ? foreign_set(f, flag, *on ? "true" : "false") : FSDP_OK;
}

static fsdp_status take_loss_scale(foreign_file *f, const json_t *fp16)
{
    double fixed = 0, power = 0;
    bool given;
    FSDP_TRY(foreign_number(f, fp16, "loss_scale", &fixed, &given));
    if (fixed > 0) {
        FSDP_TRY(foreign_set_number(f, "loss_scale", fixed));
        return foreign_note(f, "fp16.loss_scale %.9g is where the scale begins: it is adjusted here", fixed);
    }
    FSDP_TRY(foreign_number(f, fp16, "initial_scale_power", &power, &given));
    if (given && (power < 0 || power > 64))
        return foreign_refuse(f, "fp16.initial_scale_power: %.9g; expected 0 to 64", power);
    return given ? foreign_set_number(f, "loss_scale", exp2(power)) : FSDP_OK;
}

/* Who asks for a precision with flags does not want the file's; but fp16 begins with the file's loss scale either way.
 */
static fsdp_status take_precision(foreign_file *f, const json_t *file)
{
    const json_t *bf16 = section(file, "bf16") ? section(file, "bf16") : section(file, "bfloat16");
    bool taken = foreign_taken(f, "bf16") || foreign_taken(f, "fp16") || foreign_taken(f, "param_dtype");
    bool on = false, half = false;
    if (!taken) {
        FSDP_TRY(take_enabled(f, bf16, "bf16", &on));
        FSDP_TRY(take_enabled(f, section(file, "fp16"), "fp16", &half));
    }
    if (on && half)
        return foreign_refuse(f, "bf16 and fp16 are both enabled: choose one");
    half = half || (taken && (f->settings->fp16 || f->settings->param_dtype == FSDP_F16));
    return half ? take_loss_scale(f, section(file, "fp16")) : FSDP_OK;
}

static fsdp_status take_reduction(foreign_file *f, const json_t *file)
{
    char sent[FOREIGN_TEXT], kept[FOREIGN_TEXT];
    FSDP_TRY(foreign_text(f, file, "communication_data_type", sent));
    FSDP_TRY(foreign_text(f, section(file, "data_types"), "grad_accum_dtype", kept));
    if (strcmp(sent, "bfp16") == 0) /* DeepSpeed's own spelling */
        strcpy(sent, "bf16");
    if (sent[0] && kept[0] && strcmp(sent, kept) != 0)
        return foreign_refuse(f,
                              "communication_data_type %s and data_types.grad_accum_dtype %s: gradients are kept and "
                              "reduced in one type (--reduce_dtype); make them equal",
                              sent, kept);
    return sent[0] || kept[0] ? foreign_set(f, "reduce_dtype", sent[0] ? sent : kept) : FSDP_OK;
}

/* ---- Sharding ---- */

/* The part of the parameters whose state is offloaded; ours is the part that stays. */
static fsdp_status take_ratio(foreign_file *f, const json_t *offload)
{
    double ratio = 1;
    bool given;
    FSDP_TRY(foreign_number(f, offload, "ratio", &ratio, &given));
    if (ratio < 0 || ratio > 1)
        return foreign_refuse(f, "offload_optimizer.ratio: %.9g; expected 0 to 1", ratio);
    return given ? foreign_set_number(f, "cpu_offload_resident", round(100 * (1 - ratio))) : FSDP_OK;
}

static fsdp_status take_sharding(foreign_file *f, const json_t *file)
{
    const json_t *zero = section(file, "zero_optimization");
    int64_t stage = 0, group = 0;
    bool given, grouped;
    char name[16];
    FSDP_TRY(foreign_take_offload(f, "offload_param.", section(zero, "offload_param"), "device"));
    FSDP_TRY(foreign_take_offload(f, "offload_optimizer.", section(zero, "offload_optimizer"), "device"));
    FSDP_TRY(take_ratio(f, section(zero, "offload_optimizer")));
    FSDP_TRY(foreign_count(f, zero, "stage", &stage, &given));
    FSDP_TRY(foreign_count(f, zero, "mics_shard_size", &group, &grouped));
    if (given && (stage < 0 || stage > 3))
        return foreign_refuse(f, "zero_optimization.stage: %lld; expected 0, 1, 2 or 3", (long long)stage);
    if (foreign_taken(f, "sharding_strategy"))
        return FSDP_OK;
    if (group > 0) {
        FSDP_TRY(foreign_set_number(f, "shard_group_size", (double)group));
        return foreign_set(f, "sharding_strategy", "hybrid");
    }
    snprintf(name, sizeof name, "zero%d", (int)stage);
    return given ? foreign_set(f, "sharding_strategy", name) : FSDP_OK;
}

/* The section is written out by many tools with everything off. */
static fsdp_status take_checkpointing(foreign_file *f, const json_t *file)
{
    static const char *const keys[] = {"partition_activations", "contiguous_memory_optimization", "cpu_checkpointing"};
    const json_t *from = section(file, "activation_checkpointing");
    bool on = false, to_host = false, given;
    int64_t number = 0;
    for (int i = 0; i < 3; i++) {
        to_host = false;
        FSDP_TRY(foreign_switch(f, from, keys[i], &to_host, &given));
        on = on || to_host;
    }
    FSDP_TRY(foreign_count(f, from, "number_checkpoints", &number, &given));
    if (to_host)
        FSDP_TRY(foreign_set(f, "offload_activations", "true"));
    return on || number > 0 ? foreign_set(f, "activation_checkpointing", "full") : FSDP_OK;
}

/* ---- The rest ---- */

static fsdp_status take_tensorboard(foreign_file *f, const json_t *file)
{
    const json_t *from = section(file, "tensorboard");
    char path[FOREIGN_TEXT], name[FOREIGN_TEXT], folder[2 * FOREIGN_TEXT + 2];
    bool on = false, given;
    FSDP_TRY(foreign_switch(f, from, "enabled", &on, &given));
    FSDP_TRY(foreign_text(f, from, "output_path", path));
    FSDP_TRY(foreign_text(f, from, "job_name", name));
    if (!on)
        return FSDP_OK;
    if (!path[0])
        return foreign_note(f, "tensorboard without output_path: give --tensorboard_dir");
    snprintf(folder, sizeof folder, "%s%s%s", path, name[0] && path[strlen(path) - 1] != '/' ? "/" : "", name);
    return foreign_set(f, "tensorboard_dir", folder);
}

/* Without the key DeepSpeed does not clip. */
static fsdp_status take_clipping(foreign_file *f, const json_t *file)
{
    double norm = 0;
    bool given;
    const json_t *value = json_object_get(file, "gradient_clipping");
    FSDP_TRY(foreign_number(f, file, "gradient_clipping", &norm, &given));
    return given || !value ? foreign_set_number(f, "grad_clip", norm) : FSDP_OK;
}

static fsdp_status take_all(foreign_file *f, const json_t *file)
{
    if (!json_is_object(file))
        return foreign_refuse(f, "expected an object of settings");
    FSDP_TRY(foreign_walk(f, "", file, file_rows));
    FSDP_TRY(take_batches(f, file));
    FSDP_TRY(take_precision(f, file));
    FSDP_TRY(take_reduction(f, file));
    FSDP_TRY(take_sharding(f, file));
    FSDP_TRY(take_checkpointing(f, file));
    FSDP_TRY(take_clipping(f, file));
    FSDP_TRY(take_tensorboard(f, file));
    FSDP_TRY(deepspeed_take_optimizer(f, section(file, "optimizer")));
    return deepspeed_take_scheduler(f, section(file, "scheduler"));
}

fsdp_status deepspeed_read(fsdp_settings *settings, const char *command, const char *path, char *text, size_t bytes)
{
    foreign_file f = {.settings = settings, .command = command, .path = path, .origin = FSDP_FROM_DEEPSPEED};
    json_t *file;
    FSDP_TRY(json_parse(path, text, bytes, &file));
    fsdp_status status = take_all(&f, file);
    json_decref(file);
    return status;
}
