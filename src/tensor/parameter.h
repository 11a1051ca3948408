/* A parameter: a named tensor that training changes. The tensor layer knows its shape, its type and where its full
 * value and full gradient lie at the moment; who owns that memory, and when it is there, is decided above (shard). */
#ifndef TENSOR_PARAMETER_H
#define TENSOR_PARAMETER_H

#include <fsdp/tensor.h>

/* Of a linear layer's weight: how it is stored. */
typedef enum linear_layout {
    LINEAR_NONE,         /* it is none, or one that cannot have an adapter */
    LINEAR_OUTPUT_MAJOR, /* (outputs, inputs) */
    LINEAR_INPUT_MAJOR
} linear_layout;

/* What a shadow step measures of a linear layer: its products in 8 bits against those in the type of its operands. */
typedef struct fp8_figures {
    float output_squares, output_error;     /* of y without bias and residual, and of the difference: sums of squares */
    float gradient_squares, gradient_error; /* of the weight's gradient, likewise */
    uint64_t lost[3][2];                    /* of x, the weight and y's gradient: what fp8_count counts */
} fp8_figures;

/* A low-rank path beside a linear layer: y += scale (dropout(x) a^T) b^T. */
typedef struct lora_path {
    fsdp_parameter *a, *b; /* (rank, inputs), (outputs, rank); NULL: there is none */
    float scale, dropout;
} lora_path;

struct fsdp_parameter {
    const char *name; /* full name, "model.layers.0.mlp.up_proj.weight" */
    int n_dims;
    int64_t shape[FSDP_MAX_DIMS];
    int64_t numel;
    fsdp_dtype dtype;      /* of `data`: what the kernels read */
    fsdp_dtype grad_dtype; /* of `grad`: what the kernels write */
    bool trainable;
    bool int8;            /* frozen, and kept as blocks of 8 bits; `data` has the values they stand for */
    bool decay;           /* weight decay applies */
    fsdp_fp8 fp8;         /* of the linear layer whose weight this is; a group's first member speaks for it */
    bool fp8_fell_back;   /* a shadow step found its errors out of bounds: fp8 is off from then on */
    fp8_figures *figures; /* device memory, where shadow steps are made; NULL: they are not */
    fsdp_init init;
    linear_layout linear;
    lora_path lora;   /* beside the layer whose weight this is */
    bool adapter;     /* this is a matrix of such a path */
    bool output;      /* the layer's results are the model's: it stays in the type of its operands */
    float init_scale; /* standard deviation, or bound of the uniform distribution */

    /* Members of a group lie packed one after another, in this order, so that one gemm serves them (q|k|v). NULL:
     * alone.
     */
    fsdp_parameter *group_next;
    fsdp_parameter *group_head; /* the first member; itself when alone */

    void *data; /* full value; valid while the parameter's unit is gathered, and not as codes alone */
    /* Of a weight in 8 bits, a group's in its first member: the value rounded to E4M3, valid like `data`, and
     * {scale, magnitude} as fp8_cast leaves them; NULL: whoever reads the weight in 8 bits rounds it. */
    void *codes;
    float *codes_scale;
    bool codable; /* it could be kept so, */
    bool coded;   /* and it is */
    void *grad;   /* full gradient; valid while the unit's gradient buffer is held */

    int index; /* position in the model's list of parameters */
    int unit;  /* set by shard */
};

#endif
