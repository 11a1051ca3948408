/* One plan in detail: its step value by value, what stands at the peak, and what each remedy would save. What
 * --units, --timeline and the answer to "why does it not fit" are made of. */
#ifndef PLAN_DETAIL_H
#define PLAN_DETAIL_H

#include "plan/search.h"

/* Values of one kind that live at the peak: gathered units, or results of one operation and shape. */
typedef struct peak_value {
    picture_class class;
    const char *name; /* of the picture */
    int count;
    size_t bytes;
} peak_value;

/* One change to the settings, planned by itself. */
typedef struct plan_remedy {
    char flags[64];
    size_t total, host;
    bool fits;
} plan_remedy;

enum { PLAN_REMEDIES = 16 };

typedef struct plan_detail {
    const workload *work;
    const fsdp_config *config;
    plan_world world;
    plan_limit limit;
    memory_plan plan;
    plan_picture picture;
    int64_t *series; /* of the picture, see plan_picture_series */
    int peak;        /* the instruction at which most lives */
    size_t peak_bytes;
    int n_values, n_remedies;
    peak_value *values;                  /* the largest first */
    plan_remedy remedies[PLAN_REMEDIES]; /* those that save something on the device, the most first */
} plan_detail;

/* work, config, world and limit are given; fills in the rest. Ended by plan_detail_clear. */
fsdp_status plan_detail_make(plan_detail *d);
void plan_detail_clear(plan_detail *d); /* legal on zeros */

/* Names of the classes of a picture. */
extern const char *const picture_class_names[PICTURE_CLASSES];
/* The unit that computes at the peak, "" before the first. */
const char *plan_detail_unit(const plan_detail *d);
/* Bytes of the classes that stay over the whole step, in the order of plan_resident_names. */
enum { PLAN_RESIDENTS = 7 };
extern const char *const plan_resident_names[PLAN_RESIDENTS];
size_t plan_resident(const memory_plan *p, int index);

#endif
