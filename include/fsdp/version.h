/* What this copy of the library is. */
#ifndef FSDP_VERSION_H
#define FSDP_VERSION_H

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What was compiled in, for `fsdp --version` and bug reports: "oneDNN MPI CUDA NCCL, gcc 12.2.0". */
FSDP_API const char *fsdp_build_options(void);

#ifdef __cplusplus
}
#endif
#endif
