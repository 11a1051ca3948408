/* The table behind fsdp_settings, for the files that translate settings; others call fsdp_settings_flags. */
#ifndef SETTINGS_SETTINGS_TABLE_H
#define SETTINGS_SETTINGS_TABLE_H

#include <fsdp/settings.h>

enum { PLAN_MAX_RANKS = 65536 }; /* that a plan is made for */

/* A row for every field of fsdp_settings that can be set; ends with a row without a name. */
extern const fsdp_flag settings_table[];

/* Settings come from fsdp_settings_init of this very version: the table's offsets are those of its struct. */
fsdp_status settings_check_size(const fsdp_settings *settings);

/* The numbers of --shard_weights, each from 1 to a million; `out` (s->shard_weights.n) may be NULL to check them only.
 */
fsdp_status settings_shard_weights(const fsdp_settings *s, int *out);

/* Adds a line to `notes`: something that was given and does nothing. */
fsdp_status settings_note(fsdp_settings *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
