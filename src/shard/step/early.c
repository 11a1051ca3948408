/* A unit that was gathered early is GATHERING between two steps. It lies where the program that ran last has it at its
 * first instruction, when nothing else is in the arena, so it takes no memory of its own. The next program with the
 * same place for it goes on from there (events.c). Ranks decide alike without asking each other: places follow from the
 * order in which units are used, which is the same on all of them. */
#include "shard/step/early.h"

static bool is_early(const fsdp_model *m, const schedule_event *e)
{
    return m->config.forward_prefetch && e->action == ACTION_GATHER && e->index == 0 && !e->backward &&
           !model_has_all_at_hand(m, e->unit) && m->residencies[e->unit] != RESIDENT_ALIAS &&
           !m->offloaded[e->unit]; /* its update comes from the host during forward */
}

int early_next(const fsdp_model *m, const schedule *s, int *at)
{
    for (; *at < s->n_events && s->events[*at].index == 0; ++*at)
        if (is_early(m, &s->events[*at]))
            return s->events[(*at)++].unit;
    return -1;
}

bool early_has(const fsdp_model *m, const schedule *s, int index)
{
    int at = 0, which = 0;
    while (which >= 0 && (which = early_next(m, s, &at)) != index)
        continue;
    return which == index;
}

static unit_places place_of(const fsdp_model *m, const schedule *s, int index)
{
    const schedule_unit *u = &s->units[index];
    return (unit_places){m->gather.memory + u->forward_offset, m->gather.memory + u->blocks_offset[0]};
}

fsdp_status early_gather(fsdp_model *m, int index)
{
    unit *u = &m->units[index];
    if (m->residencies[index] == RESIDENT_KEPT && u->parameters == PARAMETERS_FULL)
        FSDP_TRY(unit_release(u)); /* the copy from before the update */
    u->early_at = place_of(m, m->last_training->schedule, index);
    u->early = true;
    if (m->carrier)
        return m->carrier->gather_early(m->carrier->context, index);
    return unit_gather(u, m->shardings[index].shard_group, u->early_at, m->last_training->schedule->units[index].coded,
                       m->step, m->compute);
}

static bool is_wanted(const fsdp_model *m, const schedule *next, int index)
{
    unit_places had = m->units[index].early_at, wanted = place_of(m, next, index);
    bool grows = next->gather_bytes > m->gather.bytes, alike = m->units[index].coded == next->units[index].coded;
    return !grows && alike && had.memory == wanted.memory && had.blocks == wanted.blocks && early_has(m, next, index);
}

fsdp_status early_keep(fsdp_model *m, const schedule *next)
{
    for (int i = 0; i < m->layout->n_units; i++)
        if (m->units[i].early && !is_wanted(m, next, i))
            FSDP_TRY(early_drop(m, i));
    return FSDP_OK;
}

fsdp_status early_drop(fsdp_model *m, int index)
{
    unit *u = &m->units[index];
    if (!u->early)
        return FSDP_OK;
    u->early = false;
    FSDP_TRY(unit_await(u, u->segments[0].dtype, u->early_at.memory, m->compute));
    return unit_release(u);
}
