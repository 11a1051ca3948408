/* cuDNN's backend API in small pieces; see cudnn_graph.h. Descriptors live as long as their builder, plans longer. */
#include "device/cuda/cudnn/cudnn_graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#ifdef CUDA_HAS_CUDNN

#define MAX_ENGINES 16

static fsdp_status check(const cudnn_api *api, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return FSDP_OK;
    char detail[256] = "";
    api->cudnnGetLastErrorString(detail, sizeof detail);
    return error_set(FSDP_ERR_DEVICE, "cuDNN: %s failed: %s %.200s", what, api->cudnnGetErrorString(status), detail);
}

void graph_start(graph_builder *b, const graph_target *target)
{
    memset(b, 0, sizeof *b);
    b->target = target;
    b->next_virtual = 1000;
}

void graph_discard(graph_builder *b)
{
    while (b->n_descriptors > 0)
        b->target->api->cudnnBackendDestroyDescriptor(b->descriptors[--b->n_descriptors]);
    b->n_operations = 0;
}

static cudnnBackendDescriptor_t create(graph_builder *b, cudnnBackendDescriptorType_t type)
{
    if (b->status != FSDP_OK)
        return NULL;
    if (b->n_descriptors == GRAPH_MAX_DESCRIPTORS) {
        b->status = error_set(FSDP_ERR_STATE, "cuDNN graph has more than %d descriptors", GRAPH_MAX_DESCRIPTORS);
        return NULL;
    }
    cudnnBackendDescriptor_t descriptor = NULL;
    b->status =
        check(b->target->api, b->target->api->cudnnBackendCreateDescriptor(type, &descriptor), "making a descriptor");
    if (b->status != FSDP_OK)
        return NULL;
    b->descriptors[b->n_descriptors++] = descriptor;
    return descriptor;
}

static void set(graph_builder *b, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (b->status == FSDP_OK)
        b->status = check(b->target->api, b->target->api->cudnnBackendSetAttribute(descriptor, name, type, n, values),
                          "setting an attribute");
}

