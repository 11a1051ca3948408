/* Files of a data set that come from the hub while it is read: the one that is needed is waited for, and the next one
 * is fetched meanwhile. */
#ifndef DATA_ARRIVAL_H
#define DATA_ARRIVAL_H

#include "format/hub/hub_files.h"

typedef struct arrival arrival;

/* *out is NULL when the data set is in the cache and the hub cannot be reached. */
fsdp_status arrival_open(const char *name, const char *config, arrival **out);
arrival *arrival_share(arrival *a); /* one more release to come; returns a */
void arrival_release(arrival *a);   /* NULL is legal; ends what is fetched in the background */

hub_files *arrival_files(arrival *a);
/* Returns when the file is there. One that failed in the background is tried again here. While *stop is true, the wait
 * ends soon with FSDP_ERR_STATE; NULL: never. */
fsdp_status arrival_await(arrival *a, size_t index, const atomic_bool *stop);
/* Will be awaited next: fetched in the background, unless another one still is. */
void arrival_expect(arrival *a, size_t index);
/* Grows while bytes come. */
int64_t arrival_moves(const arrival *a);

#endif
