/* Modules: a tree with named parameters and buffers, and a forward function that records operations.
 *
 * A module of your own embeds fsdp_module as its first member:
 *
 *     typedef struct { fsdp_module base; fsdp_module *up, *down; } mlp;
 *
 *     static fsdp_tensor *mlp_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
 *     {
 *         mlp *m = (mlp *)self;
 *         return fsdp_call(m->down, t, fsdp_gelu(t, fsdp_call(m->up, t, x)));
 *     }
 *     static const fsdp_module_class mlp_class = {.type = "mlp", .forward = mlp_forward};
 *
 *     mlp *m = fsdp_module_new(&mlp_class, sizeof *m);
 *     m->up = fsdp_module_add(m, "up", fsdp_linear_new(64, 256, true));
 *     m->down = fsdp_module_add(m, "down", fsdp_linear_new(256, 64, true));
 *
 * Constructors return NULL when memory runs out, a broken module when an argument is wrong, and accept NULL where a
 * module is expected, so that one check of the finished tree is enough: fsdp_module_check says what went wrong first.
 */
#ifndef FSDP_MODULE_H
#define FSDP_MODULE_H

#include <stddef.h>

#include <fsdp/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_module fsdp_module;
typedef struct fsdp_buffer fsdp_buffer;

typedef struct fsdp_module_class {
    const char *type; /* what wrap policies name: "llama_block" */
    /* One in, one out; or several. A module has one of the two. */
    fsdp_tensor *(*forward)(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x);
    void (*forward_list)(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                         int n_out);
    void (*destroy)(fsdp_module *self); /* frees what the module owns beyond its base; NULL: nothing */
    void (*reserved[4])(void);          /* NULL: room for what later versions add */
} fsdp_module_class;

struct fsdp_module {
    const fsdp_module_class *module_class;
    const char *name; /* within the parent; "" at the root */
    fsdp_module *parent;
    fsdp_module **children;
    int n_children;
    fsdp_parameter **parameters;
    int n_parameters;
    fsdp_buffer **buffers;
    int n_buffers;
    bool checkpoint;    /* activations of this module are computed again in backward */
    signed char marked; /* then those marked with fsdp_keep are kept (1), are not (-1), or as the model is set (0) */
    bool casts_inputs;  /* floating inputs are cast to input_dtype before forward */
    fsdp_dtype input_dtype;
    fsdp_status broken; /* why something could not be added; FSDP_OK: nothing failed */
    char *broken_message;
    void *facts; /* the library's: what a ready-made model was built from; NULL for all others */
    void
        *reserved[7]; /* NULL: room for what later versions add, so that structs that begin with a module keep theirs */
};

/* Zeroed memory of `bytes` that begins with an fsdp_module. The class must stay valid as long as the module. NULL when
 * memory ran out or `bytes` is less than a module. */
FSDP_API void *fsdp_module_new(const fsdp_module_class *module_class, size_t bytes);
/* The tree below included. NULL is legal. */
FSDP_API void fsdp_module_free(fsdp_module *m);
/* `parent` takes `child` (frees it when it cannot) and returns it. `parent` is a module or a struct that begins with
 * one. A child that is NULL, since it could not be made, breaks the parent: fsdp_module_check says what the child
 * failed of. */
FSDP_API fsdp_module *fsdp_module_add(void *parent, const char *name, void *child);
/* FSDP_OK when every part of the tree came into being; otherwise the first failure among its parts, with its message.
 * For NULL: this thread's last failure. */
FSDP_API fsdp_status fsdp_module_check(const fsdp_module *m);

/* A parameter of module `m`, which owns it; `shape` is copied. Its initial value follows from the seed and its name.
 * NULL, and a broken module, when a size is not positive or memory runs out. */
FSDP_API fsdp_parameter *fsdp_module_parameter(void *m, const char *name, int n_dims, const int64_t *shape,
                                               fsdp_init init, float scale);
/* Replaces the layer's own initial value; call it before the model is sharded. NULL is legal. */
FSDP_API void fsdp_parameter_set_init(fsdp_parameter *p, fsdp_init init, float scale);
/* Lays the parameters out one after another, so that one gemm can read them as one matrix. All have the same columns.
 */
FSDP_API void fsdp_parameter_group(fsdp_parameter *const *members, int n);

/* Memory that outlives steps and is not trained. `values` (copied) may be NULL: zeros. Persistent ones are saved in
 * checkpoints. */
FSDP_API fsdp_buffer *fsdp_module_buffer(void *m, const char *name, int n_dims, const int64_t *shape,
                                         const float *values, bool persistent);

/* ---- On the tape, during forward. ---- */

