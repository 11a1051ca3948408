/* Names of kinds and roles; checks and measures what a producer describes, before anything is written or read by it. */
#include "ckpt/format/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

static const char *const kind_names[CKPT_N_KINDS] = {
    [FSDP_CKPT_SHARDED] = "sharded", [FSDP_CKPT_FULL] = "full", [FSDP_CKPT_LOCAL] = "local"};

const char *ckpt_kind_name(fsdp_checkpoint_kind kind)
{
    return (unsigned)kind < CKPT_N_KINDS ? kind_names[kind] : "unknown";
}

fsdp_status ckpt_kind_parse(const char *name, fsdp_checkpoint_kind *out)
{
    for (int i = 0; i < CKPT_N_KINDS; i++) {
        if (strcmp(name, kind_names[i]) == 0) {
            *out = (fsdp_checkpoint_kind)i;
            return FSDP_OK;
        }
    }
    return error_set(FSDP_ERR_INPUT, "\"%s\" is not a kind of checkpoint; use sharded, full or local", name);
}

static const char *const role_names[CKPT_ROLE_COUNT] = {
    [CKPT_PARAMETER] = "parameter", [CKPT_BUFFER] = "buffer",
    [CKPT_MOMENT1] = "moment1",     [CKPT_MOMENT2] = "moment2",
    [CKPT_OTHER] = "other",         [CKPT_AVERAGE] = "average",
    [CKPT_ROWS] = "moment2_rows",   [CKPT_COLUMNS] = "moment2_columns",
};

const char *ckpt_role_name(ckpt_role role)
{
    return (unsigned)role < CKPT_ROLE_COUNT ? role_names[role] : "unknown";
}

bool ckpt_role_parse(const char *name, ckpt_role *out)
{
    for (int i = 0; i < CKPT_ROLE_COUNT; i++) {
        if (strcmp(name, role_names[i]) == 0) {
            *out = (ckpt_role)i;
            return true;
        }
    }
    return false;
}

int ckpt_role_order(ckpt_role a_role, const char *a_name, ckpt_role b_role, const char *b_name)
{
    return a_role != b_role ? (int)a_role - (int)b_role : strcmp(a_name, b_name);
}

int64_t ckpt_tensor_numel(const ckpt_tensor *tensor)
{
    int64_t numel = 1;
    for (int i = 0; i < tensor->n_dims; i++)
        numel *= tensor->shape[i];
    return numel;
}

static fsdp_status check_tensor(const ckpt_tensor *tensor, int index)
{
    if (!tensor->name || !*tensor->name)
        return error_set(FSDP_ERR_STATE, "checkpoint state: tensor %d has no name", index);
    if ((unsigned)tensor->role >= CKPT_ROLE_COUNT || tensor->n_dims < 0 || tensor->n_dims > CKPT_MAX_DIMS)
        return error_set(FSDP_ERR_STATE, "checkpoint state: tensor %s: role %d or its %d dimensions are not known",
                         tensor->name, (int)tensor->role, tensor->n_dims);
    int64_t bytes = (int64_t)sizeof(float);
    for (int i = 0; i < tensor->n_dims; i++)
        if (tensor->shape[i] < 0 || checked_mul_i64(bytes, tensor->shape[i], &bytes))
            return error_set(FSDP_ERR_STATE, "checkpoint state: tensor %s: its shape is negative or too large",
                             tensor->name);
    return FSDP_OK;
}

static int tensor_order(const void *left, const void *right)
{
    const ckpt_tensor *a = *(const ckpt_tensor *const *)left, *b = *(const ckpt_tensor *const *)right;
    return ckpt_role_order(a->role, a->name, b->role, b->name);
}

static fsdp_status check_names(const ckpt_state *state)
{
    const ckpt_tensor **order = malloc(((size_t)state->n_tensors + 1) * sizeof *order);
    if (!order)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a list of %d tensors", state->n_tensors);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < state->n_tensors; i++)
        order[i] = &state->tensors[i];
    qsort(order, (size_t)state->n_tensors, sizeof *order, tensor_order);
    for (int i = 1; i < state->n_tensors && status == FSDP_OK; i++)
        if (tensor_order(&order[i - 1], &order[i]) == 0)
            status = error_set(FSDP_ERR_STATE, "checkpoint state: %s %s is listed twice",
                               ckpt_role_name(order[i]->role), order[i]->name);
    free(order);
    return status;
}

