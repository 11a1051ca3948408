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

/* Whether the layer's weight asks for 8 bits and its shape has products of that kind; of any number of rows, also 0. */
bool fp8_serves(const fsdp_tensor *weight);
/* Records it; the inputs have been checked. Returns y, or NULL when the tape has failed. */
fsdp_tensor *fp8_linear(fsdp_tape *t, fsdp_tensor *const inputs[LINEAR_INPUTS], fsdp_tensor *y);

/* The layer in the type of its operands, as an operation: attributes are ops_linear.c's. */
fsdp_status linear_forward(const run_context *c, const node *n);
fsdp_status linear_backward(const run_context *c, const node *n);
size_t linear_workspace(const device *d, const node *n, bool backward);
/* The same operation, which also measures what the layer would compute in 8 bits (ops_fp8_shadow.c). */
extern const op_def linear_shadow_op;

/* Rows that products in 8 bits are made of: `rows` filled up to what the GPU wants. */
int64_t fp8_padded_rows(int64_t rows);
/* Rounds x (a->rows); q and qt have filled-up rows, of zeros. That takes room for q. */
fsdp_status fp8_cast_padded(const run_context *c, fp8_cast_args *a, buffer room);

/* For an operation about to be recorded whose backward can leave the magnitude of x's gradient (op_def.scales): the
 * input to record for that, and to save. NULL where nobody asks: x does not come from a layer in 8 bits, or it has been
 * read before, so that another one writes last to its gradient. */
fsdp_tensor *fp8_gradient_scales(const fsdp_tape *t, const fsdp_tensor *x);
/* Where such a backward leaves it; NULL where nobody asked. */
float *fp8_gradient_magnitude(const run_context *c, const node *n);
/* Where forward leaves that of output 0 (op_def.magnitude); NULL where nobody asked. */
float *fp8_output_magnitude(const run_context *c, const node *n);
/* The same by a pass of its own: of n elements of x. */
fsdp_status fp8_measure(const run_context *c, buffer x, int64_t n, float *magnitude);

#endif
