/* Copies of snapshots between nodes: a launcher serves the folder in which it holds parts (folders of plain files), and
 * ranks of other nodes put theirs there or take them back. A part appears under its name complete, or not at all. The
 * messages go through server.h and client.h, so only those who know the job's secret are heard. */
#ifndef MEET_VAULT_H
#define MEET_VAULT_H

#include "meet/client.h"

/* For server_config.serve; `context` is the path of the folder. False: the message makes no sense. */
bool vault_serve(void *context, uint32_t kind, const void *body, size_t bytes, wire_body *answer);

/* The part `name` of this folder becomes one of the vault, in the place of one with that name. `id` tells attempts
 * apart: letters and digits. */
fsdp_status vault_put(client *c, const char *folder, const char *name, const char *id);
/* The other way round. */
fsdp_status vault_take(client *c, const char *folder, const char *name, const char *id);

#endif
