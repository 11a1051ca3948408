/* From a batch of data to a recorded loss: what the models want of which kind of data. */
#ifndef TRAIN_RECORD_H
#define TRAIN_RECORD_H

#include "train/run.h"

/* Batches of text and pairs all have the same number of rows; of images the last of an epoch has fewer. Rows that only
 * pad count for nothing. */
fsdp_loss record_loss(const train_run *run, fsdp_tape *t, const fsdp_batch *batch);

/* FSDP_OK when this model can be trained, or validated, on this data; otherwise the message begins with `what` it is.
 */
fsdp_status record_check(const char *what, const model_config *model, const fsdp_dataset_info *data);

#endif
