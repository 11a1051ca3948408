/* A tale as lines of a terminal: a bar of rank 0's memory and a sentence for every scene. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "explain/tale.h"
#include "observe/table.h"
#include "observe/units.h"

enum { BAR = 24 };

/* Cells for what stays, what is gathered, what waits to be reduced, and the rest of the most there ever is. */
static void print_bar(FILE *out, const tale *t, const scene *s, int64_t most)
{
    char bar[BAR + 1];
    int64_t ends[] = {tale_state_bytes(t, 0), s->gathered[0], s->gradients[0]};
    static const char cells[] = "#=+";
    int at = 0;
    int64_t sum = 0;
    for (int k = 0; k < 3; k++) {
        sum += ends[k];
        while (at < BAR && at < (int)((sum * BAR + most / 2) / most))
            bar[at++] = cells[k];
    }
    memset(bar + at, '.', (size_t)(BAR - at));
    bar[BAR] = '\0';
    char bytes[UNITS_TEXT];
    fprintf(out, "  |%s| %10s  ", bar, units_bytes(bytes, tale_held(t, s, 0)));
}

static fsdp_status print_units(FILE *out, const tale *t, bool korean)
{
    char row[256], count[UNITS_TEXT], bytes[UNITS_TEXT], *text = NULL;
    table *units;
    size_t used = (size_t)snprintf(row, sizeof row, korean ? "유닛|파라미터|전체" : "unit|parameters|whole");
    for (int r = 0; r < t->n_ranks; r++)
        used += (size_t)snprintf(row + used, sizeof row - used, korean ? "|랭크 %d" : "|rank %d", r);
    FSDP_TRY(table_new(row, &units));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < t->n_units && status == FSDP_OK; i++) {
        const tale_unit *u = &t->units[i];
        used = (size_t)snprintf(row, sizeof row, "%s|%s", u->name, units_count(count, (double)u->parameters));
        used += (size_t)snprintf(row + used, sizeof row - used, "|%s", units_bytes(bytes, (int64_t)u->gathered_bytes));
        for (int r = 0; r < t->n_ranks; r++)
            used += (size_t)snprintf(row + used, sizeof row - used, "|%s", units_bytes(bytes, u->shard_bytes[r]));
        status = table_row(units, "%s", row);
    }
    if (status == FSDP_OK)
        status = table_text(units, &text);
    table_free(units);
    if (status == FSDP_OK)
        fprintf(out, "%s\n", text);
    free(text);
    return status;
}

static void print_head(FILE *out, const tale *t, bool korean)
{
    char count[UNITS_TEXT];
    fprintf(out,
            korean ? "전략 %s, 랭크 %d개: 레이어 %lld개짜리 작은 llama, 파라미터 %s개, 유닛 %d개\n\n"
                   : "Strategy %s on %d ranks: a small llama of %lld layers, %s parameters in %d units\n\n",
            fsdp_strategy_name(t->strategy), t->n_ranks, (long long)t->work.model.decoder.layers,
            units_count(count, (double)t->n_parameters), t->n_units);
}

static void print_foot(FILE *out, const tale *t, bool korean)
{
    char text[5][UNITS_TEXT];
    fprintf(
        out,
        korean
            ? "\n한 스텝에 랭크 0이 받은 양: 모으기 %s, 합산 %s. 상태·모은 유닛·그래디언트의 최댓값 %s. "
              "실제로 잡은 메모리 %s, 계획 %s.\n"
            : "\nIn one step rank 0 received %s in gathers and %s in reductions. State, gathered units and gradients "
              "took %s at most. Memory taken: %s, planned: %s.\n",
        units_bytes(text[0], tale_received(t, SCENE_GATHER, 0)),
        units_bytes(text[1], tale_received(t, SCENE_REDUCE, 0)), units_bytes(text[2], tale_peak(t)),
        units_bytes(text[3], t->taken[0]), units_bytes(text[4], t->planned[0]));
}

fsdp_status tale_text(const tale *t, const char *language, char **text)
{
    size_t bytes;
    char sentence[TALE_SENTENCE];
    bool korean = strcmp(language, "ko") == 0;
    *text = NULL;
    FILE *out = open_memstream(text, &bytes);
    if (!out)
        return error_set(FSDP_ERR_MEMORY, "explain: out of host memory");
    print_head(out, t, korean);
    fsdp_status status = print_units(out, t, korean);
    fprintf(out, "\n%s\n",
            korean ? "막대는 랭크 0의 메모리입니다: # 샤드와 옵티마이저 상태, = 모은 유닛, + 합산 전의 전체 그래디언트"
                   : "Bars are the memory of rank 0: # shards and optimizer state, = gathered units, + full gradients");
    int64_t most = tale_peak(t);
    for (int i = 0; i < t->n_scenes; i++) {
        const scene *s = &t->scenes[i];
        if (s->kind == SCENE_STEP)
            fputc('\n', out);
        print_bar(out, t, s, most);
        fprintf(out, "%s\n", tale_sentence(t, s, language, sentence));
    }
    print_foot(out, t, korean);
    if (fclose(out) != 0 && status == FSDP_OK)
        status = error_set(FSDP_ERR_MEMORY, "explain: out of host memory");
    if (status != FSDP_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
