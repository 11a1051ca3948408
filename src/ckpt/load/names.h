/* Names under which files keep a model's weights: not every file has the model's own. */
#ifndef CKPT_LOAD_NAMES_H
#define CKPT_LOAD_NAMES_H

#include "ckpt/load/source.h"

/* What the file calls the model's tensor: the same, the same without the model's prefix, or, of an embedding, a name
 * of what is tied to it. `tied`: the head is. The name itself where nothing is found. */
const char *names_find(const ckpt_source *source, ckpt_role role, bool tied, const char *name);

/* The embedding; without one of its own, what is tied to it. NULL: none. */
const source_tensor *names_embedding(const ckpt_source *source);

#endif
