/* What a step of this run should take, from a profile of kernel times, where there is one. */
#ifndef TRAIN_PREDICTED_H
#define TRAIN_PREDICTED_H

typedef struct train_run train_run;

/* Seconds of a step, and the communication that compute waits for in it; zeros: there is no profile. A profile that was
 * named and cannot be used is a warning. Plans the step anew: after the first one, so that no start waits for it. */
typedef struct predicted_step {
    double seconds, exposed;
} predicted_step;

predicted_step predicted_find(train_run *run);

#endif
