/* Adapters between a sharded model and host memory. */
#ifndef STATE_ADAPTER_H
#define STATE_ADAPTER_H

#include "format/weights/adapter.h"
#include "shard/model.h"

/* The model's adapters, whole on every rank; *out is NULL where it has none. The caller frees it. Collective. */
fsdp_status adapter_of_model(fsdp_model *m, adapter **out);

#endif
