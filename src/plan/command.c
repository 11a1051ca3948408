/* `fsdp plan`: what a job would take, from its settings alone. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/plan.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/host/job.h"
#include "base/log.h"
#include "comm/world.h"
#include "plan/detail_print.h"
#include "plan/predict/predict.h"
#include "plan/table.h"
#include "settings/settings_table.h"
#include "shard/build/strategy.h"

typedef struct planning {
    workload work;
    assembled_sharding sharding;
    plan_found found;
    char misfit[512];
    plan_table table;
    plan_limit limit; /* what a rank may take; zeros: not known */
    plan_detail detail;
} planning;

static int ranks_per_node(const fsdp_settings *s, int n_ranks)
{
    return s->ranks_per_node > 0 ? (int)s->ranks_per_node : (int)min_i64(8, n_ranks);
}

/* The device that the job would run on: the one named, which need not be here when it is a GPU that can be described.
 */
static fsdp_status open_device(const fsdp_settings *s, int n_ranks, device **out)
{
    const char *name = s->device;
    fsdp_world_config world;
    assemble_world(s, &world);
    if (device_is_described(name))
        return device_describe(name, out);
    if (!name || strcmp(name, "cpu") == 0)
        return world_describe_cpu(&world, ranks_per_node(s, n_ranks), out);
    if (device_open_cuda(0, out) == FSDP_OK)
        return FSDP_OK;
    if (strcmp(name, "auto") == 0)
        return world_describe_cpu(&world, ranks_per_node(s, n_ranks), out);
    return error_set(FSDP_ERR_INPUT, "--device cuda: %s; name a GPU to plan for: --device h200, h100 or a100",
                     fsdp_last_error());
}

/* Validation happens where the settings name data for it, or ask for it in between. */
static bool validates(const fsdp_settings *s)
{
    return s->validation_dataset.n > 0 || s->validation_split > 0 || s->validation_freq > 0;
}

static fsdp_status describe_job(const fsdp_settings *s, int n_ranks, planning *p)
{
    plan_table *t = &p->table;
    fsdp_dataset_info data = {.width = s->max_context_width,
                              .target_width = s->max_target_width,
                              .documents = s->packing == FSDP_PACK_BEST_FIT};
    fsdp_world_config world;
    assemble_world(s, &world);
    t->world.n_ranks = n_ranks;
    t->world.ranks_per_node = ranks_per_node(s, n_ranks);
    p->work = assemble_workload(s, &p->work.model, &data, validates(s) ? &data : NULL, n_ranks);
    p->work.backend = world.backend;
    return assemble_sharding(s, &p->work.model, t->n_parameters, n_ranks, &p->sharding);
}

static plan_search search_of(const fsdp_settings *s, const planning *p)
{
    device *dev = p->table.world.dev;
    size_t memory = dev->own_memory && dev->available ? dev->available(dev) : 0;
    return (plan_search){.work = &p->work,
                         .config = &p->sharding.config,
                         .world = p->table.world,
                         .limit = {s->fit > 0 ? (size_t)s->fit : memory, 0},
                         .free = assemble_freedom(s, dev)};
}

/* The fewest ranks that fit, for --world_size auto. */
static fsdp_status find_ranks(const fsdp_settings *s, planning *p, int *n_ranks)
{
    FSDP_TRY(describe_job(s, 1, p));
    plan_search search = search_of(s, p);
    search.world.ranks_per_node = ranks_per_node(s, PLAN_MAX_RANKS);
    search.free.cpu_offload = search.free.cpu_offload_resident =
        false; /* host memory does not replace ranks unless the user asked for it */
    if (search.limit.device == 0)
        return error_set(FSDP_ERR_INPUT,
                         "--world_size auto: how much memory does a rank have? Say --fit 80GB, or name a "
                         "GPU: --device h200, h100 or a100");
    if (s->shard_weights.n > 0)
        return error_set(FSDP_ERR_INPUT,
                         "--world_size auto and --shard_weights contradict each other: there is a weight "
                         "for every rank");
    return plan_fewest_ranks(&search, PLAN_MAX_RANKS, n_ranks);
}

