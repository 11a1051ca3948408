/* Rotary positions: how fast each pair of a head turns, after the scaling that a configuration asks for. */
#ifndef MODELS_ROPE_H
#define MODELS_ROPE_H

#include <fsdp/models.h>

fsdp_status rope_check(const fsdp_decoder_config *c);

/* Cosines and sines of all positions, (positions, head_dim/2), as buffers "NAME.cosine" and "NAME.sine" of `module`.
 * local: those of layers with a window. */
void rope_tables_add(fsdp_module *module, const char *name, const fsdp_decoder_config *c, bool local,
                     fsdp_buffer **cosine, fsdp_buffer **sine);

#endif
