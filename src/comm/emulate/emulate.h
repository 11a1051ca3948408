/* What the bench asks of an emulated world. */
#ifndef COMM_EMULATE_EMULATE_H
#define COMM_EMULATE_EMULATE_H

#include "comm/comm.h"

/* Collectives of a world that is emulated take no time from now on, or again what its links say. */
void emulate_without_links(comm *c, bool without);

/* Seconds that the collectives since the last call were given. */
double emulate_take_seconds(comm *c);

#endif
