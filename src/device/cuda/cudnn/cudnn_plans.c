/* Keeps compiled cuDNN plans: in memory by key, and as JSON in a folder where there is one, since a plan takes up to a
 * second to compile and milliseconds to load. Runs them, one at a time: cuDNN's handle has one stream. */
#include "device/cuda/cudnn/cudnn_plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

#ifdef CUDA_HAS_CUDNN

/* With the library's version and the GPU's name. */
#define FULL_KEY_CHARS (PLAN_KEY_CHARS + 192)

struct cudnn_plan {
    cudnn_plan *next;
    char key[FULL_KEY_CHARS];
    bool served;                   /* false: cuDNN has no engine for it */
    cudnnBackendDescriptor_t plan; /* NULL: not served, or for a described GPU */
    size_t workspace_bytes;
};

struct cudnn_plans {
    pthread_mutex_t mutex;
    cudnn_plan *first;
    char *folder;
};

fsdp_status cudnn_plans_create(cudnn_plans **out)
{
    cudnn_plans *plans = calloc(1, sizeof *plans);
    if (!plans)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for cuDNN's plans");
    pthread_mutex_init(&plans->mutex, NULL);
    *out = plans;
    return FSDP_OK;
}

void cudnn_plans_free(cuda_device *d, cudnn_plans *plans)
{
    if (!plans)
        return;
    while (plans->first) {
        cudnn_plan *next = plans->first->next;
        if (plans->first->plan)
            d->libraries.cudnn.cudnnBackendDestroyDescriptor(plans->first->plan);
        free(plans->first);
        plans->first = next;
    }
    pthread_mutex_destroy(&plans->mutex);
    free(plans->folder);
    free(plans);
}

fsdp_status cuda_set_plan_folder(device *base, const char *folder)
{
    cudnn_plans *plans = ((cuda_device *)base)->plans;
    char *copy = NULL;
    if (folder) {
        FSDP_TRY(file_make_directories(folder));
        copy = strdup(folder);
        if (!copy)
            return error_set(FSDP_ERR_MEMORY, "out of host memory");
    }
    pthread_mutex_lock(&plans->mutex);
    free(plans->folder);
    plans->folder = copy;
    pthread_mutex_unlock(&plans->mutex);
    return FSDP_OK;
}

static char *plan_path(const cudnn_plans *plans, const char *kind, const char *key)
{
    char name[96];
    snprintf(name, sizeof name, "%s-%016llx.json", kind, (unsigned long long)hash_text(HASH_START, key));
    return plans->folder ? file_join(plans->folder, name) : NULL;
}

/* NULL when there is no file or cuDNN does not take it: it is then compiled anew. */
static cudnnBackendDescriptor_t load_plan(const graph_target *target, const char *path)
{
    char *json = NULL;
    size_t bytes = 0;
    cudnnBackendDescriptor_t plan = NULL;
    if (!path || !file_exists(path) || file_read(path, &json, &bytes) != FSDP_OK)
        return NULL;
    if (graph_plan_from_json(target, json, &plan) != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "%s: not usable (%s); compiling again", path, fsdp_last_error());
    free(json);
    return plan;
}

static void save_plan(const cudnn_api *api, cudnnBackendDescriptor_t plan, const char *path)
{
    char *json = NULL;
    if (!path)
        return;
    if (graph_plan_to_json(api, plan, &json) != FSDP_OK || file_write_atomic(path, json, strlen(json)) != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "cuDNN plan not kept: %s", fsdp_last_error());
    free(json);
}

static fsdp_status make_plan(const graph_target *target, const plan_request *request, cudnn_plan *plan,
                             int64_t *workspace)
{
    graph_builder *b = malloc(sizeof *b);
    if (!b)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for a cuDNN graph");
    graph_start(b, target);
    request->build(b, request->shape);
    fsdp_status status = graph_plan(b, &request->choice, &plan->plan, workspace);
    graph_discard(b);
    free(b);
    return status;
}

/* Fills the plan in, or leaves it unserved when cuDNN has nothing for the request. */
static fsdp_status prepare_plan(cuda_device *d, const plan_request *request, cudnn_plan *plan)
{
    graph_target target = {.api = &d->libraries.cudnn, .properties = d->described};
    char *path = NULL;
    int64_t bytes = 0;
    if (!d->described) {
        FSDP_TRY(libraries_cudnn_handle(&d->libraries, &target.handle));
        path = plan_path(d->plans, request->kind, plan->key);
        plan->plan = load_plan(&target, path);
    }
    bool loaded = plan->plan != NULL;
    fsdp_status status =
        loaded ? graph_plan_workspace(target.api, plan->plan, &bytes) : make_plan(&target, request, plan, &bytes);
    plan->served = status == FSDP_OK;
    if (!plan->served)
        log_write(FSDP_LOG_INFO, "%s: %s; the own kernel is used", plan->key, fsdp_last_error());
    else if (plan->plan && !loaded)
        save_plan(target.api, plan->plan, path);
    free(path);
    plan->workspace_bytes = round_up((size_t)bytes, 256);
    return FSDP_OK;
}

fsdp_status cudnn_plans_find(cuda_device *d, const plan_request *request, const cudnn_plan **out)
{
    char key[FULL_KEY_CHARS];
    fsdp_status status = FSDP_OK;
    *out = NULL;
    snprintf(key, sizeof key, "cudnn %zu %s %s %s", d->libraries.cudnn_version, d->gpu.name, request->kind,
             request->key);
    pthread_mutex_lock(&d->plans->mutex);
    cudnn_plan *plan = d->plans->first;
    while (plan && strcmp(plan->key, key) != 0)
        plan = plan->next;
    if (!plan) {
        plan = calloc(1, sizeof *plan);
        status = plan ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of host memory for a cuDNN plan");
        if (plan) {
            snprintf(plan->key, sizeof plan->key, "%s", key);
            plan->next = d->plans->first;
            d->plans->first = plan;
            status = prepare_plan(d, request, plan);
        }
    }
    if (status == FSDP_OK && plan->served)
        *out = plan;
    pthread_mutex_unlock(&d->plans->mutex);
    return status;
}

size_t cudnn_plan_workspace(const cudnn_plan *plan)
{
    return plan ? plan->workspace_bytes : 0;
}

fsdp_status cudnn_plan_run(stream *s, const cudnn_plan *plan, int n, const int64_t *uids, void *const *pointers,
                           void *workspace)
{
    cuda_device *d = s->device;
    graph_target target = {.api = &d->libraries.cudnn, .handle = d->libraries.cudnn_handle};
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&d->plans->mutex);
    cudnnStatus_t set = d->libraries.cudnn.cudnnSetStream(target.handle, s->launch.stream);
    if (set != CUDNN_STATUS_SUCCESS)
        status = error_set(FSDP_ERR_DEVICE, "cuDNN refused a stream: %s", d->libraries.cudnn.cudnnGetErrorString(set));
    else
        status = graph_execute(&target, plan->plan, n, uids, pointers, workspace);
    pthread_mutex_unlock(&d->plans->mutex);
    return status;
}

#else /* built without cuDNN: own kernels serve everything */

fsdp_status cudnn_plans_create(cudnn_plans **out)
{
    *out = NULL;
    return FSDP_OK;
}

void cudnn_plans_free(cuda_device *d, cudnn_plans *plans)
{
    (void)d;
    (void)plans;
}

fsdp_status cuda_set_plan_folder(device *base, const char *folder)
{
    (void)base;
    (void)folder;
    return FSDP_OK;
}

size_t cudnn_plan_workspace(const cudnn_plan *plan)
{
    (void)plan;
    return 0;
}

#endif
