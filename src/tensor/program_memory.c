/* Memory of a program: which tensors share it, how long each piece lives, and where it lies in the slab. */
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/lifetime.h"
#include "tensor/program_internal.h"

storage *storage_of(storage *s)
{
    while (s && s->shared)
        s = s->shared;
    return s;
}

/* `s` becomes the same memory as `with`. */
static void storage_share(storage *s, storage *with)
{
    s = storage_of(s);
    with = storage_of(with);
    if (s != with)
        s->shared = with;
}

storage *program_new_storage(program *p, size_t bytes)
{
    if (p->n_storages == p->storages_capacity) {
        int wanted = p->storages_capacity ? p->storages_capacity * 2 : 512;
        storage **grown = realloc(p->storages, (size_t)wanted * sizeof *grown);
        if (!grown)
            return NULL;
        p->storages = grown;
        p->storages_capacity = wanted;
    }
    storage *s = arena_alloc(p->tape->memory, sizeof *s);
    if (!s)
        return NULL;
    *s = (storage){.planned = true, .bytes = bytes, .first = -1, .last = -1, .forward_last = -1, .backward_first = -1};
    p->storages[p->n_storages++] = s;
    return s;
}

storage *program_new_value(program *p, const fsdp_tensor *x)
{
    storage *s = program_new_storage(p, tensor_bytes(x));
    if (s)
        s->cleared = x->cleared;
    return s;
}

static bool consumed_outside_region(const program *p, const fsdp_tensor *x)
{
    for (int i = 0; i < p->tape->n_nodes; i++) {
        const node *n = p->tape->nodes[i];
        if (n->region == x->producer->region)
            continue;
        for (int k = 0; k < n->n_inputs; k++) {
            if (n->inputs[k] == x)
                return true;
        }
    }
    return false;
}

static bool keeps_by_rule(const program *p, const fsdp_tensor *x)
{
    const node *n = x->producer;
    if (x->kind != TENSOR_VALUE || !p->options.backward || x->keep || x->wanted)
        return true;
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] == x && (n->keeps_outputs >> i & 1))
            return true;
    }
    /* Backward begins with the last region: given up, it would be computed again at once. */
    bool turns = p->tape->n_regions > 1 && n->region == p->tape->n_regions - 1;
    if (n->region < 0 || turns)
        return !(p->tape->recompute_cheap && n->op->cheap);
    return consumed_outside_region(p, x);
}

/* The decision is stored in x->kept: first by rule, then views and what they look at are kept together, and with a
 * node's result what its backward reads besides (row statistics): otherwise the whole node would run again for those,
 * and write its kept result a second time, over whatever took its memory in place. */
static void decide_keeps(program *p)
{
    for (int i = 0; i < p->tape->n_tensors; i++)
        p->tape->tensors[i]->kept = keeps_by_rule(p, p->tape->tensors[i]);
    for (int i = p->tape->n_nodes - 1; i >= 0; i--) {
        node *n = p->tape->nodes[i];
        if (n->op->view && n->outputs[0]->kept)
            n->inputs[0]->kept = true;
    }
    for (int i = 0; i < p->tape->n_nodes; i++) {
        node *n = p->tape->nodes[i];
        if (n->op->view && n->inputs[0]->kept)
            n->outputs[0]->kept = true;
        for (int k = 0; k < n->n_outputs; k++) {
            n->outputs[k]->kept |= n->outputs[0]->kept;
            p->replays |= !n->outputs[k]->kept;
        }
    }
}

bool program_keeps(const program *p, const fsdp_tensor *x)
{
    (void)p;
    return x->kept;
}

/* What is known of a piece of memory while sharing is decided: who reads it last in forward, whether backward reads it.
 */
typedef struct reading {
    int last_consumer;
    int n_consumers;
    bool pinned; /* saved for backward, or wanted after the step */
} reading;

static void merge_reading(reading *into, const reading *from)
{
    if (from->last_consumer > into->last_consumer)
        into->last_consumer = from->last_consumer;
    into->n_consumers += from->n_consumers;
    into->pinned |= from->pinned;
}

static void collect_readings(const program *p, reading *readings)
{
    const fsdp_tape *t = p->tape;
    for (int i = 0; i < t->n_tensors; i++) {
        readings[i] = (reading){.last_consumer = -1};
        readings[i].pinned = t->tensors[i]->wanted;
    }
    for (int i = 0; i < t->n_nodes; i++) {
        const node *n = t->nodes[i];
        bool saves = p->options.backward && n->requires_grad;
        for (int k = 0; k < n->n_inputs; k++) {
            if (!n->inputs[k])
                continue;
            reading *r = &readings[n->inputs[k]->id];
            r->last_consumer = i;
            r->n_consumers += n->op->view ? 0 : 1;
            r->pinned |= saves && (n->saves_inputs >> k & 1);
        }
        for (int k = 0; k < n->n_outputs; k++)
            readings[n->outputs[k]->id].pinned |= saves && (n->saves_outputs >> k & 1);
    }
}

