/* Gradients against finite differences, for operations, losses and layers as a program records them. */
#ifndef TESTS_API_SUPPORT_DIFFERENCES_H
#define TESTS_API_SUPPORT_DIFFERENCES_H

#include "api/support_ranks.h"

/* Every case has a parameter "p" (ROWS, COLUMNS). */
enum { ROWS = 3, COLUMNS = 4 };

typedef struct op_case {
    const char *name;
    fsdp_module *(*layer)(void);                                             /* NULL: none */
    fsdp_tensor *(*value)(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer); /* NULL: loss */
    fsdp_loss (*loss)(fsdp_tape *t, fsdp_tensor *p);
} op_case;

/* value_NAME, an expression of the tape t, the parameter p and the layer. */
#define VALUE(name, expression)                                                                                        \
    static fsdp_tensor *value_##name(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)                                 \
    {                                                                                                                  \
        (void)layer;                                                                                                   \
        return expression;                                                                                             \
    }

/* Rows of a table of cases: value_NAME; value_NAME of the layer that NAME() makes; loss_NAME. */
#define CASE(name)                                                                                                     \
    {                                                                                                                  \
#name, NULL, value_##name, NULL                                                                                \
    }
#define LAYER(name)                                                                                                    \
    {                                                                                                                  \
#name, name, value_##name, NULL                                                                                \
    }
#define LOSS(name)                                                                                                     \
    {                                                                                                                  \
#name, NULL, NULL, loss_##name                                                                                 \
    }

/* An int32 input of one or two dimensions. */
fsdp_tensor *ints(fsdp_tape *t, const int32_t *values, int n_dims, int64_t rows, int64_t columns);

/* Fails the test and says the name of a case whose gradient of any parameter, its layer's included, is not what finite
 * differences of its value say, on two ranks that share the parameters. */
void check_differences(const op_case *cases, size_t n);

#endif
