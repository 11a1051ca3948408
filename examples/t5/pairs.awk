# Made articles with their summaries, one JSON record a line: awk -v n=1000 -v seed=1 -f pairs.awk
# An article says who did what, where and when among sentences that do not matter; its summary is that.
function pick(list, words, m) { m = split(list, words, " "); return words[1 + int(rand() * m)] }
function filler() {
    return pick("Many Some Few Most") " " pick("people readers visitors neighbours") " " pick("liked expected missed heard") " it."
}
BEGIN {
    srand(seed)
    for (i = 0; i < n; i++) {
        who = pick("Ada Grace Alan Edsger Barbara Donald")
        what = pick("opened closed sold painted visited")
        place = pick("bridge library museum bakery station")
        day = pick("Monday Tuesday Friday Sunday")
        printf "{\"text\": \"%s On %s %s %s the %s. %s\", \"summary\": \"%s %s the %s.\"}\n", \
            filler(), day, who, what, place, filler(), who, what, place
    }
}
