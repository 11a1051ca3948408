/* Statements of a template. A loop's body has a frame of variables for each round, a macro one for each call; `if` has
 * none. */
#include <string.h>

#include "base/error.h"
#include "tokenizer/template/template_eval_internal.h"

enum { MAX_STEPS = 5000000, MAX_LEVELS = 1500 };
static const size_t most_memory = (size_t)512 << 20;

static fsdp_status run(renderer *r, const node_list *body);

fsdp_status renderer_step(renderer *r)
{
    if (++r->n_steps > MAX_STEPS || arena_bytes(r->room.arena) > most_memory)
        return error_set(FSDP_ERR_INPUT, "the chat template takes too long or too much memory");
    if (r->level > MAX_LEVELS)
        return error_set(FSDP_ERR_INPUT, "the chat template is nested too deep");
    return FSDP_OK;
}

fsdp_status renderer_push_frame(renderer *r, frame *parent)
{
    frame *f = arena_alloc(r->room.arena, sizeof *f);
    if (f == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
    f->parent = parent;
    r->frame = f;
    return FSDP_OK;
}

fsdp_status renderer_assign(renderer *r, value name, value v)
{
    return value_set(r->room.arena, &r->frame->variables, name, v);
}

/* Functions count as defined; a template may ask before it calls one. */
value renderer_look_up(const renderer *r, value name)
{
    static const char *const functions[] = {"range", "namespace", "dict", "strftime_now", "raise_exception"};
    value v = {.kind = VALUE_UNDEFINED};
    for (const frame *f = r->frame; f != NULL; f = f->parent)
        if (value_get(&f->variables, name, &v))
            return v;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (value_equal(name, value_literal(functions[i])))
            v.kind = VALUE_MACRO;
    return v;
}

fsdp_status renderer_capture(renderer *r, const node_list *body, value *out)
{
    text_buffer b = {.limit = RENDERER_MAX_OUTPUT}, *before = r->out;
    r->out = &b;
    fsdp_status status = run(r, body);
    r->out = before;
    if (status == FSDP_OK)
        status = value_copy_string(r->room.arena, b.data, b.bytes, out);
    text_free(&b);
    return status;
}

/* --- statements -------------------------------------------------------------------------------------------------- */

static fsdp_status assign_targets(renderer *r, const node_list *names, value v)
{
    value items;
    if (names->n == 1)
        return renderer_assign(r, names->items[0]->constant, v);
    FSDP_TRY(builtin_items(&r->room, v, &items));
    if (items.list->n != names->n)
        return error_set(FSDP_ERR_INPUT, "%zu values for %zu names", items.list->n, names->n);
    for (size_t i = 0; i < names->n; i++)
        FSDP_TRY(renderer_assign(r, names->items[i]->constant, items.list->items[i]));
    return FSDP_OK;
}

static fsdp_status set_loop(renderer *r, value items, size_t i)
{
    value loop, undefined = {.kind = VALUE_UNDEFINED};
    int64_t n = (int64_t)items.list->n, at = (int64_t)i;
    const struct {
        const char *name;
        value v;
    } fields[] = {
        {"index", value_integer(at + 1)},
        {"index0", value_integer(at)},
        {"revindex", value_integer(n - at)},
        {"revindex0", value_integer(n - at - 1)},
        {"first", value_bool(i == 0)},
        {"last", value_bool(at + 1 == n)},
        {"length", value_integer(n)},
        {"previtem", i > 0 ? items.list->items[i - 1] : undefined},
        {"nextitem", at + 1 < n ? items.list->items[i + 1] : undefined},
    };
    FSDP_TRY(value_new_dict(r->room.arena, &loop));
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
        FSDP_TRY(value_set(r->room.arena, loop.dict, value_literal(fields[k].name), fields[k].v));
    return renderer_assign(r, value_literal("loop"), loop);
}

/* The items of a loop that pass its condition. */
static fsdp_status loop_items(renderer *r, const node *n, value *out)
{
    value all, passes;
    FSDP_TRY(renderer_evaluate(r, n->a, &all));
    FSDP_TRY(builtin_items(&r->room, all, out));
    if (n->b == NULL)
        return FSDP_OK;
    all = *out;
    FSDP_TRY(value_new_list(r->room.arena, out));
    for (size_t i = 0; i < all.list->n; i++) {
        frame *before = r->frame;
        FSDP_TRY(renderer_push_frame(r, before));
        FSDP_TRY(assign_targets(r, &n->items, all.list->items[i]));
        FSDP_TRY(renderer_evaluate(r, n->b, &passes));
        r->frame = before;
        if (value_is_true(passes))
            FSDP_TRY(value_append(r->room.arena, *out, all.list->items[i]));
    }
    return FSDP_OK;
}

/* As in Jinja, `else` is for a loop of which no round came to its end. */
static fsdp_status run_for(renderer *r, const node *n)
{
    value items;
    bool ended = false;
    frame *before = r->frame;
    FSDP_TRY(loop_items(r, n, &items));
    for (size_t i = 0; i < items.list->n && r->flow == FLOW_ON; i++) {
        FSDP_TRY(renderer_push_frame(r, before));
        FSDP_TRY(set_loop(r, items, i));
        FSDP_TRY(assign_targets(r, &n->items, items.list->items[i]));
        FSDP_TRY(run(r, &n->body));
        r->frame = before;
        ended = ended || r->flow == FLOW_ON;
        r->flow = r->flow == FLOW_CONTINUE ? FLOW_ON : r->flow;
    }
    r->flow = FLOW_ON;
    return ended ? FSDP_OK : run(r, &n->other);
}

static fsdp_status run_set(renderer *r, const node *n)
{
    value v;
    if (n->kind == NODE_SET_BLOCK)
        FSDP_TRY(renderer_capture(r, &n->body, &v));
    else
        FSDP_TRY(renderer_evaluate(r, n->a, &v));
    if (n->constant.kind != VALUE_STRING)
        return assign_targets(r, &n->items, v);
    value object = renderer_look_up(r, n->items.items[0]->constant);
    if (object.kind != VALUE_DICT || !object.dict->is_namespace)
        return error_set(FSDP_ERR_INPUT, "only attributes of a namespace can be set");
    return value_set(r->room.arena, object.dict, n->constant, v);
}

static fsdp_status run_generation(renderer *r, const node *n)
{
    size_t start = r->out->bytes;
    if (r->out != r->page)
        return error_set(FSDP_ERR_UNSUPPORTED, "a generation block inside a macro or set is not supported");
    FSDP_TRY(run(r, &n->body));
    return span_append(r->generated, start, r->out->bytes, 1);
}

static fsdp_status run_kind(renderer *r, const node *n)
{
    value v;
    switch (n->kind) {
    case NODE_TEXT:
        return text_append(r->out, n->constant.text, n->constant.bytes);
    case NODE_PRINT:
        FSDP_TRY(renderer_evaluate(r, n->a, &v));
        return value_print(v, r->out);
    case NODE_IF:
        FSDP_TRY(renderer_evaluate(r, n->a, &v));
        return run(r, value_is_true(v) ? &n->body : &n->other);
    case NODE_FOR:
        return run_for(r, n);
    case NODE_SET:
    case NODE_SET_BLOCK:
        return run_set(r, n);
    case NODE_MACRO:
        return renderer_assign(r, n->constant, (value){.kind = VALUE_MACRO, .macro = n});
    case NODE_GENERATION:
        return run_generation(r, n);
    case NODE_BREAK:
    case NODE_CONTINUE:
        r->flow = n->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return FSDP_OK;
    default:
        return error_set(FSDP_ERR_STATE, "an expression where a statement is expected");
    }
}

static bool holds_others(node_kind kind)
{
    return kind == NODE_IF || kind == NODE_FOR || kind == NODE_GENERATION || kind == NODE_SET_BLOCK;
}

/* The innermost statement says where it failed. */
static fsdp_status run(renderer *r, const node_list *body)
{
    r->level++;
    for (size_t i = 0; i < body->n && r->flow == FLOW_ON; i++) {
        const node *n = body->items[i];
        FSDP_TRY(renderer_step(r));
        fsdp_status status = run_kind(r, n);
        if (status != FSDP_OK)
            return holds_others(n->kind) ? status : error_prefix(status, "line %d: ", n->line);
    }
    r->level--;
    return FSDP_OK;
}

fsdp_status template_render(const node_list *body, arena *a, value variables, int64_t now, text_buffer *out,
                            span_vector *generated)
{
    renderer r = {.room = {a, now}, .out = out, .page = out, .generated = generated};
    out->limit = RENDERER_MAX_OUTPUT;
    FSDP_TRY(renderer_push_frame(&r, NULL));
    r.root = r.frame;
    r.root->variables = *variables.dict;
    return run(&r, body);
}
