/* Logits of a model of the program's own: it has no cache that we know, so the last `window` tokens are read anew for
 * every token. One program serves all lengths: what follows the text is padding that a causal model does not see, and
 * the row of the last token is chosen by an input. */
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "generate/generate.h"

fsdp_status own_logits(text_writer *w, fsdp_model *m)
{
    const fsdp_generate_config *c = w->config;
    int64_t n = min_i64(w->n, c->window), shape[] = {1, c->window};
    int32_t last = (int32_t)(n - 1);
    if (!w->window && !(w->window = calloc((size_t)c->window, sizeof *w->window)))
        return error_set(FSDP_ERR_MEMORY, "a window of %lld tokens: out of host memory", (long long)c->window);
    for (int64_t i = 0; i < n; i++)
        w->window[i] = w->ids[w->n - n + i];
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *out = c->logits(fsdp_model_module(m), t, fsdp_input(t, FSDP_I32, 2, shape, w->window));
    FSDP_TRY(fsdp_tape_status(t));
    if (!out || fsdp_tensor_dims(out) != 3 || fsdp_tensor_size(out, 0) != 1 || fsdp_tensor_size(out, 1) != c->window)
        return error_set(FSDP_ERR_INPUT, "logits of a window of %lld tokens must have the shape (1, %lld, vocabulary)",
                         (long long)c->window, (long long)c->window);
    FSDP_TRY(text_writer_allocate(w, fsdp_tensor_size(out, 2)));
    FSDP_TRY(text_writer_check_vocabulary(w));
    out = fsdp_output(t, fsdp_index_select(t, out, 1, fsdp_input(t, FSDP_I32, 1, (int64_t[]){1}, &last)));
    FSDP_TRY(fsdp_evaluate(t));
    return fsdp_read(out, w->logits, w->vocabulary);
}
