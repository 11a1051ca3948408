/* What a run shows in TensorBoard: scalars over steps and the settings as text. */
#ifndef OBSERVE_BOARD_H
#define OBSERVE_BOARD_H

#include <fsdp/status.h>

#include "observe/figures.h"

typedef struct board board;

/* `settings` is JSON, shown as it is. `after`: the step that a resumed run begins after; later ones of its earlier
 * sessions no longer count. The caller closes *out. */
fsdp_status board_open(const char *folder, const char *settings, int64_t after, board **out);
/* The run went back to `step`: what was written of later ones no longer counts. */
fsdp_status board_rewind(board *b, int64_t step);
fsdp_status board_step(board *b, const step_figures *f);
/* Accuracy is of images, else NaN: then the perplexity is shown. */
fsdp_status board_validation(board *b, int64_t step, double loss, double accuracy);
fsdp_status board_close(board *b); /* flushes and frees, also on failure; NULL is legal */

#endif
