#!/bin/bash
# The guides are true: every command of docs/guide/en runs, ends as the page says and prints what the page shows; the
# Korean pages hold the same commands and outputs. usage: test_guides.sh [PAGE]
set -euo pipefail
source "$(dirname "$0")/support.bash"
source "$(dirname "$0")/guides.bash"

# The comparison itself: order counts, blanks do not.
printf 'one  two\nthree 7 ms\n' >printed
printf 'one two\nthree ... ms\n' >shown && shows printed shown
printf 'three ... ms\none two\n' >shown && ! shows printed shown >/dev/null || fail "the order of lines is not looked at"
printf 'one\n' >shown && ! shows printed shown >/dev/null || fail "half a line passes"

for page in "$guide"/{en,ko}/*.md; do
    name=${page##*/}
    fences "$guide/en/$name" >blocks.en || fail "docs/guide/en has no $name"
    fences "$guide/ko/$name" >blocks.ko || fail "docs/guide/ko has no $name"
    cmp -s blocks.en blocks.ko || fail "$name: English and Korean differ: $(diff blocks.en blocks.ko | head -5)"
done

# The page about speed has no figure of its own: each number of two digits or more stands in docs/benchmarks*.md.
figures() { awk '/^```/ { inside = !inside } !inside' "$@" | grep -oE '[0-9]([0-9]|[.,][0-9])+' | sort -u; }
figures "$source_root"/docs/benchmarks*.md >known
figures "$guide"/{en,ko}/how-fast.md >named
(($(wc -l <named) > 50)) || fail "how-fast.md names no figures"
[[ -z $(comm -23 named known) ]] || fail "how-fast.md has figures that docs/benchmarks*.md has not: $(comm -23 named known | xargs)"

for pair in "${guide_tests[@]}"; do
    [[ -e $source_root/tests/${pair#*=}.sh && -e $guide/en/${pair%%=*}.md ]] || fail "$pair: one of them is not there"
done

if grep -q '^FSDP_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt"; then
    echo "built with sanitizers: programs of a reader's own are linked in other builds"
else
    cmake --install "$build" --prefix "$work/installed" >/dev/null
    export PKG_CONFIG_PATH=$work/installed/lib/pkgconfig LD_LIBRARY_PATH=$work/installed/lib
fi
for page in "$guide"/en/${1:-*}.md; do
    name=${page##*/} name=${name%.md}
    [[ " ${guide_tests[*]}" != *" $name="* ]] || continue
    grep -q '^```c file=' "$page" && [[ -z ${PKG_CONFIG_PATH:-} ]] && continue
    follow_page "$name"
done
