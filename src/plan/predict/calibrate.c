/* Timed one by one, kernels take longer, because every one begins and ends with an event; and shorter, because a device
 * that waits in between clocks higher. Whole steps, of which no kernel is timed, tell how much of either. */
#include "plan/predict/profile.h"

/* What is believed before a step was seen, and how firmly: kernels take as long, and the events' part is a little more
 * than half of what they add to kernels that do nothing. */
static const double sure_of_busy = 0.01, sure_of_gap = 1.5e-6, part_of_start = 0.6, sure_of_step = 0.01;

/* Two unknowns, by least squares: a x + b y = d, b x + c y = e. */
typedef struct normal_equations {
    double a, b, c, d, e;
} normal_equations;

static void observe(normal_equations *n, double kernels, double calls, double seconds, double sure)
{
    double weight = 1 / (sure * sure);
    n->a += weight * kernels * kernels;
    n->b += weight * kernels * calls;
    n->c += weight * calls * calls;
    n->d += weight * kernels * seconds;
    n->e += weight * calls * seconds;
}

void profile_calibrate(kernel_profile *p, double start)
{
    normal_equations n = {0, 0, 0, 0, 0};
    observe(&n, 1, 0, 1, sure_of_busy);
    observe(&n, 0, 1, part_of_start * start, sure_of_gap);
    for (int i = 0; i < p->n_steps; i++) {
        const profile_step *s = &p->steps[i];
        double seconds = s->seconds - p->launch.step;
        if (seconds > 0)
            observe(&n, s->kernels, s->calls, seconds, sure_of_step * seconds);
    }
    double determinant = n.a * n.c - n.b * n.b;
    p->busy = (n.d * n.c - n.e * n.b) / determinant;
    p->launch.gap = (n.a * n.e - n.b * n.d) / determinant;
}
