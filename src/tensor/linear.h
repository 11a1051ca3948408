/* What the two forms of a linear layer share: in the type of its operands (ops_linear.c) and in 8 bits (ops_fp8.c). */
#ifndef TENSOR_LINEAR_H
#define TENSOR_LINEAR_H

#include "tensor/op.h"

/* Inputs: x (rows, k), weight (n, k), bias (n) or NULL, residual (rows, n) or NULL. Output 0: y (rows, n). */
enum { LINEAR_X, LINEAR_WEIGHT, LINEAR_BIAS, LINEAR_RESIDUAL, LINEAR_INPUTS };

/* y (..., n) with x (..., k) weight^T, weight (m, k), added to its columns first .. first+m-1; x and y have the same
 * rows. */
fsdp_tensor *linear_add_columns(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *y, int64_t first);

/* What backward reads, as saves_inputs: x for the gradient of a weight that is trained, the weight for x's gradient. */
uint32_t linear_saves(fsdp_tensor *const inputs[LINEAR_INPUTS]);

/* Gradients of bias and residual, which are sums of y's gradient; dy is whole. */
fsdp_status linear_backward_sums(const run_context *c, const node *n);
/* Scratch bytes of that. */
size_t linear_sums_workspace(const device *d, const node *n);

/* Whether the layer's weight asks for 8 bits and its shape has products of that kind; of any number of rows. */
bool fp8_serves(const fsdp_tensor *x, const fsdp_tensor *weight);
/* Records it; the inputs have been checked. Returns y, or NULL when the tape has failed. */
fsdp_tensor *fp8_linear(fsdp_tape *t, fsdp_tensor *const inputs[LINEAR_INPUTS], fsdp_tensor *y);

/* The layer in the type of its operands, as an operation: attributes are ops_linear.c's. */
fsdp_status linear_forward(const run_context *c, const node *n);
fsdp_status linear_backward(const run_context *c, const node *n);
size_t linear_workspace(const device *d, const node *n, bool backward);
/* The same operation, which also measures what the layer would compute in 8 bits (ops_fp8_shadow.c); of batches whose
 * rows are a multiple of this. */
enum { SHADOW_ROWS = 16 };
extern const op_def linear_shadow_op;

/* For the only reader of a tensor, whose backward knows the magnitude of the gradient it writes: an input to record
 * beside it and save. NULL where the tensor does not come from a layer in 8 bits. */
fsdp_tensor *fp8_gradient_scales(const fsdp_tensor *x);
/* Where such a backward leaves it. */
float *fp8_gradient_magnitude(const run_context *c, const fsdp_tensor *scales);

#endif
