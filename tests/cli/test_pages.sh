#!/bin/bash
# The pages that commands write, without a browser: the data in them is what the command prints, nothing in them points
# elsewhere, and a plan that does not fit says why. `make test-browser` looks at them in Chromium.
set -euo pipefail
. "${FSDP_SOURCE:?}/tests/cli/support.bash"

# data FILE: the JSON that a page holds
data()
{
    sed -n 's/.*<script type="application\/json" id="data">\(.*\)<\/script>.*/\1/p' "$1"
}

# number KEY FILE: the first number that the JSON gives it
number() { grep -oE "\"$1\": *[0-9]+" "$2" | head -1 | grep -oE '[0-9]+$'; }

# self_contained FILE: no address but the name of SVG, no markup that fetches, scripts and styles by nonce only
self_contained()
{
    ! sed 's|http://www.w3.org/2000/svg||g; s|http-equiv||' "$1" | grep -qiE 'https?:|src=|href=|@import|url\((["'\'']|h)' ||
        fail "$1 points elsewhere"
    [[ $(grep -c '<script' "$1") == 3 && $(grep -c '<style' "$1") == 1 ]] || fail "$1: scripts and styles"
    grep -q "default-src 'none'" "$1" || fail "$1 has no policy"
}

plan=(plan --preset tiny --world_size 2 --device cpu --sharding_strategy full)
"$fsdp" "${plan[@]}" --json >plan.json
"$fsdp" "${plan[@]}" --timeline step.html >printed
self_contained step.html
data step.html >step.json
[[ $(number total step.json) == "$(grep -A40 '"strategy": "full"' plan.json | grep -m1 -oE '"total": [0-9]+' | grep -oE '[0-9]+')" ]] ||
    fail "the page and the command plan different totals"
grep -q '^total' printed || fail "--timeline leaves the table out"

"$fsdp" "${plan[@]}" --units >units
[[ $(grep -c '^model.layers' units) == 5 ]] || fail "units of the tiny preset: $(cat units)"
grep -qE '^all +2.31M' units || fail "units do not add up: $(cat units)"
"$fsdp" "${plan[@]}" --units --json >units.json
[[ $(grep -o '"parameters": [0-9]*' units.json | awk '{n += $2} END {print n}') == "$(number parameters plan.json)" ]] ||
    fail "the units' parameters are not the model's"

"$fsdp" "${plan[@]}" --timeline two.html --against='--activation_checkpointing full --train_batch_size 4' >/dev/null
self_contained two.html
data two.html >two.json
"$fsdp" "${plan[@]}" --activation_checkpointing full --train_batch_size 4 --json >other.json
for total in "$(number total step.json)" \
    "$(grep -A40 '"strategy": "full"' other.json | grep -m1 -oE '"total": [0-9]+' | grep -oE '[0-9]+')"; do
    grep -q "\"total\":$total," two.json || fail "two plans: $total is not in the page"
done

refused 2 "say --timeline" "${plan[@]}" --against=--cpu_offload
refused 2 "no_such_flag" "${plan[@]}" --timeline x.html --against=--no_such_flag
refused 2 "no/such/folder" "${plan[@]}" --timeline no/such/folder/x.html

# Does not fit: exit code 2, the reasons, and the page all the same.
code=0
"$fsdp" "${plan[@]}" --fit 20MB --timeline misfit.html >why 2>err || code=$?
[[ $code == 2 ]] || fail "a plan that does not fit exits with $code"
[[ $(wc -l <err) == 1 ]] && grep -q "nothing fits" err || fail "not the one message: $(cat err)"
grep -q "Why it does not fit: full takes" why || fail "no reasons: $(cat why)"
grep -q "^activations: linear" why || fail "no values at the peak: $(cat why)"
grep -q "^--activation_checkpointing full" why || fail "no remedies: $(cat why)"
data misfit.html | grep -q '"limit":20000000' || fail "the page does not know the limit"
# The picture by itself: well-formed, the same colours, nothing from elsewhere.
"$fsdp" "${plan[@]}" --svg step.svg --against='--activation_checkpointing full' >/dev/null
! sed 's|http://www.w3.org/2000/svg||' step.svg | grep -qiE 'https?:|<script|<image|href=' || fail "step.svg points elsewhere"
grep -q '</svg>' step.svg && grep -q 'class="outline"' step.svg && grep -q '<title>activations</title>' step.svg || fail "step.svg"
! grep -qE 'nan|inf' <(grep '<path' step.svg) || fail "step.svg has numbers that are none"
! command -v python3 >/dev/null || python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse("step.svg")' || fail "step.svg is not XML"

# A tale: one page with every strategy, in both languages, and the lines of the terminal in it.
for language in en ko; do
    "$fsdp" explain --sharding_strategy all --lang $language --html tale.html >told
    self_contained tale.html
    [[ $(head -2 tale.html | grep -c "lang=\"$language\"") == 1 ]] || fail "the page is not in $language"
    data tale.html >tale.json
    [[ $(grep -o '"strategy":' tale.json | wc -l) == 4 ]] || fail "not four strategies on two ranks"
    [[ $(grep -o '"kind":' tale.json | wc -l) == "$(grep -cE '^  \|[#=+.]{24}\|' told)" ]] || fail "scenes and lines differ"
done
"$fsdp" explain --ranks 4 --sharding_strategy hybrid >told
grep -q "groups that hold the same shards" told || fail "hybrid: $(tail -5 told)"
grep -qE "Memory taken: ([0-9.]+ [KM]iB), planned: \1\." told || fail "memory: $(tail -2 told)"
refused 2 "--ranks" explain --ranks 1
refused 2 "4, 6 or 8 ranks" explain --sharding_strategy hybrid
refused 2 "no/such/folder" explain --html no/such/folder/x.html
echo "pages hold what the command prints"