static void set_descriptor(graph_builder *b, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value)
{
    if (value)
        set(b, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(graph_builder *b, cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (b->status == FSDP_OK)
        b->status = check(b->target->api, b->target->api->cudnnBackendFinalize(descriptor), what);
}

static void finalize_operation(graph_builder *b, cudnnBackendDescriptor_t operation, const char *what)
{
    finalize(b, operation, what);
    if (b->status != FSDP_OK)
        return;
    if (b->n_operations == GRAPH_MAX_OPERATIONS)
        b->status = error_set(FSDP_ERR_STATE, "cuDNN graph has more than %d operations", GRAPH_MAX_OPERATIONS);
    else
        b->operations[b->n_operations++] = operation;
}

static graph_tensor add_tensor(graph_builder *b, int64_t uid, cudnnDataType_t type, const graph_layout *layout,
                               bool by_value)
{
    cudnnBackendDescriptor_t t = create(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool is_virtual = uid == 0;
    int64_t alignment = 16;
    if (is_virtual)
        uid = b->next_virtual++;
    set(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, layout->size);
    set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, layout->stride);
    set(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(b, t, "describing a tensor");
    return t;
}

graph_tensor graph_add_tensor(graph_builder *b, int64_t uid, cudnnDataType_t type, graph_layout layout)
{
    return add_tensor(b, uid, type, &layout, false);
}

graph_tensor graph_add_scalar(graph_builder *b, int64_t uid)
{
    const graph_layout one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return add_tensor(b, uid, CUDNN_DATA_FLOAT, &one, true);
}

void graph_add_matmul(graph_builder *b, graph_tensor left, graph_tensor right, graph_tensor out)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t matmul = create(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(b, matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize(b, matmul, "describing a product");
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, left);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, right);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
    finalize_operation(b, operation, "adding a product");
}

void graph_add_pointwise(graph_builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis,
                         graph_tensor first, graph_tensor second, graph_tensor mask, graph_tensor out)
{
    cudnnBackendDescriptor_t pointwise = create(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(b, pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(b, pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0)
        set(b, pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(b, pointwise, "describing a pointwise operation");
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, first);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, second);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
    finalize_operation(b, operation, "adding a pointwise operation");
}

void graph_add_reduction(graph_builder *b, cudnnReduceTensorOp_t mode, bool deterministic, graph_tensor in,
                         graph_tensor out)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t reduction = create(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(b, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    if (b->target->api->cudnnGetVersion() >= 91100)
        set(b, reduction, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &deterministic);
    finalize(b, reduction, "describing a reduction");
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, in);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    finalize_operation(b, operation, "adding a reduction");
}

void graph_add_reshape(graph_builder *b, graph_tensor in, graph_tensor out)
{
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, in);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out);
    finalize_operation(b, operation, "adding a reshape");
}

/* The names under which each kind of convolution takes its parts. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, weight, y, description, alpha, beta;
} convolution_names[CONVOLUTION_KINDS] = {
    [CONVOLUTION_Y] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [CONVOLUTION_X] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [CONVOLUTION_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

void graph_add_convolution(graph_builder *b, graph_convolution kind, const int64_t stride[2], const int64_t padding[2],
                           graph_tensor x, graph_tensor weight, graph_tensor y, bool add)
{
    const int64_t dilation[2] = {1, 1}, n_spatial = 2;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t convolution = create(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(b, convolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(b, convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n_spatial);
    set(b, convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    set(b, convolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    set(b, convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    set(b, convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    finalize(b, convolution, "describing a convolution");
    float alpha = 1.0f, beta = add ? 1.0f : 0.0f;
    cudnnBackendDescriptor_t operation = create(b, convolution_names[kind].type);
    set_descriptor(b, operation, convolution_names[kind].x, x);
    set_descriptor(b, operation, convolution_names[kind].weight, weight);
    set_descriptor(b, operation, convolution_names[kind].y, y);
    set_descriptor(b, operation, convolution_names[kind].description, convolution);
    set(b, operation, convolution_names[kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(b, operation, convolution_names[kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    finalize_operation(b, operation, "adding a convolution");
}

fsdp_status graph_plan_workspace(const cudnn_api *api, cudnnBackendDescriptor_t plan, int64_t *bytes)
{
    int64_t n = 0;
    return check(
        api,
        api->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, bytes),
        "asking for a plan's workspace");
}

/* What an engine will want, known before anything is compiled. Before cuDNN 9.2 none says so; a GPU's plan does. */
static bool engine_workspace(const cudnn_api *api, cudnnBackendDescriptor_t engine, int64_t *bytes)
{
    int64_t n = 0;
    cudnnStatus_t status =
        api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, bytes);
    return status == CUDNN_STATUS_SUCCESS && n == 1;
}

/* A plan for one engine configuration and its workspace, or NULL when the engine refuses or wants too much memory. */
static cudnnBackendDescriptor_t try_engine(const graph_target *target, cudnnBackendDescriptor_t engine,
                                           int64_t workspace_limit, int64_t *workspace)
{
    const cudnn_api *api = target->api;
    cudnnBackendDescriptor_t plan = NULL;
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS)
        return NULL;
    cudnnStatus_t status =
        api->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendFinalize(plan);
    if (status == CUDNN_STATUS_SUCCESS && graph_plan_workspace(api, plan, workspace) == FSDP_OK &&
        *workspace <= workspace_limit)
        return plan;
    api->cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

static cudnnBackendDescriptor_t make_graph(graph_builder *b)
{
    cudnnBackendDescriptor_t graph = create(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->n_operations, b->operations);
    if (b->target->handle)
        set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &b->target->handle);
    finalize(b, graph, "finishing a graph");
    return graph;
}

