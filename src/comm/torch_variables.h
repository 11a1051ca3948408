/* Variables that jobs of PyTorch set for its process groups, and what they are here. */
#ifndef COMM_TORCH_VARIABLES_H
#define COMM_TORCH_VARIABLES_H

/* One warning that names those that are set and have no effect, with what does the same; nothing when none is. */
void torch_variables_check(void);

#endif
