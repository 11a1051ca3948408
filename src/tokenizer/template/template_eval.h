/* Rendering a parsed template with given variables. Bounded in time, memory and output, as templates are not trusted.
 */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_EVAL_H
#define TOKENIZER_TEMPLATE_TEMPLATE_EVAL_H

#include "tokenizer/template/template_parser.h"

/* Appends the text to `out` and the {% generation %} parts of it to `generated`. `variables` is a dict in `a`, which
 * also gets what the rendering makes. `now` is strftime_now's time, 0 the clock's. Errors name the line. */
fsdp_status template_render(const node_list *body, arena *a, value variables, int64_t now, text_buffer *out,
                            span_vector *generated);

#endif
