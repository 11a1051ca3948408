/* Where a rank is, for whoever started it: a page that the launcher shares with it (FSDP_PULSE), into which the notes
 * for crash reports (crash.h) go, too. It outlives the rank, so even one that was killed can be named with its last
 * place; a count of beats shows whether it moves. */
#ifndef BASE_RECORD_PULSE_H
#define BASE_RECORD_PULSE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { PULSE_WORDS = 8, PULSE_TEXT_BYTES = 320 };

typedef _Atomic uint64_t pulse_name[PULSE_WORDS]; /* at most 63 characters; one read while written is a mixture */

typedef struct pulse {
    _Alignas(64) _Atomic uint64_t beats; /* 0: nobody has taken this up */
    _Atomic int64_t step;
    _Atomic uint32_t waits;  /* for other ranks, in `collective` */
    _Atomic int32_t process; /* 0: nobody has taken this up */
    pulse_name phase, operation, unit, collective;
} pulse;

/* Takes up the page that FSDP_PULSE ("descriptor:number:count") names, once; without one, notes go nowhere. */
void pulse_attach(void);
pulse *pulse_own(void); /* NULL: none */

void pulse_set_name(pulse_name to, const char *name); /* NULL: none */
/* "step 12, phase optimizer, waits in all_gather layers.3"; "" before the first beat. */
const char *pulse_text(const pulse *p, char text[PULSE_TEXT_BYTES]);

static inline void pulse_beat(pulse *p)
{
    atomic_store_explicit(&p->beats, atomic_load_explicit(&p->beats, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* Work that takes long and makes no notes goes on: a save, a copy. From any thread. */
void pulse_go_on(void);

#endif