bool program_shares_in_place(const node *n)
{
    if (n->op->in_place == 0)
        return false;
    const fsdp_tensor *x = n->inputs[n->op->in_place - 1];
    return x && x->data && storage_of(x->data) == storage_of(n->outputs[0]->data);
}

static bool may_overwrite(const program *p, const node *n, const reading *readings, fsdp_tensor *const *heads)
{
    const fsdp_tensor *x = n->op->in_place ? n->inputs[n->op->in_place - 1] : NULL;
    const fsdp_tensor *y = n->outputs[0];
    if (!x || x->kind != TENSOR_VALUE || tensor_bytes(x) != tensor_bytes(y))
        return false;
    const reading *r = &readings[heads[x->id]->id];
    if (r->pinned || r->last_consumer != n->index)
        return false;
    int times_read = 0;
    for (int k = 0; k < n->n_inputs; k++)
        times_read += n->inputs[k] && n->inputs[k]->kind == TENSOR_VALUE && heads[n->inputs[k]->id] == heads[x->id];
    if (times_read != 1)
        return false;
    if (!p->replays)
        return true;
    return r->n_consumers == 1 && (!x->kept || y->kept);
}

/* `heads[id]` is the tensor whose reading speaks for the whole piece of memory that tensor id shares. */
static fsdp_status place_shared(program *p, reading *readings, fsdp_tensor **heads)
{
    fsdp_tape *t = p->tape;
    for (int i = 0; i < t->n_tensors; i++)
        heads[i] = t->tensors[i];
    for (int i = 0; i < t->n_nodes; i++) { /* views first: their readers are readers of what they look at */
        node *n = t->nodes[i];
        if (!n->op->view)
            continue;
        fsdp_tensor *from = heads[n->inputs[0]->id], *to = n->outputs[0];
        heads[to->id] = from;
        merge_reading(&readings[from->id], &readings[to->id]);
        to->data = n->inputs[0]->data;
    }
    for (int i = 0; i < t->n_nodes; i++) {
        node *n = t->nodes[i];
        if (n->op->view || !may_overwrite(p, n, readings, heads))
            continue;
        fsdp_tensor *from = heads[n->inputs[n->op->in_place - 1]->id], *to = heads[n->outputs[0]->id];
        storage_share(to->data, from->data);
        merge_reading(&readings[from->id], &readings[to->id]);
        for (int k = 0; k < t->n_tensors; k++) {
            if (heads[k] == to)
                heads[k] = from;
        }
    }
    return FSDP_OK;
}

fsdp_status program_place_values(program *p)
{
    fsdp_tape *t = p->tape;
    decide_keeps(p);
    for (int i = 0; i < t->n_tensors; i++) {
        fsdp_tensor *x = t->tensors[i];
        bool planned = x->kind == TENSOR_VALUE ? !x->producer->op->view
                                               : x->kind == TENSOR_INPUT && (p->options.stage_inputs || x->wanted);
        x->data = x->replay = x->grad = NULL;
        if (planned && !(x->data = program_new_value(p, x)))
            return error_set(FSDP_ERR_MEMORY, "planning %d tensors: out of host memory", t->n_tensors);
    }
    reading *readings = malloc((size_t)t->n_tensors * sizeof *readings + 1);
    fsdp_tensor **heads = malloc((size_t)t->n_tensors * sizeof *heads + 1);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (readings && heads) {
        collect_readings(p, readings);
        status = place_shared(p, readings, heads);
    } else {
        error_set(status, "planning %d tensors: out of host memory", t->n_tensors);
    }
    free(readings);
    free(heads);
    return status;
}

static void touch(const program *p, storage *s, int at)
{
    s = storage_of(s);
    if (!s)
        return;
    if (s->first < 0 || at < s->first)
        s->first = at;
    if (at > s->last)
        s->last = at;
    if (at < p->forward_length)
        s->forward_last = at;
    else if (s->backward_first < 0)
        s->backward_first = at;
}

