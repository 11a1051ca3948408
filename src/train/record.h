/* From a batch of data to a recorded loss: what the models want of which kind of data. */
#ifndef TRAIN_RECORD_H
#define TRAIN_RECORD_H

#include <fsdp/shard.h>

#include "data/loader.h"
#include "models/config.h"

/* Records all rows of the batch arrays, so that every batch has the same shape; rows from n_rows on do not count. A
 * short batch of images has fewer rows, and batch norm is told which of them are empty. */
fsdp_loss record_loss(fsdp_model *m, fsdp_tape *t, const model_config *model, const dataset_info *data,
                      const loader_batch *batch);

/* The same for images, with the logits (rows, classes) as an output besides the loss. */
fsdp_loss record_classes(fsdp_model *m, fsdp_tape *t, const model_config *model, const dataset_info *data,
                         const loader_batch *batch, fsdp_tensor **logits);

/* FSDP_OK when this model can be trained, or validated, on this data; otherwise the message begins with `what` it is.
 */
fsdp_status record_check(const char *what, const model_config *model, const dataset_info *data);

#endif
