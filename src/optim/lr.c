/* Learning-rate schedules: functions of the step, and for the plateau of the losses seen. */
#include <math.h>

#include <fsdp/optim.h>

#include "base/error.h"

static double progress(const fsdp_lr_config *c, int64_t step)
{
    double span = (double)(c->total - c->warmup);
    double done = span > 0 ? (double)(step - c->warmup) / span : 1;
    return done < 0 ? 0 : done > 1 ? 1 : done;
}

double fsdp_lr_at(const fsdp_lr_config *c, const fsdp_lr_state *state, int64_t step)
{
    if (step < c->warmup)
        return c->lr * (double)(step + 1) / (double)c->warmup;
    int64_t after = step - c->warmup;
    switch (c->decay) {
    case FSDP_DECAY_LINEAR:
        return c->min_lr + (c->lr - c->min_lr) * (1 - progress(c, step));
    case FSDP_DECAY_COSINE:
        return c->min_lr + (c->lr - c->min_lr) * 0.5 * (1 + cos(M_PI * progress(c, step)));
    case FSDP_DECAY_EXPONENTIAL:
        return fmax(c->min_lr, c->lr * pow(c->gamma, (double)after));
    case FSDP_DECAY_STEP:
        return fmax(c->min_lr, c->lr * pow(c->gamma, (double)(after / c->step_size)));
    case FSDP_DECAY_PLATEAU:
        return fmax(c->min_lr, c->lr * (state && state->observations ? state->factor : 1));
    case FSDP_DECAY_CONSTANT:
        break;
    }
    return c->lr;
}

void fsdp_lr_observe(const fsdp_lr_config *c, fsdp_lr_state *state, double loss)
{
    if (state->observations++ == 0) {
        *state = (fsdp_lr_state){.best = loss, .factor = 1, .observations = 1};
        return;
    }
    if (loss < state->best * (1 - 1e-4)) {
        state->best = loss;
        state->waited = 0;
    } else if (++state->waited > c->patience) {
        state->factor *= c->gamma;
        state->waited = 0;
    }
}

fsdp_status fsdp_lr_check(const fsdp_lr_config *c)
{
    if (!(c->lr >= 0) || !(c->min_lr >= 0))
        return error_set(FSDP_ERR_INPUT, "learning rate %g with minimum %g: neither may be negative", c->lr, c->min_lr);
    if (c->min_lr > c->lr)
        return error_set(FSDP_ERR_INPUT, "min_lr %g is above lr %g", c->min_lr, c->lr);
    if (c->warmup < 0)
        return error_set(FSDP_ERR_INPUT, "warmup of %lld steps", (long long)c->warmup);
    if (c->decay == FSDP_DECAY_STEP && c->step_size < 1)
        return error_set(FSDP_ERR_INPUT, "lr_step_size is %lld; it must be positive", (long long)c->step_size);
    if (c->decay >= FSDP_DECAY_EXPONENTIAL && !(c->gamma > 0 && c->gamma <= 1))
        return error_set(FSDP_ERR_INPUT, "lr_gamma is %g; it must lie in (0, 1]", c->gamma);
    return FSDP_OK;
}