static cudnnBackendDescriptor_t make_search(graph_builder *b, cudnnBackendDescriptor_t graph,
                                            cudnnBackendHeurMode_t mode)
{
    cudnnBackendDescriptor_t search = create(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(b, search, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, search, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    set_descriptor(b, search, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, b->target->properties);
    finalize(b, search, "searching for an engine");
    return search;
}

/* The engines suggested, best first; they belong to the builder. */
static fsdp_status find_engines(graph_builder *b, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode, int most,
                                cudnnBackendDescriptor_t *engines, int *n)
{
    cudnnBackendDescriptor_t search = make_search(b, graph, mode);
    int64_t found = 0;
    for (int i = 0; i < most; i++)
        engines[i] = create(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->status == FSDP_OK)
        b->status =
            check(b->target->api,
                  b->target->api->cudnnBackendGetAttribute(search, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &found, engines),
                  "reading the engines found");
    *n = found < most ? (int)found : most;
    return b->status;
}

fsdp_status graph_count_engines(graph_builder *b, int *n)
{
    cudnnBackendDescriptor_t engines[MAX_ENGINES];
    return find_engines(b, make_graph(b), CUDNN_HEUR_MODE_A, MAX_ENGINES, engines, n);
}

/* The numerical notes of an engine configuration as bits; all of them when it does not say. */
static uint32_t engine_notes(graph_builder *b, cudnnBackendDescriptor_t configuration)
{
    const cudnn_api *api = b->target->api;
    cudnnBackendDescriptor_t engine = create(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    uint32_t bits = 0;
    if (!engine ||
        api->cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                      &engine) != CUDNN_STATUS_SUCCESS ||
        api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                      CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes) != CUDNN_STATUS_SUCCESS)
        return UINT32_MAX;
    for (int64_t i = 0; i < n; i++)
        bits |= 1u << notes[i];
    return bits;
}

/* Of an engine that does not say what it will want, *workspace is 0. */
static bool is_allowed(graph_builder *b, const graph_choice *choice, cudnnBackendDescriptor_t engine,
                       int64_t *workspace)
{
    *workspace = 0;
    bool known = engine_workspace(b->target->api, engine, workspace);
    return (known || b->target->handle) && *workspace <= choice->workspace_limit &&
           (!choice->forbidden || !(engine_notes(b, engine) & choice->forbidden));
}

fsdp_status graph_plan(graph_builder *b, const graph_choice *choice, cudnnBackendDescriptor_t *plan, int64_t *workspace)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    cudnnBackendDescriptor_t engines[MAX_ENGINES], graph = make_graph(b);
    int n = 0, n_suggested = 0;
    *plan = NULL;
    for (size_t mode = choice->plain ? 1 : 0; mode < sizeof modes / sizeof *modes; mode++) {
        FSDP_TRY(find_engines(b, graph, modes[mode], MAX_ENGINES, engines, &n));
        n_suggested += n;
        for (int i = 0; i < n; i++) {
            if (!is_allowed(b, choice, engines[i], workspace))
                continue;
            if (!b->target->handle)
                return FSDP_OK;
            *plan = try_engine(b->target, engines[i], choice->workspace_limit, workspace);
            if (*plan)
                return FSDP_OK;
        }
    }
    return error_set(FSDP_ERR_UNSUPPORTED, "cuDNN has no engine for this graph (%d suggested)", n_suggested);
}

fsdp_status graph_plan_to_json(const cudnn_api *api, cudnnBackendDescriptor_t plan, char **json)
{
    int64_t n = 0;
    FSDP_TRY(check(api,
                   api->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                                 0, &n, NULL),
                   "asking for a plan's size"));
    char *text = malloc((size_t)n + 1);
    if (!text)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for a plan of %lld bytes", (long long)n);
    fsdp_status status = check(api,
                               api->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                                             CUDNN_TYPE_CHAR, n, &n, text),
                               "writing a plan as text");
    if (status != FSDP_OK) {
        free(text);
        return status;
    }
    text[n] = '\0';
    *json = text;
    return FSDP_OK;
}

fsdp_status graph_plan_from_json(const graph_target *target, const char *json, cudnnBackendDescriptor_t *plan)
{
    const cudnn_api *api = target->api;
    FSDP_TRY(
        check(api, api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan), "making a plan"));
    cudnnStatus_t status = api->cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                                         CUDNN_TYPE_CHAR, (int64_t)strlen(json), json);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                               &target->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendFinalize(*plan);
    fsdp_status result = check(api, status, "reading a plan");
    if (result != FSDP_OK) {
        api->cudnnBackendDestroyDescriptor(*plan);
        *plan = NULL;
    }
    return result;
}

fsdp_status graph_execute(const graph_target *target, cudnnBackendDescriptor_t plan, int n, const int64_t *uids,
                          void *const *pointers, void *workspace)
{
    const cudnn_api *api = target->api;
    cudnnBackendDescriptor_t pack = NULL;
    FSDP_TRY(check(api, api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack),
                   "gathering a plan's memory"));
    cudnnStatus_t status =
        api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n,
                                               pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendExecute(target->handle, plan, pack);
    fsdp_status result = check(api, status, "running a plan");
    api->cudnnBackendDestroyDescriptor(pack);
    return result;
}

#endif
