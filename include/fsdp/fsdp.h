/* Everything: what a program with its own model includes. */
#ifndef FSDP_FSDP_H
#define FSDP_FSDP_H

#include <fsdp/crash.h>
#include <fsdp/dtype.h>
#include <fsdp/memory.h>
#include <fsdp/models.h>
#include <fsdp/module.h>
#include <fsdp/operation.h>
#include <fsdp/ops.h>
#include <fsdp/optim.h>
#include <fsdp/shard.h>
#include <fsdp/status.h>
#include <fsdp/tensor.h>
#include <fsdp/world.h>

#endif