/* A strategy with groups needs groups of one size, or there is nothing to plan. */
static fsdp_status check_groups(const fsdp_settings *s, const planning *p, int n_ranks)
{
    const fsdp_config *c = &p->sharding.config;
    int n_shards;
    if (s->sharding_strategy < 0)
        return FSDP_OK;
    return strategy_count_shards(c->strategy, "", c->shard_group_size, n_ranks, p->table.world.ranks_per_node,
                                 &n_shards);
}

static fsdp_status prepare(const fsdp_settings *s, planning *p)
{
    plan_table *t = &p->table;
    job here = job_single();
    FSDP_TRY(job_from_environment(&here));
    int n_ranks = s->world_size > 0 ? (int)s->world_size : here.world_size;
    FSDP_TRY(assemble_model(s, s->vocab_size, NULL, &p->work.model));
    FSDP_TRY(assemble_count(&p->work.model, &t->n_parameters));
    bool searches = s->world_size == FSDP_WORLD_SIZE_AUTO;
    FSDP_TRY(open_device(s, searches ? PLAN_MAX_RANKS : n_ranks, &t->world.dev));
    if (searches)
        FSDP_TRY(find_ranks(s, p, &n_ranks));
    FSDP_TRY(describe_job(s, n_ranks, p));
    FSDP_TRY(check_groups(s, p, n_ranks));
    if (assemble_drops_offload(&p->sharding.config, t->world.dev))
        log_write(FSDP_LOG_WARNING, "%s", ASSEMBLE_IDLE_OFFLOAD);
    plan_search search = search_of(s, p);
    p->limit = search.limit;
    /* A search tells its choice by what was given, which stays as it is. */
    bool chooses_codes = search.free.fp8_weights && (s->sharding_strategy >= 0 || search.limit.device == 0);
    if (search.limit.device == 0)
        return chooses_codes ? plan_codes(&p->work, &t->world, p->limit, &p->sharding.config) : FSDP_OK;
    fsdp_status status = plan_fit(&search, &p->found);
    if (status == FSDP_OK)
        t->found = &p->found;
    if (s->cpu_offload_resident == FSDP_RESIDENT_AUTO && s->sharding_strategy >= 0)
        FSDP_TRY(plan_residents(&p->work, &t->world, p->limit, &p->sharding.config));
    if (chooses_codes)
        FSDP_TRY(plan_codes(&p->work, &t->world, p->limit, &p->sharding.config));
    if (status != FSDP_ERR_INPUT || s->fit > 0)
        return status;
    snprintf(p->misfit, sizeof p->misfit, "%s",
             fsdp_last_error()); /* the user did not ask for it: a remark, not a failure */
    t->misfit = p->misfit;
    return FSDP_OK;
}

/* In detail: the setting that was asked for or, where that was left open, the one that the search found. */
static fsdp_status make_detail(const fsdp_settings *s, planning *p)
{
    bool chosen = s->sharding_strategy < 0 && p->table.found;
    p->detail = (plan_detail){.work = &p->work,
                              .config = chosen ? &p->found.fit.config : &p->sharding.config,
                              .world = p->table.world,
                              .limit = p->limit};
    return plan_detail_make(&p->detail);
}

/* Nothing fits, or not what the user named. */
static bool falls_short(const fsdp_settings *s, const planning *p)
{
    const plan_table *t = &p->table;
    if (t->misfit)
        return true;
    return s->sharding_strategy >= 0 && t->entries[s->sharding_strategy].planned &&
           !plan_fits(&t->entries[s->sharding_strategy].plan, t->world.dev, p->limit);
}

/* Appends `more`, which it takes, to *text. */
static fsdp_status append(char **text, char *more)
{
    char *joined = NULL;
    int n = asprintf(&joined, "%s%s%s", *text ? *text : "", *text ? "\n\n" : "", more);
    free(more);
    if (n < 0)
        return error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory");
    free(*text);
    *text = joined;
    return FSDP_OK;
}

