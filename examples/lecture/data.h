/* The pictures of the lecture: MNIST's files where there are any, made-up digits otherwise. */
#ifndef LECTURE_DATA_H
#define LECTURE_DATA_H

#include <fsdp/data.h>

/* Opens pictures for training or, with `validation`, others to test on. `folder` holds train-images-idx3-ubyte,
 * train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz; NULL: `count` digits are
 * made up. Either way a sample has "pixels" fp32 (1, SIDE, SIDE) and "classes" int32. The caller frees *out. */
fsdp_status data_open(const char *folder, bool validation, int64_t count, fsdp_dataset **out);

#endif
