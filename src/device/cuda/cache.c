/* Where choices that took time are kept between runs: timed products in one file, cuDNN's compiled plans in a folder
 * beside it, under FSDP_CACHE_DIR, else the user's cache folder. What is in the files is gemm_cache.c's and
 * cudnn_plans.c's business. */
#include <stdlib.h>
#include <string.h>

#include "base/host/environment.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "device/cuda/gemm/gemm_table.h"

/* malloc'd, or NULL when nobody says where. */
static char *cache_folder(void)
{
    const char *own = environment_text("FSDP_CACHE_DIR"), *user = environment_text("XDG_CACHE_HOME");
    const char *home = environment_text("HOME");
    if (own)
        return strdup(own);
    if (user)
        return file_join(user, "fsdp");
    return home ? file_join(home, ".cache/fsdp") : NULL;
}

void cuda_cache_open(cuda_device *d)
{
    char *folder = cache_folder(), *plans = folder ? file_join(folder, "cudnn") : NULL;
    if (!plans || cuda_set_plan_folder(&d->base, plans) != FSDP_OK) {
        log_write(FSDP_LOG_INFO, "choices of algorithms are not kept: %s",
                  plans ? fsdp_last_error() : "no cache folder");
    } else {
        d->cache = file_join(folder, "products.json");
        if (d->cache && file_exists(d->cache) && cuda_gemm_cache_load(&d->base, d->cache) != FSDP_OK)
            log_write(FSDP_LOG_WARNING, "%s", fsdp_last_error());
    }
    free(plans);
    free(folder);
}

void cuda_cache_save(cuda_device *d)
{
    gemm_table_lock(d->gemms);
    bool changed = d->gemms->changed;
    d->gemms->changed = false;
    gemm_table_unlock(d->gemms);
    if (changed && d->cache && cuda_gemm_cache_save(&d->base, d->cache) != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "%s", fsdp_last_error());
}
