/* Known models: their published shapes and a recipe to train them. */
#ifndef SETTINGS_PRESETS_H
#define SETTINGS_PRESETS_H

#include <fsdp/settings.h>

typedef struct preset_setting {
    const char *name; /* of a flag; NULL ends the list */
    const char *value;
} preset_setting;

/* What the preset sets, as flags; an empty list for FSDP_PRESET_NONE. */
const preset_setting *preset_settings(fsdp_preset preset);

#endif
