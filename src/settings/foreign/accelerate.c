/* accelerate's YAML as settings: its FSDP section (keys of FSDP1 and of FSDP2) or its DeepSpeed section, by
 * distributed_type. What the launcher reads there is `fsdp run`'s here, and is said. */
#include <string.h>

#include "base/error.h"
#include "settings/foreign/foreign.h"
#include "settings/foreign/rows.h"
#include "settings/foreign/yaml.h"

#define STRATEGIES                                                                                                     \
    "FULL_SHARD=full 1=full SHARD_GRAD_OP=shard_grad_op 2=shard_grad_op NO_SHARD=no_shard 3=no_shard "                 \
    "HYBRID_SHARD=hybrid 4=hybrid HYBRID_SHARD_ZERO2=hybrid_zero2 5=hybrid_zero2"
#define STRATEGY_NAMES "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2"
#define LOADING "every rank reads only its own shard"

static const foreign_row fsdp_rows[] = {
    NOTE_UNLESS("fsdp_version", "1 2", "FSDP1 and FSDP2 are the same here"),
    WORD("fsdp_sharding_strategy", "sharding_strategy", STRATEGIES, STRATEGY_NAMES),
    WORD("fsdp_reshard_after_forward", "sharding_strategy", STRATEGIES " true=full false=shard_grad_op",
         "true, false, " STRATEGY_NAMES),
    FLAG("fsdp_offload_params", "cpu_offload"),
    WORD("fsdp_auto_wrap_policy", "wrap_policy", "TRANSFORMER_BASED_WRAP=transformer SIZE_BASED_WRAP=size NO_WRAP=none",
         "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP"),
    NOTE("fsdp_transformer_layer_cls_to_wrap", "the model's blocks are known; see --wrap_types"),
    READ("fsdp_min_num_params"),
    WORD("fsdp_backward_prefetch", "backward_prefetch",
         "BACKWARD_PRE=pre 1=pre BACKWARD_POST=post 2=post NO_PREFETCH=none 3=none",
         "BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH"),
    WORD("fsdp_backward_prefetch_policy", "backward_prefetch", "BACKWARD_PRE=pre BACKWARD_POST=post NO_PREFETCH=none",
         "BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH"),
    FLAG("fsdp_forward_prefetch", "forward_prefetch"),
    FLAG("fsdp_limit_all_gathers", "limit_all_gathers"),
    WORD("fsdp_state_dict_type", "checkpoint_kind",
         "SHARDED_STATE_DICT=sharded FULL_STATE_DICT=full LOCAL_STATE_DICT=local",
         "SHARDED_STATE_DICT, FULL_STATE_DICT, LOCAL_STATE_DICT"),
    FLAG("fsdp_activation_checkpointing", "activation_checkpointing"),
    NOTE("fsdp_use_orig_params", "parameters keep their names and groups"),
    NOTE("fsdp_sync_module_states", LOADING),
    NOTE("fsdp_cpu_ram_efficient_loading", LOADING),
    OFF("fsdp_ignored_modules", "remove it; --freeze keeps parameters as they are"),
    END,
};

static const foreign_row deepspeed_rows[] = {
    READ("deepspeed_config_file"),
    WORD("zero_stage", "sharding_strategy", "0=zero0 1=zero1 2=zero2 3=zero3", "0, 1, 2, 3"),
    FLAG("gradient_accumulation_steps", "gradient_accumulation_steps"),
    READ("offload_optimizer_device"),
    READ("offload_param_device"),
    FLAG("gradient_clipping", "grad_clip"),
    NOTE("offload_optimizer_nvme_path", "state lies in host memory"),
    NOTE("offload_param_nvme_path", "state lies in host memory"),
    NOTE("zero3_init_flag", "models are built sharded"),
    NOTE("zero3_save_16bit_model", "checkpoints can be exported whole: fsdp ckpt export --dtype bf16"),
    NOTE("deepspeed_hostfile", "start fsdp run on each host"),
    NOTE("deepspeed_multinode_launcher", "see fsdp run"),
    NOTE("deepspeed_inclusion_filter", "start fsdp run on each host"),
    NOTE("deepspeed_exclusion_filter", "start fsdp run on each host"),
    OFF("deepspeed_moe_layer_cls_names", "there are no experts; remove it"),
    END,
};

#define RANKS "only data parallelism is there; set it to 1"

static const foreign_row parallelism_rows[] = {
    READ("parallelism_config_dp_replicate_size"),
    READ("parallelism_config_dp_shard_size"),
    MUST("parallelism_config_tp_size", "1", RANKS),
    MUST("parallelism_config_cp_size", "1", RANKS),
    MUST("parallelism_config_sp_size", "1", RANKS),
    READ("parallelism_config_cp_comm_strategy"),
    END,
};

#define TPU "there are no TPUs"

