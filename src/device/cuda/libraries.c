/* Finds and opens cuBLASLt and cuDNN: where the loader looks (LD_LIBRARY_PATH), in the folders that FSDP_CUDA_LIBRARIES
 * names, then in the usual places. Leaves what is done with them to gemm.c and cudnn_plans.c. */
#include "device/cuda/libraries.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/host/environment.h"
#include "base/error.h"
#include "device/cuda/cuda.h"

static const char *const usual_folders[] = {
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/extras/CUPTI/lib64",
    "/usr/lib/x86_64-linux-gnu",
};

static void *open_in(const char *folder, size_t folder_length, const char *name)
{
    char path[1024];
    int length = snprintf(path, sizeof path, "%.*s/%s", (int)folder_length, folder, name);
    return length > 0 && (size_t)length < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

void *cuda_open_library(const char *name)
{
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *folders = environment_text("FSDP_CUDA_LIBRARIES");
    while (!file && folders && *folders) {
        size_t length = strcspn(folders, ":");
        if (length > 0)
            file = open_in(folders, length, name);
        folders += length + (folders[length] == ':');
    }
    for (size_t i = 0; !file && i < sizeof usual_folders / sizeof *usual_folders; i++)
        file = open_in(usual_folders[i], strlen(usual_folders[i]), name);
    return file;
}

/* The major version whose headers this was compiled with: its structures are what the calls below pass. */
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define CUBLASLT_NAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

#define ADVICE "install it or name its folder in FSDP_CUDA_LIBRARIES"

/* dlsym gives an object pointer; POSIX promises that it holds a function's address. */
#define FIND_FUNCTION(name)                                                                                            \
    {                                                                                                                  \
        void *symbol = dlsym(file, #name);                                                                             \
        if (!symbol)                                                                                                   \
            missing = #name;                                                                                           \
        memcpy(&api->name, &symbol, sizeof symbol);                                                                    \
    }

static const char *find_cublaslt(void *file, cublaslt_api *api)
{
    const char *missing = NULL;
    CUBLASLT_FUNCTIONS(FIND_FUNCTION)
    return missing;
}

bool libraries_open_driver(void)
{
    static const char *const places[] = {"libcuda.so.1", "/usr/local/cuda/lib64/stubs/libcuda.so",
                                         "/usr/local/cuda/targets/x86_64-linux/lib/stubs/libcuda.so"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (dlopen(places[i], RTLD_NOW | RTLD_GLOBAL))
            return true;
    return false;
}

#ifdef CUDA_HAS_CUDNN
static const char *find_cudnn(void *file, cudnn_api *api)
{
    const char *missing = NULL;
    CUDNN_FUNCTIONS(FIND_FUNCTION)
    return missing;
}

fsdp_status libraries_open_cudnn(cuda_libraries *l)
{
    l->cudnn_file = cuda_open_library("libcudnn.so.9");
    if (!l->cudnn_file) {
        snprintf(l->cudnn_missing, sizeof l->cudnn_missing, "libcudnn.so.9 was not found; " ADVICE);
        return error_set(FSDP_ERR_UNSUPPORTED, "%s", l->cudnn_missing);
    }
    const char *missing = find_cudnn(l->cudnn_file, &l->cudnn);
    if (missing) {
        snprintf(l->cudnn_missing, sizeof l->cudnn_missing, "libcudnn.so.9 has no %s; a newer cuDNN 9 is needed",
                 missing);
        dlclose(l->cudnn_file);
        l->cudnn_file = NULL;
        return error_set(FSDP_ERR_UNSUPPORTED, "%s", l->cudnn_missing);
    }
    l->cudnn_version = l->cudnn.cudnnGetVersion();
    return FSDP_OK;
}

fsdp_status libraries_cudnn_handle(cuda_libraries *l, cudnnHandle_t *out)
{
    if (!l->cudnn_file)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s", l->cudnn_missing);
    if (!l->cudnn_handle) {
        cudnnStatus_t status = l->cudnn.cudnnCreate(&l->cudnn_handle);
        if (status != CUDNN_STATUS_SUCCESS) {
            l->cudnn_handle = NULL;
            return error_set(FSDP_ERR_DEVICE, "cuDNN could not start: %s", l->cudnn.cudnnGetErrorString(status));
        }
    }
    *out = l->cudnn_handle;
    return FSDP_OK;
}

static void close_cudnn(cuda_libraries *l)
{
    if (l->cudnn_handle)
        l->cudnn.cudnnDestroy(l->cudnn_handle);
    if (l->cudnn_file)
        dlclose(l->cudnn_file);
}
#else
fsdp_status libraries_open_cudnn(cuda_libraries *l)
{
    snprintf(l->cudnn_missing, sizeof l->cudnn_missing, "this program was built without cuDNN");
    return error_set(FSDP_ERR_UNSUPPORTED, "%s", l->cudnn_missing);
}

static void close_cudnn(cuda_libraries *l)
{
    (void)l;
}
#endif

fsdp_status libraries_open(cuda_libraries *l)
{
    l->cublaslt_file = cuda_open_library(CUBLASLT_NAME);
    if (!l->cublaslt_file)
        return error_set(FSDP_ERR_UNSUPPORTED, CUBLASLT_NAME " was not found; " ADVICE);
    const char *missing = find_cublaslt(l->cublaslt_file, &l->cublaslt);
    if (missing)
        return error_set(FSDP_ERR_UNSUPPORTED, "cuBLASLt has no %s; a newer CUDA toolkit is needed", missing);
    cublasStatus_t status = l->cublaslt.cublasLtCreate(&l->cublaslt_handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return error_set(FSDP_ERR_DEVICE, "cuBLASLt could not start (status %d)", (int)status);
    (void)libraries_open_cudnn(l); /* attention has a kernel of its own; cudnn_missing keeps the reason */
    return FSDP_OK;
}

void libraries_close(cuda_libraries *l)
{
    close_cudnn(l);
    if (l->cublaslt_handle)
        l->cublaslt.cublasLtDestroy(l->cublaslt_handle);
    if (l->cublaslt_file)
        dlclose(l->cublaslt_file);
    memset(l, 0, sizeof *l);
}
