/* How long a step of a job will take: its script, played with the times of a profile. */
#ifndef PLAN_PREDICT_PREDICT_H
#define PLAN_PREDICT_PREDICT_H

#include "plan/predict/player.h"
#include "plan/workload.h"

typedef struct prediction_request {
    const workload *work;
    const fsdp_config *config;
    plan_world world;
    const kernel_profile *profile;
} prediction_request;

typedef struct prediction {
    played_step step;
    int n_ranks, ranks_per_node;
    double tokens_per_second; /* of all ranks; 0 for images */
    double samples_per_second;
    double tflops; /* of one rank, counted as utilization counts */
    double
        utilization; /* of the maker's peak, or where there is none of the fastest product in the profile; 0: not known
                      */
    int64_t memory;  /* bytes that a rank takes on its device */
} prediction;

/* The profile `named` (a path or a name; NULL: none), otherwise the library's for this GPU, otherwise the one measured
 * on this host with as many ranks, if there is one; *found says whether. profile_clear ends *out where it was. */
fsdp_status profile_find(const char *named, const plan_world *world, kernel_profile *out, bool *found);

fsdp_status prediction_make(const prediction_request *r, prediction *out);

/* Text for people, or one object. `curve` has predictions for other numbers of ranks, n_curve of them. */
fsdp_status prediction_print(const prediction_request *r, const prediction *p, const prediction *curve, int n_curve,
                             bool json, char **text);

#endif