static int slice_order(const void *left, const void *right)
{
    const ckpt_slice *a = *(const ckpt_slice *const *)left, *b = *(const ckpt_slice *const *)right;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static fsdp_status check_slice(const ckpt_state *state, const ckpt_slice *slice, int index)
{
    if (slice->tensor < 0 || slice->tensor >= state->n_tensors)
        return error_set(FSDP_ERR_STATE, "checkpoint state: slice %d is of tensor %d, there are %d", index,
                         slice->tensor, state->n_tensors);
    const ckpt_tensor *tensor = &state->tensors[slice->tensor];
    int64_t numel = ckpt_tensor_numel(tensor);
    if (slice->first < 0 || slice->count < 0 || slice->first > numel || slice->count > numel - slice->first)
        return error_set(FSDP_ERR_STATE, "checkpoint state: %lld elements from %lld on are not within the %lld of %s",
                         (long long)slice->count, (long long)slice->first, (long long)numel, tensor->name);
    if (!slice->data && slice->count > 0 && (!state->read || !state->write))
        return error_set(FSDP_ERR_STATE, "checkpoint state: a slice of %s has neither data nor read and write",
                         tensor->name);
    return FSDP_OK;
}

static fsdp_status check_overlap(const ckpt_state *state)
{
    const ckpt_slice **order = malloc(((size_t)state->n_slices + 1) * sizeof *order);
    if (!order)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a list of %d slices", state->n_slices);
    fsdp_status status = FSDP_OK;
    int n = 0;
    for (int i = 0; i < state->n_slices; i++)
        if (state->slices[i].count > 0)
            order[n++] = &state->slices[i];
    qsort(order, (size_t)n, sizeof *order, slice_order);
    for (int i = 1; i < n && status == FSDP_OK; i++)
        if (order[i]->tensor == order[i - 1]->tensor && order[i]->first < order[i - 1]->first + order[i - 1]->count)
            status = error_set(FSDP_ERR_STATE, "checkpoint state: two slices of %s overlap at element %lld",
                               state->tensors[order[i]->tensor].name, (long long)order[i]->first);
    free(order);
    return status;
}

fsdp_status ckpt_state_check(const ckpt_state *state)
{
    if (state->size != sizeof *state)
        return error_set(FSDP_ERR_STATE, "checkpoint state: begin with CKPT_STATE_INIT");
    if (state->autotune_bytes > CKPT_MAX_AUTOTUNE_BYTES || (state->autotune_bytes > 0 && !state->autotune))
        return error_set(FSDP_ERR_STATE, "checkpoint state: %zu bytes of autotuned kernels; at most %zu can be kept",
                         state->autotune_bytes, CKPT_MAX_AUTOTUNE_BYTES);
    for (int i = 0; i < state->n_tensors; i++)
        FSDP_TRY(check_tensor(&state->tensors[i], i));
    FSDP_TRY(check_names(state));
    for (int i = 0; i < state->n_slices; i++)
        FSDP_TRY(check_slice(state, &state->slices[i], i));
    return check_overlap(state);
}

int64_t ckpt_state_bytes(const ckpt_state *state, bool all)
{
    int64_t bytes = 0;
    for (int i = 0; i < state->n_slices; i++)
        if (all || state->slices[i].writes)
            bytes += state->slices[i].count * (int64_t)sizeof(float);
    return bytes;
}

int64_t ckpt_state_total_bytes(const ckpt_state *state, unsigned roles)
{
    int64_t bytes = 0;
    for (int i = 0; i < state->n_tensors; i++)
        if (roles & CKPT_ROLE_BIT(state->tensors[i].role))
            bytes += ckpt_tensor_numel(&state->tensors[i]) * (int64_t)sizeof(float);
    return bytes;
}
