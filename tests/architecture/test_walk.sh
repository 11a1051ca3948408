#!/bin/bash
# The walk in docs/architecture.md is true: every file that it names is there, and defines each function that is named
# after it. The check is itself checked: walks with one wrong name each must be refused.
set -euo pipefail
source_root=${FSDP_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}

walk=$(awk '/^## /{inside = /^## A walk/} inside' "$source_root/docs/architecture.md")

# Prints one line per file or function of the walk on standard input that does not exist; none when all is well.
wrong_names()
{
    local file="" word name
    # Words in backticks: a path, or a function as `name()`, which belongs to the last path before it.
    while read -r word; do
        if [[ $word == *"()" ]]; then
            name=${word%"()"}
            if [[ -f $source_root/$file ]] && ! grep -qE "^[a-z][a-z0-9_ ]*[ *]$name\(" "$source_root/$file"; then
                echo "$file does not define $name()"
            fi
        elif [[ $word == */* ]]; then
            file=$word
            [[ -f $source_root/$file ]] || echo "$file is not there"
        fi
    done < <(grep -oE '`[^` ]+`' | tr -d '`')
}

wrong=$(wrong_names <<<"$walk")
if [[ -n $wrong ]]; then
    printf 'docs/architecture.md, the walk:\n%s\n' "$wrong" >&2
    exit 1
fi

n=$(grep -oE '`[a-z0-9_]+\(\)`' <<<"$walk" | wc -l)
[[ $n -ge 25 ]] || { echo "the walk names only $n functions" >&2; exit 1; }

for change in 's/`fsdp_step()`/`fsdp_leap()`/' 's/`unit_gather()`/`comm_all_gather()`/' 's/loop\.c/lopp.c/'; do
    changed=$(sed "$change" <<<"$walk")
    [[ $changed != "$walk" ]] || { echo "the walk has nothing that $change would change" >&2; exit 1; }
    [[ -n $(wrong_names <<<"$changed") ]] || { echo "the check does not see $change" >&2; exit 1; }
done
echo "the walk names $n functions, and all are where it says"
