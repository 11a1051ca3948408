/* The page of a rank, from both sides. */
#include "base/record/pulse.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host/environment.h"

static pulse *_Atomic own;

pulse *pulse_own(void)
{
    return atomic_load_explicit(&own, memory_order_relaxed);
}

void pulse_attach(void)
{
    const char *text = environment_text("FSDP_PULSE");
    struct stat found;
    int fd, number;
    if (pulse_own() || !text || sscanf(text, "%d:%d", &fd, &number) != 2 || number < 0 || fstat(fd, &found) < 0)
        return;
    size_t bytes = ((size_t)number + 1) * sizeof(pulse);
    if (!S_ISREG(found.st_mode) || (uint64_t)found.st_size < bytes)
        return; /* the descriptor is another's by now: a program in between has closed ours */
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return;
    pulse *mine = (pulse *)page + number;
    atomic_store(&mine->process, (int32_t)getpid());
    pulse_beat(mine);
    atomic_store(&own, mine);
}

void pulse_go_on(void)
{
    pulse *p = pulse_own();
    if (p)
        pulse_beat(p); /* two threads at once may count as one: it changes all the same */
}

void pulse_set_name(pulse_name to, const char *name)
{
    uint64_t words[PULSE_WORDS] = {0};
    if (name)
        memcpy(words, name, strnlen(name, sizeof words - 1));
    for (int i = 0; i < PULSE_WORDS; i++)
        atomic_store_explicit(&to[i], words[i], memory_order_relaxed);
}

static void get_name(const pulse_name from, char text[sizeof(pulse_name) + 1])
{
    for (int i = 0; i < PULSE_WORDS; i++) {
        uint64_t word = atomic_load_explicit(&from[i], memory_order_relaxed);
        memcpy(text + sizeof word * (size_t)i, &word, sizeof word);
    }
    text[sizeof(pulse_name)] = 0;
}

const char *pulse_text(const pulse *p, char text[PULSE_TEXT_BYTES])
{
    static const char *const before[] = {", phase ", ", last operation ", ", last unit "};
    const pulse_name *const names[] = {&p->phase, &p->operation, &p->unit};
    char name[sizeof(pulse_name) + 1];
    text[0] = 0;
    if (atomic_load(&p->beats) == 0)
        return text;
    int at = snprintf(text, PULSE_TEXT_BYTES, "step %lld", (long long)atomic_load(&p->step));
    for (int i = 0; i < 3; i++) {
        get_name(*names[i], name);
        if (name[0])
            at += snprintf(text + at, PULSE_TEXT_BYTES - (size_t)at, "%s%s", before[i], name);
    }
    get_name(p->collective, name);
    if (atomic_load(&p->waits) && name[0])
        snprintf(text + at, PULSE_TEXT_BYTES - (size_t)at, ", waits in %s", name);
    return text;
}