static void touch_node(const program *p, const instruction *step, int at)
{
    const node *n = step->n;
    for (int k = 0; k < n->n_inputs; k++) {
        fsdp_tensor *x = n->inputs[k];
        if (!x)
            continue;
        if (step->phase == PHASE_FORWARD)
            touch(p, x->data, at);
        else if (step->phase == PHASE_REPLAY || (n->saves_inputs >> k & 1))
            touch(p, x->replay, at);
        if (step->phase == PHASE_BACKWARD && node_wants_grad(n, k))
            touch(p, x->grad, at);
    }
    for (int k = 0; k < n->n_outputs; k++) {
        fsdp_tensor *y = n->outputs[k];
        if (step->phase == PHASE_FORWARD)
            touch(p, y->data, at);
        else if (step->phase == PHASE_REPLAY || (n->saves_outputs >> k & 1) || n->op->loss_in_backward)
            touch(p, y->replay ? y->replay : y->data, at);
    }
    if (step->phase == PHASE_BACKWARD)
        touch(p, n->outputs[0]->grad, at);
    touch(p, step->workspace, at);
}

void program_note_lifetimes(program *p)
{
    for (int i = 0; i < p->n_storages; i++) {
        storage *s = p->storages[i];
        s->first = s->last = s->forward_last = s->backward_first = -1;
    }
    for (int i = 0; i < p->length; i++) {
        const instruction *step = &p->list[i];
        if (step->n)
            touch_node(p, step, i);
        else
            touch(p, step->phase <= PHASE_STORED ? step->moved->from : step->moved->to, i);
    }
    for (int i = 0; i < p->tape->n_tensors; i++) {
        fsdp_tensor *x = p->tape->tensors[i];
        if (x->wanted)
            touch(p, x->data, p->length);
        if (x->kind == TENSOR_INPUT && x->data)
            touch(p, x->data, 0); /* staged before the first instruction */
    }
    for (int i = 0; i < p->n_storages; i++) {
        storage *s = p->storages[i];
        if (s->cleared && s->first >= 0) {
            s->first = 0;
            s->last = p->length;
        }
    }
}

/* Host memory of the transfers, from the copy there to the end of the copy back. */
static fsdp_status pack_host(program *p)
{
    lifetime *items = calloc((size_t)p->n_transfers + 1, sizeof *items);
    if (!items)
        return error_set(FSDP_ERR_MEMORY, "planning %d transfers: out of host memory", p->n_transfers);
    for (int i = 0; i < p->length; i++) {
        const instruction *step = &p->list[i];
        lifetime *item = step->moved ? &items[step->moved - p->transfers] : NULL;
        if (step->phase == PHASE_STORE)
            *item = (lifetime){.bytes = step->moved->from->bytes, .first = i};
        else if (step->phase == PHASE_FETCHED)
            item->last = i;
    }
    fsdp_status status = lifetime_pack(items, p->n_transfers, &p->host_bytes);
    for (int i = 0; status == FSDP_OK && i < p->n_transfers; i++)
        p->transfers[i].host_offset = items[i].offset;
    free(items);
    return status;
}

/* Values that are cleared lie together at the beginning of the slab. They are a few words each, and kernels want them
 * 16 bytes apart. */
enum { CLEARED_ALIGNMENT = 16, SLAB_ALIGNMENT = 256 };

fsdp_status program_pack(program *p)
{
    program_note_lifetimes(p);
    FSDP_TRY(pack_host(p));
    lifetime *items = malloc((size_t)p->n_storages * sizeof *items + 1);
    storage **owners = malloc((size_t)p->n_storages * sizeof *owners + 1);
    if (!items || !owners) {
        free(items);
        free(owners);
        return error_set(FSDP_ERR_MEMORY, "planning %d values: out of host memory", p->n_storages);
    }
    int n = 0;
    p->cleared_bytes = 0;
    for (int i = 0; i < p->n_storages; i++) {
        storage *s = p->storages[i];
        if (s->shared || s->first < 0 || s->bytes == 0)
            continue;
        if (s->cleared) {
            s->offset = p->cleared_bytes;
            p->cleared_bytes += round_up(s->bytes, CLEARED_ALIGNMENT);
            continue;
        }
        owners[n] = s;
        items[n++] = (lifetime){s->bytes, s->first, s->last, 0};
    }
    p->cleared_bytes = round_up(p->cleared_bytes, SLAB_ALIGNMENT);
    fsdp_status status = lifetime_pack(items, n, &p->slab_bytes);
    for (int i = 0; status == FSDP_OK && i < n; i++)
        owners[i]->offset = p->cleared_bytes + items[i].offset;
    p->slab_bytes += p->cleared_bytes;
    free(items);
    free(owners);
    return status;
}
