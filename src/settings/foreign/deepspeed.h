/* How ds_config.json's optimizer and scheduler are read; for deepspeed.c. */
#ifndef SETTINGS_FOREIGN_DEEPSPEED_H
#define SETTINGS_FOREIGN_DEEPSPEED_H

#include "settings/foreign/foreign.h"

extern const foreign_row deepspeed_optimizer_params[], deepspeed_scheduler_params[];

/* The sections of those names; NULL where the file has none. */
fsdp_status deepspeed_take_optimizer(foreign_file *f, const json_t *optimizer);
fsdp_status deepspeed_take_scheduler(foreign_file *f, const json_t *scheduler);

#endif
