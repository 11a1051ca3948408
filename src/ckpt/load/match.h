/* Which tensor of a source gives each tensor of a state its values, and what does not fit. */
#ifndef CKPT_LOAD_MATCH_H
#define CKPT_LOAD_MATCH_H

#include "ckpt/load/load.h"
#include "ckpt/load/source.h"

typedef struct ckpt_match {
    const source_tensor **sources; /* (n_tensors); NULL: not loaded */
    unsigned absent;               /* optional roles that the source lacks */
} ckpt_match;

/* Lists every name that is missing, left over or of another shape in one error, and each as a log line. */
fsdp_status ckpt_match_make(const ckpt_source *source, const ckpt_load_config *config, const ckpt_state *state,
                            ckpt_match *out);
void ckpt_match_free(ckpt_match *match); /* legal on a zeroed one */

#endif
