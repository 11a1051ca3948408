/* Settings as a run uses them: what was left open is filled in from the model and from what was chosen, every value
 * with where it comes from. For the settings file, TensorBoard and --dry_run. */
#ifndef SETTINGS_SETTINGS_USED_H
#define SETTINGS_SETTINGS_USED_H

#include <fsdp/settings.h>

#include "base/json.h"
#include "models/config.h"

/* The architecture that the model's configuration file names. FSDP_ERR_INPUT when another was given. */
fsdp_status settings_take_type(fsdp_settings *s, const model_config *model);
/* The folder of the model, whose tokenizer is used since none was named; borrowed. */
void settings_take_tokenizer(fsdp_settings *s, const char *folder);
/* The sharding as it was chosen. */
void settings_take_sharding(fsdp_settings *s, const fsdp_config *sharding);

/* All settings of `fsdp train` by group, those that differ from their default marked; malloc'd. */
fsdp_status settings_used_text(const fsdp_settings *used, char **text);
/* {"lr": {"value": 0.1, "from": "command line"}, ...}; NULL when memory has run out. */
json_t *settings_used_json(const fsdp_settings *used);

#endif
