/* Says what was compiled in. The definitions come from the build, where each layer found its packages. */
#include <fsdp/version.h>

#ifdef FSDP_WITH_ONEDNN
#define ONEDNN "oneDNN "
#else
#define ONEDNN ""
#endif
#ifdef FSDP_WITH_MPI
#define MPI "MPI "
#else
#define MPI ""
#endif
#ifdef FSDP_WITH_CRYPTO
#define CRYPTO "libcrypto "
#else
#define CRYPTO ""
#endif
#ifdef FSDP_WITH_CURL
#define CURL "libcurl "
#else
#define CURL ""
#endif
#ifdef FSDP_WITH_HWLOC
#define HWLOC "hwloc "
#else
#define HWLOC ""
#endif
#ifdef FSDP_WITH_UCX
#define UCX "UCX "
#else
#define UCX ""
#endif
#ifdef FSDP_WITH_CUDA
#define CUDA "CUDA "
#else
#define CUDA ""
#endif
#ifdef FSDP_WITH_NCCL
#define NCCL "NCCL "
#else
#define NCCL ""
#endif
#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *fsdp_build_options(void)
{
    return "shm " ONEDNN MPI UCX CUDA NCCL CRYPTO CURL HWLOC "(" COMPILER ")";
}
