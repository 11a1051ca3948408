/* The stable core: what a program with its own model includes. It keeps its promises across versions: symbols have
 * versions, structs that may grow begin with their size or have reserved room, enums grow at their end. What serves the
 * command first (settings, train, plan, bench, generate, flags, launch) promises less, and is included by name. */
#ifndef FSDP_FSDP_H
#define FSDP_FSDP_H

#include <fsdp/checkpoint.h>
#include <fsdp/crash.h>
#include <fsdp/data.h>
#include <fsdp/dtype.h>
#include <fsdp/kinds.h>
#include <fsdp/log.h>
#include <fsdp/lora.h>
#include <fsdp/memory.h>
#include <fsdp/models.h>
#include <fsdp/module.h>
#include <fsdp/operation.h>
#include <fsdp/ops.h>
#include <fsdp/optim.h>
#include <fsdp/shard.h>
#include <fsdp/state.h>
#include <fsdp/status.h>
#include <fsdp/tensor.h>
#include <fsdp/tokenizer.h>
#include <fsdp/version.h>
#include <fsdp/world.h>

#endif
