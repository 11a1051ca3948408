/* The network of the lecture: two branches look at a picture, their opinions are added, a softmax makes probabilities
 * of them. Ordinary code for one device: nothing here knows of ranks or shards. */
#ifndef LECTURE_NET_H
#define LECTURE_NET_H

#include <fsdp/module.h>

enum { SIDE = 28, CLASSES = 10 };

/* fsdp_call: pictures (N, 1, SIDE, SIDE) -> logarithms of probabilities (N, CLASSES). The caller owns it; NULL or a
 * broken tree after a failure, which fsdp_module_check reports. */
fsdp_module *net_new(void);

#endif
