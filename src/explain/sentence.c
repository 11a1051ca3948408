/* Scenes in words, in English and in Korean. Each language has its own sentences: words alone cannot be exchanged. */
#include <stdio.h>
#include <string.h>

#include "explain/tale.h"
#include "observe/units.h"

/* "rank 1", "ranks 1, 2 and 3": those that rank 0 shares shards with. */
static const char *peers(const tale *t, bool korean, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, korean ? "랭크 " : t->group > 2 ? "ranks " : "rank ");
    for (int r = 1; r < t->group && used < bytes; r++) {
        const char *joint = r == 1 ? "" : korean ? ", " : r + 1 == t->group ? " and " : ", ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", joint, r);
    }
    return text;
}

typedef struct telling {
    const tale *t;
    const scene *s;
    const char *name, *from;                    /* of the unit; whom rank 0 receives from */
    char first[UNITS_TEXT], second[UNITS_TEXT]; /* bytes */
    bool replicated;                            /* every rank holds everything */
    bool early;                                 /* the first units were gathered while the optimizer worked */
    bool stays;                                 /* and whole copies of the others are there from the step before */
} telling;

static void in_english(const telling *w, char *out, size_t n)
{
    const scene *s = w->s;
    switch (s->kind) {
    case SCENE_STEP:
        snprintf(out, n, "Step %d begins. Every rank holds %s.", s->step,
                 w->replicated ? "all parameters and all of the optimizer's state"
                 : w->stays    ? "its shard of every unit and whole copies: those that come first are new, the "
                                 "optimizer has made the others stale"
                 : w->early    ? "its shard of every unit, and the whole of those that come first"
                               : "its shard of every unit and nothing else");
        break;
    case SCENE_GATHER:
        snprintf(out, n, "Gather %s: rank 0 receives %s from %s and holds the whole unit, %s.", w->name, w->first,
                 w->from, w->second);
        break;
    case SCENE_COMPUTE:
        snprintf(out, n, "Compute %s%s%s: %d operation%s.", s->backward ? "backward" : "forward",
                 *w->name ? " of " : "", w->name, s->operations, s->operations == 1 ? "" : "s");
        break;
    case SCENE_RELEASE:
        snprintf(out, n, "Release %s: %s of gathered parameters are freed; the shard stays.", w->name, w->first);
        break;
    case SCENE_BACKWARD:
        snprintf(out, n, "Forward is done. Backward begins.");
        break;
    case SCENE_GRADIENTS:
        snprintf(out, n, "Make room for the full gradient of %s: %s.", w->name, w->first);
        break;
    case SCENE_REDUCE:
        if (s->all_reduce)
            snprintf(out, n,
                     "Reduce %s: gradients are summed over all ranks (all-reduce); rank 0 receives %s and, like "
                     "every rank, keeps the whole sum.",
                     w->name, w->first);
        else
            snprintf(out, n,
                     "Reduce %s: gradients are summed (reduce-scatter); rank 0 receives %s from %s and keeps the "
                     "sum of its shard only, %s.",
                     w->name, w->first, w->from, w->second);
        break;
    case SCENE_REDUCED:
        snprintf(out, n, "The full gradient of %s is no longer needed: %s are freed.", w->name, w->first);
        break;
    case SCENE_OPTIMIZER:
        if (s->bytes[0] > 0)
            snprintf(out, n,
                     "Optimizer: groups that hold the same shards sum their gradients (all-reduce); rank 0 receives "
                     "%s. Then every rank updates its own shards.",
                     w->first);
        else
            snprintf(out, n, "Optimizer: every rank updates %s. Only a few numbers travel, for the gradient norm.",
                     w->replicated ? "all parameters, all alike" : "its own shards");
        break;
    case SCENE_LOSS:
        snprintf(out, n, "Step %d is done: loss %.4f, the mean over all ranks.", s->step, s->loss);
        break;
    }
}

