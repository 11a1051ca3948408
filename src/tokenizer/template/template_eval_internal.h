/* What the two halves of a rendering share: template_eval.c runs statements, template_evaluate.c computes expressions.
 */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_EVAL_INTERNAL_H
#define TOKENIZER_TEMPLATE_TEMPLATE_EVAL_INTERNAL_H

#include "tokenizer/template/template_builtins.h"
#include "tokenizer/template/template_eval.h"

typedef struct frame {
    value_dict variables;
    struct frame *parent;
} frame;

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

typedef struct renderer {
    builtin_room room;
    frame *frame, *root;
    text_buffer *out, *page; /* where text goes now; where the whole goes */
    span_vector *generated;
    int n_steps, level;
    flow flow;
} renderer;

/* Counts a step; an error past the bounds of time, memory and depth. */
fsdp_status renderer_step(renderer *r);

/* Variables: a frame inside `parent`, which r->frame is then; setting one in it; finding one in it or outside. */
fsdp_status renderer_push_frame(renderer *r, frame *parent);
fsdp_status renderer_assign(renderer *r, value name, value v);
value renderer_look_up(const renderer *r, value name);

fsdp_status renderer_evaluate(renderer *r, const node *n, value *out);
/* What `body` prints, as a string. */
fsdp_status renderer_capture(renderer *r, const node_list *body, value *out);

/* The most that a template may print. */
#define RENDERER_MAX_OUTPUT ((size_t)64 << 20)

#endif
