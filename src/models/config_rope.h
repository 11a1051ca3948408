/* Rotary positions in config.json: rope_theta and rope_scaling of older files, rope_parameters of newer ones. */
#ifndef MODELS_CONFIG_ROPE_H
#define MODELS_CONFIG_ROPE_H

#include <fsdp/models.h>

#include "base/json.h"

/* c->positions is what the file says. `warns` as in fields_check. */
fsdp_status config_rope_parse(const char *name, const json_t *object, bool warns, fsdp_decoder_config *c);
/* Both forms. False: out of memory. */
bool config_rope_write(json_t *object, const fsdp_decoder_config *c);

#endif
