/* Does a job fit the memory of its device? Asked before anything is allocated; and the strategy "auto". */
#ifndef TRAIN_FIT_H
#define TRAIN_FIT_H

#include "train/run.h"

/* With strategy auto: chooses the fastest setting that fits what is available. Otherwise: FSDP_ERR_INPUT, naming flags
 * that would fit, when the plan is larger than what is available; a choice by size is replaced by one that fits.
 * Changes run->sharding; its reason says why. */
fsdp_status fit_sharding(train_run *run, int64_t n_parameters);

#endif