static fsdp_status print_why(const fsdp_settings *s, planning *p, char **text)
{
    char *why;
    if (!p->detail.series)
        FSDP_TRY(make_detail(s, p));
    FSDP_TRY(plan_why_print(&p->detail, &why));
    return append(text, why);
}

static fsdp_status write_pictures(const fsdp_settings *s, planning *p, const fsdp_settings *against)
{
    planning *other = against ? calloc(1, sizeof *other) : NULL;
    if (against && !other)
        return error_set(FSDP_ERR_MEMORY, "planning: out of host memory");
    fsdp_status status = against ? prepare(against, other) : FSDP_OK;
    if (status == FSDP_OK && against)
        status = make_detail(against, other);
    if (status == FSDP_OK && s->timeline)
        status = plan_timeline_write(&p->detail, other ? &other->detail : NULL, s->timeline);
    if (status == FSDP_OK && s->svg)
        status = plan_svg_write(&p->detail, other ? &other->detail : NULL, s->svg);
    if (other) {
        plan_detail_clear(&other->detail);
        device_close(other->table.world.dev);
    }
    free(other);
    return status;
}

/* A plan that was asked to fit and does not is an error, whose reasons are the text and the page. */
static fsdp_status explain_failure(const fsdp_settings *s, planning *p, const fsdp_settings *against,
                                   fsdp_status status, char **text)
{
    char message[512];
    if (status != FSDP_ERR_INPUT || p->limit.device == 0)
        return status;
    snprintf(message, sizeof message, "%s", fsdp_last_error());
    FSDP_TRY(make_detail(s, p));
    if (s->timeline || s->svg)
        FSDP_TRY(write_pictures(s, p, against));
    if (!s->json)
        FSDP_TRY(print_why(s, p, text));
    return error_set(status, "%s", message);
}

enum { MAX_CURVE = 32, LARGEST_CURVE = 16384 };

static fsdp_status read_whole(const char *flag, const char *text, double least, double most, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (*end || end == text || !(*out >= least && *out <= most))
        return error_set(FSDP_ERR_INPUT, "--%s: %s is no number between %g and %g", flag, text, least, most);
    return FSDP_OK;
}

/* World sizes of the curve: those named, or doublings from the job's own to LARGEST_CURVE. */
static fsdp_status curve_sizes(const fsdp_settings *s, int n_ranks, int *sizes, int *n)
{
    const fsdp_text_list *given = &s->predict_scaling;
    *n = 0;
    if (given->n == 1 && strcmp(given->items[0], "auto") == 0) {
        for (int64_t ranks = n_ranks; ranks <= LARGEST_CURVE && *n < MAX_CURVE; ranks *= 2)
            sizes[(*n)++] = (int)ranks;
        return FSDP_OK;
    }
    if (given->n > MAX_CURVE)
        return error_set(FSDP_ERR_INPUT, "--predict_scaling: at most %d world sizes", MAX_CURVE);
    for (int i = 0; i < given->n; i++) {
        double ranks;
        FSDP_TRY(read_whole("predict_scaling", given->items[i], 1, PLAN_MAX_RANKS, &ranks));
        sizes[(*n)++] = (int)ranks;
    }
    return FSDP_OK;
}

static fsdp_status take_links(const fsdp_settings *s, kernel_profile *profile)
{
    double *const to[] = {&profile->links.inside, &profile->links.outside};
    if (s->predict_links.n > 2)
        return error_set(FSDP_ERR_INPUT, "--predict_links takes two numbers: within a node, and out of it");
    for (int i = 0; i < s->predict_links.n; i++) {
        FSDP_TRY(read_whole("predict_links", s->predict_links.items[i], 1e-3, 1e6, to[i]));
        *to[i] *= 1e9;
        profile->n_collectives = 0; /* of other links */
    }
    return FSDP_OK;
}

