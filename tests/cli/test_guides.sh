#!/bin/bash
# The guides are true: every command of docs/guide/en runs, ends as the page says and prints what the page shows; the
# Korean pages hold the same commands and outputs.
#
# In a page, a fence "sh" is run, in one folder per page; "sh exit=N" must end with N. A fence "text" after it is what appears: its lines
# in this order, among others; runs of blanks count as one, and "..." stands for anything. A fence "c file=NAME" (or json, yaml) is
# written to NAME. usage: test_guides.sh [PAGE]
set -euo pipefail
source "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto has no launcher"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FSDP_FLIGHT_DIR
guide=$source_root/docs/guide
export PATH=$build:$PATH OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0

# fences FILE: its fenced blocks, markers included
fences() { awk '/^```/ { print; inside = !inside; next } inside' "$1"; }

# shows PRINTED SHOWN: the lines of SHOWN are in PRINTED, in order; if not, names the first that is missing
shows()
{
    awk 'function plain(line) { gsub(/[ \t]+/, " ", line); sub(/ $/, "", line); return line }
         function fits(line, pattern,    parts, n, i, at) {
             n = split(pattern, parts, /\.\.\./)
             if (n == 1)
                 return line == pattern
             if (index(line, parts[1]) != 1)
                 return 0
             line = substr(line, length(parts[1]) + 1)
             for (i = 2; i <= n; i++) {
                 at = index(line, parts[i])
                 if (parts[i] != "" && !at)
                     return 0
                 if (parts[i] != "")
                     line = substr(line, at + length(parts[i]))
             }
             return parts[n] == "" || line == ""
         }
         NR == FNR { printed[++n] = plain($0); next }
         /[^ .]/ { wanted = plain($0); while (++k <= n && !fits(printed[k], wanted)); if (k > n) { print "not printed: " $0; exit 1 } }
        ' "$1" "$2"
}

# run_block HEAD FILE: runs the commands in FILE; what they print is in "printed"
run_block()
{
    local code=0 wanted=0
    [[ $1 =~ exit=([0-9]+) ]] && wanted=${BASH_REMATCH[1]}
    timeout 300 bash -eo pipefail "$2" >../printed 2>&1 </dev/null || code=$?
    [[ $code == "$wanted" ]] || fail "exit code $code instead of $wanted of: $(cat "$2")"$'\n'"$(tail -20 ../printed)"
}

# follow PAGE: does what the page says, in a folder of its own
follow()
{
    local head='' line file
    mkdir here && cd here
    ln -s "$source_root/examples" examples
    while IFS= read -r line; do
        if [[ $line != '```'* ]]; then
            printf '%s\n' "$line" >>../block
        elif [[ -z $head ]]; then
            head=${line#'```'} && head=${head:-none} && : >../block
        else
            case $head in
            sh*) run_block "$head" ../block ;;
            text) shows ../printed ../block || fail "$1: a page shows what does not appear; printed was:"$'\n'"$(cat ../printed)" ;;
            *\ file=*) cp ../block "${head#* file=}" ;;
            esac
            head=
        fi
    done < <(fences "$1")
    cd .. && rm -rf here
}

# The comparison itself: order counts, blanks do not.
printf 'one  two\nthree 7 ms\n' >printed
printf 'one two\nthree ... ms\n' >shown && shows printed shown
printf 'three ... ms\none two\n' >shown && ! shows printed shown >/dev/null || fail "the order of lines is not looked at"
printf 'one\n' >shown && ! shows printed shown >/dev/null || fail "half a line passes"

if grep -q '^FSDP_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt"; then
    echo "built with sanitizers: programs of a reader's own are linked in other builds"
else
    cmake --install "$build" --prefix "$work/installed" >/dev/null
    export PKG_CONFIG_PATH=$work/installed/lib/pkgconfig LD_LIBRARY_PATH=$work/installed/lib
fi
for page in "$guide"/en/${1:-*}.md; do
    name=${page##*/}
    fences "$page" >blocks.en
    fences "$guide/ko/$name" >blocks.ko || fail "docs/guide/ko has no $name"
    cmp -s blocks.en blocks.ko || fail "$name: English and Korean differ: $(diff blocks.en blocks.ko | head -5)"
    grep -q '^```c file=' blocks.en && [[ -z ${PKG_CONFIG_PATH:-} ]] && continue
    began=$SECONDS
    follow "$page"
    echo "$name: $(grep -c '^```sh' blocks.en) blocks of commands, $((SECONDS - began)) s"
done
