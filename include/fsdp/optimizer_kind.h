/* The optimizers there are; apart from optim.h, so that kernels can name them. */
#ifndef FSDP_OPTIMIZER_KIND_H
#define FSDP_OPTIMIZER_KIND_H

typedef enum fsdp_optimizer_kind { FSDP_ADAMW, FSDP_ADAM, FSDP_SGD } fsdp_optimizer_kind;

#endif