static void in_korean(const telling *w, char *out, size_t n)
{
    const scene *s = w->s;
    switch (s->kind) {
    case SCENE_STEP:
        snprintf(out, n, "스텝 %d 시작: 각 랭크는 %s 들고 있습니다.", s->step,
                 w->replicated ? "파라미터와 옵티마이저 상태를 모두"
                 : w->stays
                     ? "유닛마다 자기 샤드와 전체 사본을(먼저 쓰일 유닛의 사본은 새것이고 나머지는 갱신 전의 낡은 "
                       "것입니다)"
                 : w->early ? "유닛마다 자기 샤드와, 먼저 쓰일 유닛의 전체를"
                            : "유닛마다 자기 샤드만");
        break;
    case SCENE_GATHER:
        snprintf(out, n, "모으기(all-gather) · %s: 랭크 0은 %s에서 %s를 받아 유닛 전체(%s)를 갖춥니다.", w->name,
                 w->from, w->first, w->second);
        break;
    case SCENE_COMPUTE:
        snprintf(out, n, "%s 계산%s%s: 연산 %d개.", s->backward ? "역전파" : "순전파", *w->name ? " · " : "", w->name,
                 s->operations);
        break;
    case SCENE_RELEASE:
        snprintf(out, n, "해제 · %s: 모았던 파라미터 %s를 메모리에서 비웁니다. 샤드는 그대로 남습니다.", w->name,
                 w->first);
        break;
    case SCENE_BACKWARD:
        snprintf(out, n, "순전파가 끝났습니다. 역전파를 시작합니다.");
        break;
    case SCENE_GRADIENTS:
        snprintf(out, n, "%s의 전체 그래디언트를 담을 메모리 %s를 확보합니다.", w->name, w->first);
        break;
    case SCENE_REDUCE:
        if (s->all_reduce)
            snprintf(out, n,
                     "합산(all-reduce) · %s: 모든 랭크의 그래디언트를 더합니다. 랭크 0은 %s를 받고, 다른 랭크와 "
                     "똑같이 합계 전체를 보관합니다.",
                     w->name, w->first);
        else
            snprintf(out, n,
                     "합산 후 분배(reduce-scatter) · %s: 그래디언트를 더합니다. 랭크 0은 %s에서 %s를 받고, 자기 "
                     "샤드에 해당하는 합계(%s)만 보관합니다.",
                     w->name, w->from, w->first, w->second);
        break;
    case SCENE_REDUCED:
        snprintf(out, n, "%s의 전체 그래디언트는 더 이상 필요 없으므로 %s를 비웁니다.", w->name, w->first);
        break;
    case SCENE_OPTIMIZER:
        if (s->bytes[0] > 0)
            snprintf(out, n,
                     "옵티마이저: 같은 샤드를 가진 그룹끼리 그래디언트를 더하며(all-reduce) 랭크 0은 %s를 받습니다. "
                     "그런 다음 각 랭크가 자기 샤드만 갱신합니다.",
                     w->first);
        else
            snprintf(out, n, "옵티마이저: 각 랭크가 %s 갱신합니다. 그래디언트 노름을 구하는 숫자 몇 개만 주고받습니다.",
                     w->replicated ? "모든 파라미터를 똑같이" : "자기 샤드만");
        break;
    case SCENE_LOSS:
        snprintf(out, n, "스텝 %d 종료: 모든 랭크의 평균 손실은 %.4f입니다.", s->step, s->loss);
        break;
    }
}

const char *tale_sentence(const tale *t, const scene *s, const char *language, char *text)
{
    char from[64];
    bool korean = strcmp(language, "ko") == 0;
    telling w = {.t = t,
                 .s = s,
                 .name = s->unit >= 0 ? t->units[s->unit].name : "",
                 .replicated = t->strategy == FSDP_NO_SHARD,
                 .early = s->gathered[0] > 0,
                 .stays = s->gathered[0] > 0 && t->strategy == FSDP_SHARD_OP};
    w.from = peers(t, korean, from, sizeof from);
    units_bytes(w.first, s->bytes[0]);
    int64_t whole = s->unit < 0 ? 0 : (int64_t)t->units[s->unit].gathered_bytes;
    int64_t shard = s->unit < 0 ? 0 : t->units[s->unit].shard_bytes[0];
    units_bytes(w.second, s->kind == SCENE_GATHER ? whole : shard);
    text[0] = '\0';
    (korean ? in_korean : in_english)(&w, text, TALE_SENTENCE);
    return text;
}
