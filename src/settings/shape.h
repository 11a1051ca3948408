/* The shape of a model as flags have it and as its configuration has it: one row a field, for both directions. */
#ifndef SETTINGS_SHAPE_H
#define SETTINGS_SHAPE_H

#include <fsdp/settings.h>

#include "models/config.h"

/* Fills the part of out->type from the flags. */
void shape_from_flags(const fsdp_settings *s, model_config *out);

/* Overlays the flags with the model's shape, as coming from the model. A value that the user gave and that differs is
 * refused by name; 0 there means "as the model's". */
fsdp_status shape_to_flags(fsdp_settings *s, const model_config *model);

#endif
