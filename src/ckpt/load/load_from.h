/* One rank's share of a load, without agreement: what ckpt_load and ckpt_resume are made of. */
#ifndef CKPT_LOAD_LOAD_FROM_H
#define CKPT_LOAD_LOAD_FROM_H

#include "ckpt/load/load.h"

/* *corrupt tells a damaged checkpoint (another may do) from one that does not fit the model (none will). */
fsdp_status load_from(const char *path, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                      bool *corrupt, ckpt_load_result *result);

/* From parts of kind local that together hold all elements, whoever wrote them; what several hold is taken from the
 * first. The first part says what else the checkpoint remembers. *corrupt: the parts are at fault. */
fsdp_status load_from_parts(char *const *paths, int n, const ckpt_load_config *config, const ckpt_state *state,
                            bool *corrupt, ckpt_load_result *result);

#endif
