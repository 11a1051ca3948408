/* What is known after an optimizer step, as all observers take it. Sums are over all ranks. */
#ifndef OBSERVE_FIGURES_H
#define OBSERVE_FIGURES_H

#include <stdint.h>

typedef struct step_figures {
    int64_t step;     /* counted from 1 */
    double epoch;     /* passes over the data so far, with the fraction */
    double loss;      /* mean over what counted */
    double grad_norm; /* before clipping; NaN: not measured */
    double lr;
    int64_t samples, tokens;                 /* of this step; tokens 0 where there are none */
    double seconds;                          /* this step took */
    double flops;                            /* model operations of this step; 0: not known */
    double peak_flops;                       /* operations a second that all devices could do; 0: not known */
    int64_t memory_bytes, memory_peak_bytes; /* of this rank; 0: not measured */
    double loss_scale;                       /* 0 without loss scaling */
    double validation_loss;                  /* NaN where this step was not followed by a validation */
    double predicted_seconds,
        predicted_exposed;           /* what the step should take, and wait for communication; 0: not known */
    const struct attribution *times; /* where the time went, on all ranks; NULL: not measured */
} step_figures;

#endif