/* The same job on another number of ranks: nodes stay as large as they are. */
static fsdp_status predict_curve(const fsdp_settings *s, const planning *p, const prediction_request *r,
                                 prediction *curve, int *n)
{
    int sizes[MAX_CURVE];
    FSDP_TRY(curve_sizes(s, r->world.n_ranks, sizes, n));
    for (int i = 0; i < *n; i++) {
        prediction_request other = *r;
        workload work = *r->work;
        assembled_sharding sharding = p->sharding;
        other.world.n_ranks = sizes[i];
        other.world.ranks_per_node = s->ranks_per_node > 0 ? (int)s->ranks_per_node : (int)min_i64(8, sizes[i]);
        FSDP_TRY(assemble_sharding(s, &work.model, p->table.n_parameters, sizes[i], &sharding));
        sharding.config.strategy = r->config->strategy;
        sharding.config.checkpointing = r->config->checkpointing;
        sharding.config.cpu_offload = r->config->cpu_offload;
        sharding.config.cpu_offload_resident = r->config->cpu_offload_resident;
        sharding.config.fp8_weights = r->config->fp8_weights;
        sharding.config.offload_activations = r->config->offload_activations;
        other.config = &sharding.config;
        other.work = &work;
        FSDP_TRY(prediction_make(&other, &curve[i]));
    }
    return FSDP_OK;
}

static fsdp_status predict_with(const fsdp_settings *s, planning *p, const kernel_profile *profile, char **text)
{
    bool chosen = s->sharding_strategy < 0 && p->table.found;
    prediction_request r = {.work = &p->work,
                            .config = chosen ? &p->found.fit.config : &p->sharding.config,
                            .world = p->table.world,
                            .profile = profile};
    prediction found, curve[MAX_CURVE];
    int n_curve = 0;
    FSDP_TRY(prediction_make(&r, &found));
    FSDP_TRY(predict_curve(s, p, &r, curve, &n_curve));
    return prediction_print(&r, &found, curve, n_curve, s->json, text);
}

static fsdp_status print_prediction(const fsdp_settings *s, planning *p, char **text)
{
    kernel_profile profile;
    bool found;
    FSDP_TRY(profile_find(s->profile, &p->table.world, &profile, &found));
    if (!found)
        return error_set(
            FSDP_ERR_INPUT,
            "--predict needs kernel times: measure them with fsdp bench kernel --profile FILE and name the "
            "file with --profile, or plan for a known GPU: --device h200, h100 or a100");
    fsdp_status status = take_links(s, &profile);
    if (status == FSDP_OK)
        status = predict_with(s, p, &profile, text);
    profile_clear(&profile);
    return status;
}

static fsdp_status print_plan(const fsdp_settings *s, planning *p, const fsdp_settings *against, char **text)
{
    if (s->units || s->timeline || s->svg)
        FSDP_TRY(make_detail(s, p));
    if (s->timeline || s->svg)
        FSDP_TRY(write_pictures(s, p, against));
    if (s->predict)
        return print_prediction(s, p, text);
    if (s->units)
        return plan_units_print(&p->detail, s->json, text);
    FSDP_TRY(plan_table_print(&p->table, s->json, text));
    return !s->json && p->limit.device > 0 && falls_short(s, p) ? print_why(s, p, text) : FSDP_OK;
}

fsdp_status fsdp_plan_against(const fsdp_settings *settings, const fsdp_settings *against, char **text)
{
    *text = NULL;
    FSDP_TRY(settings_check_size(settings));
    if (against)
        FSDP_TRY(settings_check_size(against));
    if (against && !settings->timeline && !settings->svg)
        return error_set(
            FSDP_ERR_INPUT,
            "--against draws a second plan over the first: say --timeline FILE.html or --svg FILE.svg too");
    planning *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(FSDP_ERR_MEMORY, "planning: out of host memory");
    p->table.work = &p->work;
    p->table.sharding = &p->sharding;
    fsdp_status status = prepare(settings, p);
    status = status == FSDP_OK ? print_plan(settings, p, against, text)
                               : explain_failure(settings, p, against, status, text);
    plan_detail_clear(&p->detail);
    device_close(p->table.world.dev);
    free(p);
    return status;
}

fsdp_status fsdp_plan(const fsdp_settings *settings, char **text)
{
    return fsdp_plan_against(settings, NULL, text);
}