static const foreign_row file_rows[] = {
    MUST("compute_environment", "LOCAL_MACHINE", "jobs run where they are started; set LOCAL_MACHINE"),
    READ("distributed_type"),
    READ("mixed_precision"),
    READ("fsdp_config"),
    READ("deepspeed_config"),
    READ("megatron_lm_config"),
    READ("parallelism_config"),
    READ("num_processes"),
    READ("fp8_config"),
    NOTE_UNLESS("num_machines", "1", "give it to fsdp run --nnodes"),
    NOTE_UNLESS("machine_rank", "0", "give it to fsdp run --node_rank"),
    NOTE("main_process_ip", "give it to fsdp run --master_addr"),
    NOTE("main_process_port", "give it to fsdp run --master_port"),
    NOTE_UNLESS("rdzv_backend", "static c10d", "fsdp run has a rendezvous of its own"),
    READ("same_network"),
    NOTE_UNLESS("main_training_function", "main", "fsdp train is what runs"),
    NOTE_UNLESS("gpu_ids", "all", "set CUDA_VISIBLE_DEVICES"),
    WORD("use_cpu", "device", "true=cpu false=auto", "true, false"),
    FLAG("num_cpu_threads_per_process", "threads"),
    NOTE("enable_cpu_affinity", "threads stay on their rank's share of the cores"),
    NOTE("debug", "ranks are always compared"),
    NOTE("downcast_bf16", TPU),
    NOTE("dynamo_backend", "steps are always compiled"),
    NOTE("dynamo_config", "steps are always compiled"),
    NOTE("ipex_config", "products are oneDNN's; see --products"),
    NOTE("mpirun_config", "mpirun can start fsdp train itself"),
    NOTE("tpu_name", TPU),
    NOTE("tpu_zone", TPU),
    NOTE("tpu_vm", TPU),
    NOTE("tpu_env", TPU),
    NOTE("tpu_use_cluster", TPU),
    NOTE("tpu_use_sudo", TPU),
    NOTE("command_file", TPU),
    NOTE("commands", TPU),
    END,
};

/* ---- Precision ---- */

/* An unquoted no is false in YAML. */
static fsdp_status take_precision(foreign_file *f, const json_t *file)
{
    char name[FOREIGN_TEXT];
    FSDP_TRY(foreign_text(f, file, "mixed_precision", name));
    if (!name[0] || foreign_taken(f, "bf16") || foreign_taken(f, "fp16") || foreign_taken(f, "param_dtype"))
        return FSDP_OK;
    if (strcmp(name, "no") == 0 || strcmp(name, "false") == 0)
        return foreign_set(f, "param_dtype", "fp32");
    if (strcmp(name, "bf16") != 0 && strcmp(name, "fp16") != 0)
        return foreign_refuse(
            f,
            "mixed_precision: '%.60s' is not supported; no, bf16 and fp16 are, and --bf16 --fp8 is 8-bit "
            "here",
            name);
    FSDP_TRY(foreign_set(f, name, "true"));
    return foreign_taken(f, "reduce_dtype")
               ? FSDP_OK
               : foreign_note(
                     f, "mixed_precision %s: gradients are reduced in fp32; --reduce_dtype %s is what accelerate does",
                     name, name);
}

/* ---- Sections ---- */

static const json_t *section_of(const json_t *file, const char *key)
{
    const json_t *section = json_object_get(file, key);
    return json_object_size(section) ? section : NULL;
}

/* FSDP shards fully unless told otherwise; only the size policy counts parameters. */
static fsdp_status take_fsdp(foreign_file *f, const json_t *file)
{
    const json_t *fsdp = section_of(file, "fsdp_config");
    char policy[FOREIGN_TEXT];
    int64_t count = 0;
    bool given;
    FSDP_TRY(foreign_set(f, "sharding_strategy", "full"));
    FSDP_TRY(foreign_walk(f, "fsdp_config.", fsdp, fsdp_rows));
    FSDP_TRY(foreign_text(f, fsdp, "fsdp_auto_wrap_policy", policy));
    FSDP_TRY(foreign_count(f, fsdp, "fsdp_min_num_params", &count, &given));
    if (!given || strcmp(policy, "SIZE_BASED_WRAP") != 0 || foreign_taken(f, "wrap_policy"))
        return FSDP_OK;
    return foreign_set_number(f, "min_num_params", (double)count);
}

