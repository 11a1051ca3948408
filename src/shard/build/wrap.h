/* Wrap policies: which modules become units. What no unit claims goes to the root unit, except single layers large
 * enough to be worth a unit of their own (embeddings, output heads): they are used at opposite ends of a step. */
#ifndef SHARD_BUILD_WRAP_H
#define SHARD_BUILD_WRAP_H

#include <fsdp/shard.h>

#include "nn/module.h"

/* A module that became a unit; units that were merged have several. */
typedef struct wrapped_module {
    fsdp_module *module;
    int unit;
} wrapped_module;

typedef struct wrap_result {
    char **names; /* of the units, in tree order; the root unit ("root"), if any, last */
    int n_units;
    wrapped_module *modules; /* by unit */
    int n_modules;
} wrap_result;

/* Sets parameter->unit of every parameter of the tree. */
fsdp_status wrap_assign(fsdp_module *root, const module_contents *contents, const fsdp_wrap *policy,
                        int64_t bucket_bytes, wrap_result *out);
void wrap_result_free(wrap_result *r);

/* The error of a setting whose glob matches no unit: lists those that there are. */
fsdp_status wrap_no_such_unit(const char *setting, const char *glob, int n_units, const char *const *names);

/* Whether `type` is one of the types that `list` names, separated by commas; NULL names none. */
bool wrap_lists_type(const char *list, const char *type);

#endif