FSDP_API fsdp_tensor *fsdp_use(fsdp_tape *t, fsdp_parameter *p);       /* the parameter */
FSDP_API fsdp_tensor *fsdp_use_group(fsdp_tape *t, fsdp_parameter *p); /* p heads a group: all members as one matrix */
/* The buffer, as a tensor. */
FSDP_API fsdp_tensor *fsdp_use_buffer(fsdp_tape *t, fsdp_buffer *b);
/* Runs a module of one input and one output. NULL where m or x is. */
FSDP_API fsdp_tensor *fsdp_call(fsdp_module *m, fsdp_tape *t, fsdp_tensor *x);
/* Runs a module of several inputs and outputs. After an error every out[i] is NULL. */
FSDP_API void fsdp_call_list(fsdp_module *m, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                             int n_out);

/* ---- Ready-made layers. The caller owns them until fsdp_module_add. ---- */

/* fsdp_linear with parameters "weight" (out, in) and "bias" (out). */
FSDP_API fsdp_module *fsdp_linear_new(int64_t in_features, int64_t out_features, bool bias);
/* fsdp_embedding with a parameter "weight" (vocabulary, columns). */
FSDP_API fsdp_module *fsdp_embedding_new(int64_t vocabulary, int64_t columns);
/* The row `padding` of such a layer takes no gradient (fsdp_embedding_padded). */
FSDP_API void fsdp_embedding_set_padding(fsdp_module *embedding, int64_t padding);
/* fsdp_rmsnorm with a parameter "weight" (columns). */
FSDP_API fsdp_module *fsdp_rmsnorm_new(int64_t columns, float eps);
/* fsdp_rmsnorm_plus_one with a parameter "weight" (columns), at first 0. */
FSDP_API fsdp_module *fsdp_rmsnorm_plus_one_new(int64_t columns, float eps);
/* fsdp_layernorm with parameters "weight" and "bias" (columns). */
FSDP_API fsdp_module *fsdp_layernorm_new(int64_t columns, float eps);
/* fsdp_conv2d with parameters "weight" (out, in, height, width) and "bias" (out). */
FSDP_API fsdp_module *fsdp_conv2d_new(int64_t in_channels, int64_t out_channels, fsdp_window window, bool bias);
/* The same with channels in groups that do not mix. */
FSDP_API fsdp_module *fsdp_conv2d_grouped_new(int64_t in_channels, int64_t out_channels, fsdp_window window,
                                              int64_t groups, bool bias);
/* fsdp_conv1d with parameters "weight" (out, in / groups, kernel) and "bias" (out). */
FSDP_API fsdp_module *fsdp_conv1d_new(int64_t in_channels, int64_t out_channels, int64_t kernel, int64_t stride,
                                      int64_t padding, int64_t groups, bool bias);
/* fsdp_group_norm with parameters "weight" and "bias" (channels). */
FSDP_API fsdp_module *fsdp_group_norm_new(int64_t groups, int64_t channels, float eps);
/* fsdp_batchnorm2d with parameters "weight" and "bias" and persistent buffers of running statistics (channels). */
FSDP_API fsdp_module *fsdp_batchnorm2d_new(int64_t channels, float eps, float momentum);
/* Calls its children one after another. */
FSDP_API fsdp_module *fsdp_sequential_new(void);
/* fsdp_relu as a module. */
FSDP_API fsdp_module *fsdp_relu_new(void);
FSDP_API fsdp_module *fsdp_flatten_new(void); /* (N, ...) -> (N, rest) */
/* fsdp_max_pool2d as a module. */
FSDP_API fsdp_module *fsdp_max_pool2d_new(fsdp_window window);
/* fsdp_avg_pool2d as a module. */
FSDP_API fsdp_module *fsdp_avg_pool2d_new(fsdp_window window);
/* One step of a GRU, with PyTorch's gates and names. fsdp_call_list: (x (N, in), h (N, hidden)) -> h. */
FSDP_API fsdp_module *fsdp_gru_cell_new(int64_t in_features, int64_t hidden);
/* One step of an LSTM, with PyTorch's gates and names. fsdp_call_list: (x (N, in), h (N, hidden), c (N, hidden)) -> (h,
 * c). */
FSDP_API fsdp_module *fsdp_lstm_cell_new(int64_t in_features, int64_t hidden);
/* The weight of a layer that has one, for tying or another initial value; NULL otherwise. */
FSDP_API fsdp_parameter *fsdp_module_weight(fsdp_module *m);
/* The bias of a layer that has one; NULL otherwise. */
FSDP_API fsdp_parameter *fsdp_module_bias(fsdp_module *m);

#ifdef __cplusplus
}
#endif
#endif
