# Made articles with their summaries, one JSON record a line: awk -v n=1000 -v seed=1 -f words.awk -f pairs.awk
# An article says who did what, where and when among sentences that do not matter; its summary is that.
function filler() {
    return pick(many) " " pick(people) " " pick(felt) " it."
}
BEGIN {
    srand(seed)
    for (i = 0; i < n; i++) {
        fact = "On " pick(days) " " (who = pick(names)) " " (what = pick(verbs)) " the " (place = pick(places)) "."
        before = rand() < 0.5 ? filler() " " : ""
        printf "{\"text\": \"%s%s %s\", \"summary\": \"%s %s the %s.\"}\n", before, fact, filler(), who, what, place
    }
}
