/* Predicts the run's own step, on the rank that writes the metrics. */
#include "train/run.h"

#include "plan/predict/predict.h"
#include "train/predicted.h"

static fsdp_status predict(const train_run *run, const kernel_profile *profile, predicted_step *out)
{
    prediction found;
    prediction_request r = {
        .work = &run->work, .config = &run->sharding.config, .world = run_plan_world(run), .profile = profile};
    FSDP_TRY(prediction_make(&r, &found));
    *out = (predicted_step){found.step.seconds, found.step.exposed};
    return FSDP_OK;
}

predicted_step predicted_find(train_run *run)
{
    predicted_step out = {0, 0};
    kernel_profile profile;
    plan_world world = run_plan_world(run);
    bool found = false;
    fsdp_status status = profile_find(run->settings->profile, &world, &profile, &found);
    if (status == FSDP_OK && found) {
        status = predict(run, &profile, &out);
        profile_clear(&profile);
    }
    if (status != FSDP_OK)
        run_say(run, FSDP_LINE_WARNING, "no prediction of a step: %s", fsdp_last_error());
    return out;
}
