/* Learning-rate schedules: functions of the step. */
#include <math.h>

#include <fsdp/optim.h>

#include "base/error.h"
#include "base/sized.h"

/* How far step is on its way from `from` to the end of the decay, 0 to 1. */
static double progress(const fsdp_lr_config *c, double from, int64_t step)
{
    double span = (double)c->total - from;
    double done = span > 0 ? ((double)step - from) / span : step >= c->total;
    return done < 0 ? 0 : done > 1 ? 1 : done;
}

static double between(const fsdp_lr_config *c, double done)
{
    return c->min_lr + (c->lr - c->min_lr) * (1 - done);
}

double fsdp_lr_at(const fsdp_lr_config *config, int64_t step)
{
    fsdp_lr_config full = FSDP_LR_CONFIG_INIT;
    const fsdp_lr_config *c = &full;
    if (sized_read(&full, sizeof full, config, "fsdp_lr_config", "FSDP_LR_CONFIG_INIT") != FSDP_OK)
        return NAN;
    if (step < c->warmup)
        return c->lr * (double)(step + 1) / (double)c->warmup;
    int64_t after = step - c->warmup;
    switch (c->decay) {
    case FSDP_DECAY_LINEAR:
        return between(c, progress(c, (double)c->warmup, step));
    case FSDP_DECAY_COSINE:
        return c->min_lr + (c->lr - c->min_lr) * 0.5 * (1 + cos(M_PI * progress(c, (double)c->warmup, step)));
    case FSDP_DECAY_EXPONENTIAL:
        return fmax(c->min_lr, c->lr * pow(c->gamma, (double)after));
    case FSDP_DECAY_STEP:
        return fmax(c->min_lr, c->lr * pow(c->gamma, (double)(after / c->step_size)));
    case FSDP_DECAY_PLATEAU:
        return between(c, progress(c, (double)c->warmup + c->hold * (double)c->total, step));
    case FSDP_DECAY_CONSTANT:
        break;
    }
    return c->lr;
}

fsdp_status fsdp_lr_check(const fsdp_lr_config *config)
{
    SIZED_READ(fsdp_lr_config, FSDP_LR_CONFIG_INIT, full, config);
    const fsdp_lr_config *c = &full;
    if (!(c->lr >= 0) || !(c->min_lr >= 0))
        return error_set(FSDP_ERR_INPUT, "learning rate %g with minimum %g: neither may be negative", c->lr, c->min_lr);
    if (c->min_lr > c->lr)
        return error_set(FSDP_ERR_INPUT, "min_lr %g is above lr %g", c->min_lr, c->lr);
    if (c->warmup < 0)
        return error_set(FSDP_ERR_INPUT, "warmup of %lld steps", (long long)c->warmup);
    if (c->decay == FSDP_DECAY_STEP && c->step_size < 1)
        return error_set(FSDP_ERR_INPUT, "lr_step_size is %lld; it must be positive", (long long)c->step_size);
    if ((c->decay == FSDP_DECAY_EXPONENTIAL || c->decay == FSDP_DECAY_STEP) && !(c->gamma > 0 && c->gamma <= 1))
        return error_set(FSDP_ERR_INPUT, "lr_gamma is %g; it must lie in (0, 1]", c->gamma);
    if (c->decay == FSDP_DECAY_PLATEAU && !(c->hold >= 0 && c->hold <= 1))
        return error_set(FSDP_ERR_INPUT, "plateau is %g; it is the part of the steps that keep the peak rate, 0 to 1",
                         c->hold);
    return FSDP_OK;
}
