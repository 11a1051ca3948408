/* A tale as data for the page that plays it. */
#include "explain/tale.h"

static const char *const kinds[] = {
    [SCENE_STEP] = "step",       [SCENE_GATHER] = "gather",   [SCENE_COMPUTE] = "compute",
    [SCENE_RELEASE] = "release", [SCENE_BACKWARD] = "turn",   [SCENE_GRADIENTS] = "gradients",
    [SCENE_REDUCE] = "reduce",   [SCENE_REDUCED] = "reduced", [SCENE_OPTIMIZER] = "optimizer",
    [SCENE_LOSS] = "loss",
};

static json_t *numbers(const int64_t *values, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

static json_t *scene_json(const tale *t, const scene *s, const char *language)
{
    char sentence[TALE_SENTENCE];
    return json_pack("{s:s, s:i, s:i, s:b, s:s, s:o, s:o, s:o, s:s, s:s}", "kind", kinds[s->kind], "step", s->step,
                     "unit", s->unit, "backward", (int)s->backward, "text", tale_sentence(t, s, language, sentence),
                     "bytes", numbers(s->bytes, t->n_ranks), "gathered", numbers(s->gathered, t->n_ranks), "gradients",
                     numbers(s->gradients, t->n_ranks), "parameters", s->parameters, "sums", s->sums);
}

static json_t *rank_json(const tale *t, int rank)
{
    const memory_plan *p = &t->plans[rank];
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "parameters", (json_int_t)(p->parameters + p->copies),
                     "gradients", (json_int_t)p->gradients, "optimizer", (json_int_t)p->optimizer, "taken",
                     (json_int_t)t->taken[rank], "planned", (json_int_t)t->planned[rank], "gathered_a_step",
                     (json_int_t)tale_received(t, SCENE_GATHER, rank), "reduced_a_step",
                     (json_int_t)tale_received(t, SCENE_REDUCE, rank), "group", rank / t->group);
}

json_t *tale_json(const tale *t, const char *language)
{
    json_t *units = json_array(), *ranks = json_array(), *scenes = json_array();
    for (int i = 0; i < t->n_units; i++)
        json_array_append_new(units, json_pack("{s:s, s:I, s:I, s:I, s:o}", "name", t->units[i].name, "parameters",
                                               (json_int_t)t->units[i].parameters, "gathered_bytes",
                                               (json_int_t)t->units[i].gathered_bytes, "gradient_bytes",
                                               (json_int_t)t->units[i].gradient_bytes, "shards",
                                               numbers(t->units[i].shard_bytes, t->n_ranks)));
    for (int r = 0; r < t->n_ranks; r++)
        json_array_append_new(ranks, rank_json(t, r));
    for (int i = 0; i < t->n_scenes; i++)
        json_array_append_new(scenes, scene_json(t, &t->scenes[i], language));
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o}", "strategy", fsdp_strategy_name(t->strategy), "parameters",
                     (json_int_t)t->n_parameters, "peak", (json_int_t)tale_peak(t), "units", units, "ranks", ranks,
                     "scenes", scenes);
}