/* A configuration file of DeepSpeed says everything; accelerate refuses other keys beside it. */
static fsdp_status take_deepspeed(foreign_file *f, const json_t *file)
{
    const json_t *deepspeed = section_of(file, "deepspeed_config");
    char path[FOREIGN_TEXT];
    FSDP_TRY(foreign_walk(f, "deepspeed_config.", deepspeed, deepspeed_rows));
    FSDP_TRY(foreign_take_offload(f, "deepspeed_config.", deepspeed, "offload_optimizer_device"));
    FSDP_TRY(foreign_take_offload(f, "deepspeed_config.", deepspeed, "offload_param_device"));
    FSDP_TRY(foreign_text(f, deepspeed, "deepspeed_config_file", path));
    if (!path[0])
        return FSDP_OK;
    fsdp_status status = foreign_read_file(f->settings, f->command, path, deepspeed_read);
    return status == FSDP_OK ? status : error_prefix(status, "%s: deepspeed_config_file: ", f->path);
}

/* Replicas of shards are the hybrid strategy, one group per replica. */
static fsdp_status take_parallelism(foreign_file *f, const json_t *file)
{
    const json_t *sizes = section_of(file, "parallelism_config");
    int64_t replicas = 1, shards = 1;
    bool given;
    FSDP_TRY(foreign_walk(f, "parallelism_config.", sizes, parallelism_rows));
    FSDP_TRY(foreign_count(f, sizes, "parallelism_config_dp_replicate_size", &replicas, &given));
    FSDP_TRY(foreign_count(f, sizes, "parallelism_config_dp_shard_size", &shards, &given));
    if (replicas <= 1 || foreign_taken(f, "sharding_strategy"))
        return FSDP_OK;
    if (shards <= 1)
        return foreign_set(f, "sharding_strategy", "no_shard");
    FSDP_TRY(foreign_set_number(f, "shard_group_size", (double)shards));
    return foreign_set(f, "sharding_strategy",
                       f->settings->sharding_strategy == FSDP_SHARD_GRAD_OP ? "hybrid_zero2" : "hybrid");
}

static fsdp_status note_unread(foreign_file *f, const json_t *file, const char *key, const char *type)
{
    return section_of(file, key) ? foreign_note(f, "%s is not read: distributed_type is %s", key, type) : FSDP_OK;
}

/* Several processes without a section replicate the model. */
static fsdp_status take_type(foreign_file *f, const json_t *file)
{
    char type[FOREIGN_TEXT];
    FSDP_TRY(foreign_text(f, file, "distributed_type", type));
    bool none = !type[0] || strcmp(type, "NO") == 0 || strcmp(type, "false") == 0;
    bool fsdp = strcmp(type, "FSDP") == 0, deepspeed = strcmp(type, "DEEPSPEED") == 0;
    if (!none && !fsdp && !deepspeed && strncmp(type, "MULTI_", 6) != 0)
        return foreign_refuse(
            f, "distributed_type: '%.60s' is not supported; FSDP, DEEPSPEED, MULTI_GPU, MULTI_CPU and NO are", type);
    if (!fsdp)
        FSDP_TRY(note_unread(f, file, "fsdp_config", none ? "NO" : type));
    if (!deepspeed)
        FSDP_TRY(note_unread(f, file, "deepspeed_config", none ? "NO" : type));
    FSDP_TRY(note_unread(f, file, "megatron_lm_config", none ? "NO" : type));
    if (none)
        return FSDP_OK;
    return fsdp        ? take_fsdp(f, file)
           : deepspeed ? take_deepspeed(f, file)
                       : foreign_set(f, "sharding_strategy", "no_shard");
}

/* The launcher's number of ranks; a plan has no launcher. */
static fsdp_status take_processes(foreign_file *f, const json_t *file)
{
    int64_t wanted = 0, ranks = 0;
    bool given;
    FSDP_TRY(foreign_count(f, file, "num_processes", &wanted, &given));
    if (!given || wanted < 1)
        return FSDP_OK;
    if (strcmp(f->command, "plan") == 0)
        return foreign_set_number(f, "world_size", (double)wanted);
    FSDP_TRY(foreign_world_size(f, &ranks));
    return ranks == wanted
               ? FSDP_OK
               : foreign_note(
                     f, "num_processes %lld, but this job has %lld rank%s: start them with fsdp run --nproc_per_node",
                     (long long)wanted, (long long)ranks, ranks == 1 ? "" : "s");
}

static fsdp_status take_all(foreign_file *f, const json_t *file)
{
    FSDP_TRY(foreign_walk(f, "", file, file_rows));
    FSDP_TRY(take_processes(f, file));
    FSDP_TRY(take_precision(f, file));
    FSDP_TRY(take_type(f, file));
    return take_parallelism(f, file);
}

fsdp_status accelerate_read(fsdp_settings *settings, const char *command, const char *path, char *text, size_t bytes)
{
    foreign_file f = {.settings = settings, .command = command, .path = path, .origin = FSDP_FROM_ACCELERATE};
    json_t *file;
    FSDP_TRY(yaml_parse(path, text, bytes, &file));
    fsdp_status status = take_all(&f, file);
    json_decref(file);
    return status;
}
