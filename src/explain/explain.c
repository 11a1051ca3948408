/* `fsdp explain`: trains for two steps with each strategy asked for, and tells what happened as text and as a page. */
#include <fsdp/explain.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sized.h"
#include "explain/tale.h"
#include "observe/table.h"
#include "observe/units.h"
#include "page/page.h"

typedef struct telling {
    const fsdp_explain_config *config;
    rank_record *records[FSDP_STRATEGY_COUNT];
    tale tales[FSDP_STRATEGY_COUNT];
    int n;
} telling;

/* Hybrid strategies want groups that are smaller than the world and larger than a rank. */
static bool applies(fsdp_strategy s, int n_ranks)
{
    bool grouped = s == FSDP_HYBRID || s == FSDP_HYBRID_ZERO2;
    return !grouped || (n_ranks >= 4 && n_ranks % 2 == 0);
}

static fsdp_status check(const fsdp_explain_config *c)
{
    if (c->ranks < 2 || c->ranks > FSDP_EXPLAIN_RANKS)
        return error_set(FSDP_ERR_INPUT, "explain: %d ranks; 2 to %d can be told apart", c->ranks, FSDP_EXPLAIN_RANKS);
    if (c->strategy < FSDP_EXPLAIN_ALL || c->strategy >= FSDP_STRATEGY_COUNT)
        return error_set(FSDP_ERR_INPUT, "explain: there is no strategy %d", c->strategy);
    if (!c->language || (strcmp(c->language, "en") != 0 && strcmp(c->language, "ko") != 0))
        return error_set(FSDP_ERR_INPUT, "explain: the languages are en and ko");
    if (c->strategy >= 0 && !applies((fsdp_strategy)c->strategy, c->ranks))
        return error_set(FSDP_ERR_INPUT, "explain: strategy %s shards in groups: use 4, 6 or 8 ranks",
                         fsdp_strategy_name((fsdp_strategy)c->strategy));
    return FSDP_OK;
}

/* All ranks run before this process opens a device: it must have no threads when it forks. */
static fsdp_status run_all(telling *w)
{
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        bool wanted = w->config->strategy == s ||
                      (w->config->strategy == FSDP_EXPLAIN_ALL && applies((fsdp_strategy)s, w->config->ranks));
        if (wanted)
            FSDP_TRY(records_take((fsdp_strategy)s, w->config->ranks, &w->records[s]));
    }
    return FSDP_OK;
}

static fsdp_status make_tales(telling *w)
{
    device *dev;
    FSDP_TRY(device_open_cpu(CPU_GEMM_AUTO, &dev));
    fsdp_status status = FSDP_OK;
    for (int s = 0; s < FSDP_STRATEGY_COUNT && status == FSDP_OK; s++) {
        if (!w->records[s])
            continue;
        status = tale_make(&w->tales[w->n], (fsdp_strategy)s, w->records[s], w->config->ranks, dev);
        w->n += status == FSDP_OK;
    }
    device_close(dev);
    return status;
}

static fsdp_status comparison(const telling *w, char **text)
{
    char cells[4][UNITS_TEXT];
    bool korean = strcmp(w->config->language, "ko") == 0;
    table *t;
    FSDP_TRY(table_new(korean ? "전략|모으기|합산|상태|최댓값|잡은 메모리"
                              : "strategy|gathered a step|reduced a step|state|at most|memory taken",
                       &t));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < w->n && status == FSDP_OK; i++) {
        const tale *s = &w->tales[i];
        char taken[UNITS_TEXT];
        status = table_row(t, "%s|%s|%s|%s|%s|%s", fsdp_strategy_name(s->strategy),
                           units_bytes(cells[0], tale_received(s, SCENE_GATHER, 0)),
                           units_bytes(cells[1], tale_received(s, SCENE_REDUCE, 0)),
                           units_bytes(cells[2], tale_state_bytes(s, 0)), units_bytes(cells[3], tale_peak(s)),
                           units_bytes(taken, s->taken[0]));
    }
    if (status == FSDP_OK)
        status = table_text(t, text);
    table_free(t);
    return status;
}

static fsdp_status print_all(const telling *w, char **text)
{
    for (int i = 0; i <= w->n; i++) {
        char *more = NULL, *joined = NULL;
        if (i == w->n && w->n == 1)
            return FSDP_OK;
        FSDP_TRY(i < w->n ? tale_text(&w->tales[i], w->config->language, &more) : comparison(w, &more));
        int n = asprintf(&joined, "%s%s%s", *text ? *text : "", *text ? "\n" : "", more);
        free(more);
        if (n < 0)
            return error_set(FSDP_ERR_MEMORY, "explain: out of host memory");
        free(*text);
        *text = joined;
    }
    return FSDP_OK;
}

static fsdp_status write_page(const telling *w)
{
    json_t *tales = json_array(), *data = json_pack("{s:o}", "tales", tales);
    for (int i = 0; i < w->n; i++)
        json_array_append_new(tales, tale_json(&w->tales[i], w->config->language));
    bool korean = strcmp(w->config->language, "ko") == 0;
    page p = {.title = korean ? "FSDP: 두 스텝을 한 장면씩" : "FSDP, scene by scene: two training steps",
              .language = w->config->language,
              .view = "explain",
              .data = data};
    fsdp_status status =
        data ? page_write(&p, w->config->html) : error_set(FSDP_ERR_MEMORY, "explain: out of host memory");
    json_decref(data);
    return status;
}

fsdp_status fsdp_explain(const fsdp_explain_config *config, char **text)
{
    *text = NULL;
    SIZED_READ(fsdp_explain_config, FSDP_EXPLAIN_CONFIG_INIT, full, config);
    FSDP_TRY(check(&full));
    telling *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "explain: out of host memory");
    w->config = &full;
    fsdp_status status = run_all(w);
    if (status == FSDP_OK)
        status = make_tales(w);
    if (status == FSDP_OK)
        status = print_all(w, text);
    if (status == FSDP_OK && full.html)
        status = write_page(w);
    for (int i = 0; i < w->n; i++)
        tale_clear(&w->tales[i]);
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++)
        records_free(w->records[s], full.ranks);
    free(w);
    if (status != FSDP_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
