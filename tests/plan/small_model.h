/* A small decoder as a workload, and how it is sharded. */
#ifndef TESTS_PLAN_SMALL_MODEL_H
#define TESTS_PLAN_SMALL_MODEL_H

#include "plan/workload.h"

static inline workload small(void)
{
    workload w = {.model = model_config_default(MODEL_DECODER), .batch = 4, .width = 64, .moments = 2};
    fsdp_decoder_config *c = &w.model.decoder;
    c->vocabulary = 512, c->hidden = 64, c->intermediate = 160, c->layers = 5, c->heads = c->kv_heads = 4;
    c->head_dim = 16, c->positions = 64;
    return w;
}

static inline fsdp_config sharding(fsdp_strategy strategy, fsdp_checkpointing checkpointing)
{
    fsdp_config c = FSDP_CONFIG_INIT;
    c.strategy = strategy;
    c.checkpointing = checkpointing;
    c.param_dtype = FSDP_BF16;
    c.wrap = fsdp_wrap_by_type("llama_block");
    return c;
}

#endif
