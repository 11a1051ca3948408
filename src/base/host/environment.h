/* The one place that reads environment variables. */
#ifndef BASE_HOST_ENVIRONMENT_H
#define BASE_HOST_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

/* NULL when unset or empty. */
const char *environment_text(const char *name);
/* NULL when unset: for variables in which "" says something (CUDA_VISIBLE_DEVICES: no GPU). */
const char *environment_value(const char *name);
/* True and *out when set to a whole number; false otherwise. */
bool environment_int(const char *name, int64_t *out);

#endif
