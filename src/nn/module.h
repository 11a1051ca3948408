/* The module tree seen from inside the library: lists of parameters and buffers with full names. */
#ifndef NN_MODULE_H
#define NN_MODULE_H

#include <fsdp/module.h>

#include "tensor/parameter.h"

struct fsdp_buffer {
    const char *name; /* full name after module_finish */
    int n_dims;
    int64_t shape[FSDP_MAX_DIMS];
    int64_t numel;
    bool persistent;
    float *initial; /* (numel), host */
    float *data;    /* device memory, fp32; set by the code that places the model */
};

/* Everything a tree holds, in tree order (a parent's own before its children's). Arrays are the caller's to free. */
typedef struct module_contents {
    fsdp_parameter **parameters;
    int n_parameters;
    fsdp_buffer **buffers;
    int n_buffers;
} module_contents;

/* Gives parameters and buffers their full names and indices, and lists them. Call once, when the tree is complete. */
fsdp_status module_finish(fsdp_module *root, module_contents *out);
void module_contents_free(module_contents *contents);

/* The parameter or buffer with that full name, or NULL. */
fsdp_parameter *module_find_parameter(const module_contents *contents, const char *name);
fsdp_buffer *module_find_buffer(const module_contents *contents, const char *name);

/* Calls `visit` for the tree, parents first; stops at false. `path` is the module's full name. */
typedef bool (*module_visitor)(void *context, fsdp_module *m, const char *path);
bool module_walk(fsdp_module *root, module_visitor visit, void *context);

/* Values first .. first+n-1 of the parameter's initial value: the same bits however the parameter is cut. */
void parameter_initial_values(const fsdp_parameter *p, uint64_t seed, int64_t first, int64_t n, float *out);

#endif
