/* A sharded model with its optimizer as a checkpoint sees it: named tensors and this rank's slices of them. */
#ifndef STATE_MODEL_STATE_H
#define STATE_MODEL_STATE_H

#include "ckpt/format/state.h"
#include "ckpt/load/source.h"
#include "format/weights/adapter.h"
#include "shard/step/optimizer.h"

typedef struct model_state model_state;

/* What of a model is listed. */
typedef struct model_view {
    bool without_adapters; /* the model that they are beside */
    bool without_base;     /* the adapters alone, and buffers */
    bool all_base; /* all weights are a base's, to be digested as they are loaded, though there are no adapters */
    const adapter *merged;   /* added to the weights as they are read; NULL: none */
    const ckpt_source *base; /* frozen weights that are not kept in fp32 are read from here; NULL: as they are kept */
} model_view;

/* Whether the model is a frozen base with adapters, which are all that is trained. */
bool model_state_has_base(const fsdp_model *m);

/* Borrows all; the optimizer may be NULL (weights only), and the view (everything, as it is). */
fsdp_status model_state_create(fsdp_model *m, fsdp_optimizer *o, const model_view *view, model_state **out);
void model_state_free(model_state *s);

/* The description that ckpt_save and ckpt_load take; extra is the caller's to set. Lives as long as the state. */
ckpt_state *model_state_describe(model_state *s);

/* Ranks with the same number hold the same slices of the units that several ranks hold; -1: this rank alone has its. */
int model_state_replica(const model_state *s);
bool model_state_is_replicated(const model_state *s, const ckpt_slice *slice); /* of such a unit */

/* Before a save: the update of offloaded units that may still run is over. */
fsdp_status model_state_settle(model_state *s);
/* Before a load: that, and peers have read what they gathered. */
fsdp_status model_state_before_load(model_state *s);

/* After a load: what peers gather follows the new parameters. */
fsdp_status model_state_loaded(model_state *s);

#endif
