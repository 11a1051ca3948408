/* config.json of the decoders: what the fields of each family mean together, both ways. */
#ifndef MODELS_CONFIG_DECODER_H
#define MODELS_CONFIG_DECODER_H

#include <fsdp/models.h>

#include "models/config_fields.h"

/* The family whose model_type is `name` and its tables of fields (NULL ends the list); false: none has it. */
bool decoder_family_find(const char *name, fsdp_family *family, const config_field *tables[4]);

/* `c` has the family; the rest comes from the object. `warns` as in fields_check. */
fsdp_status decoder_config_parse(const char *name, const json_t *object, bool warns, fsdp_decoder_config *c);

/* A whole file, or NULL when memory runs out. The caller owns it. */
json_t *decoder_config_json(const fsdp_decoder_config *c);
/* Sets what differs from `before` in `object`. False: out of memory. */
bool decoder_config_update(json_t *object, const fsdp_decoder_config *before, const fsdp_decoder_config *c);

#endif
