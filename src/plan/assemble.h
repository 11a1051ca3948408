/* From settings to the configurations of the parts: model, world, sharding, optimizer, schedule, data. Opens no part.
 * Makes the choices that the settings leave open (strategy by model size) and gives the reason. */
#ifndef PLAN_ASSEMBLE_H
#define PLAN_ASSEMBLE_H

#include <fsdp/settings.h>

#include <fsdp/data.h>
#include "models/config.h"
#include "plan/search.h"

/* The configuration file that --model_config or --init_from brings. */
typedef struct model_source {
    model_config config; /* as the file has it, the head untied where the weights of --init_from are */
    json_t *json;        /* its content; NULL: there is no such file, the flags have the shape */
    char *path;
} model_source;

fsdp_status assemble_source(const fsdp_settings *s, model_source *out);
void model_source_free(model_source *source); /* legal on zeros */

/* The model of the source if there is one, otherwise that of the shape flags. `vocabulary` is what the data needs (0:
 * not known), and so are images. */
fsdp_status assemble_model_from(const fsdp_settings *s, const model_source *source, int64_t vocabulary,
                                const fsdp_dataset_info *images, model_config *out);
/* The same in one, for who needs the source no further. */
fsdp_status assemble_model(const fsdp_settings *s, int64_t vocabulary, const fsdp_dataset_info *images,
                           model_config *out);

void assemble_world(const fsdp_settings *s, fsdp_world_config *out);

/* Everything is in host memory already where a device has none of its own. True: --cpu_offload was asked for and is off
 * now, which is for the caller to say. */
#define ASSEMBLE_IDLE_OFFLOAD "--cpu_offload has no effect on the CPU: everything is in host memory already"
bool assemble_drops_offload(fsdp_config *config, const device *dev);

/* `weights` receives the values of shard_weights and has room for one per rank. Texts are borrowed from s. */
typedef struct assembled_sharding {
    fsdp_config config;
    int weights[4096];
    char wrap_types[512];
    char reason[512]; /* why this strategy: a sentence for the log, "" when the user chose it */
} assembled_sharding;

fsdp_status assemble_sharding(const fsdp_settings *s, const model_config *model, int64_t n_parameters, int world_size,
                              assembled_sharding *out);

/* The shapes of the job's steps, for plans. `validation` is NULL where nothing is validated. */
workload assemble_workload(const fsdp_settings *s, const model_config *model, const fsdp_dataset_info *data,
                           const fsdp_dataset_info *validation, int n_ranks);

/* Whether units may lie in host memory: the device has its own, and the optimizer updates them there. */
bool assemble_may_offload(const fsdp_settings *s, const device *dev);

/* What a search for a setting that fits may choose: what the settings leave open, on that device. */
plan_freedom assemble_freedom(const fsdp_settings *s, const device *dev);

fsdp_optimizer_config assemble_optimizer(const fsdp_settings *s); /* without groups */
/* Adds what --lr_groups and --weight_decay_groups say. *memory, which the configuration points into, is the caller's to
 * free(), once the optimizer is made. */
fsdp_status assemble_groups(const fsdp_settings *s, fsdp_optimizer_config *c, void **memory);
fsdp_lr_config assemble_lr(const fsdp_settings *s, int64_t n_steps, int64_t steps_per_epoch);

/* Parameters of a model, counted without building it on a device. */
fsdp_status assemble_count(const model_config *model, int64_t *n_parameters);

#endif
