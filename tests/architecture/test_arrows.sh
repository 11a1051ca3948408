#!/bin/bash
# Includes follow the arrows that CMakeLists.txt states: a layer sees itself and what it depends on, down to base; cli/
# and include/ see only <fsdp/...>; train sees nothing from inside of shard, also not through other headers, since it is
# a program that a user could have written; nor do bench and generate, but for the one header that is meant for them.
# The rule is read from CMakeLists.txt, and the check is itself checked: it must find every wrong include that is put
# into a copy of the tree.
set -euo pipefail
source_root=${FSDP_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}

# Prints one line per wrong include under the tree $1; none when all is well.
wrong_includes()
{
    local tree=$1
    {
        sed -n 's/^fsdp_layer(\([a-z]*\).*/ARROWS \1/p' "$tree/CMakeLists.txt"
        sed -n 's/^fsdp_layer(\([a-z]*\) *DEPENDS \([a-z ]*\).*/ARROWS \1 \2/p' "$tree/CMakeLists.txt"
        cd "$tree" && find src cli include -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
            xargs -0 -r grep -HnE '^[[:space:]]*#[[:space:]]*include' || true
    } | awk '
        # Everything that `from` reaches, through any number of arrows.
        function reaches(from, to,    i, n, next_layers) {
            if (from == to)
                return 1
            n = split(arrows[from], next_layers, " ")
            for (i = 1; i <= n; i++)
                if (reaches(next_layers[i], to))
                    return 1
            return 0
        }
        $1 == "ARROWS" {
            layers[$2] = 1
            for (i = 3; i <= NF; i++)
                arrows[$2] = arrows[$2] " " $i
            next
        }
        # Whether `header` is, or includes through any number of headers, `wanted`.
        function brings(header, wanted,    i, n, list) {
            if (header == wanted)
                return 1
            if (header in seen)
                return 0
            seen[header] = 1
            n = split(included["src/" header], list, " ")
            for (i = 1; i <= n; i++)
                if (brings(list[i], wanted))
                    return 1
            return 0
        }
        function why_wrong(    inner, top) {
            top = header
            sub("/.*", "", top)
            inner = header ~ "/" && top in layers
            if (header ~ /\.\.\//)
                return "steps out of its folder"
            if (folders[1] == "src" && !(folders[2] in layers))
                return "lies in a folder that is no layer"
            if (folders[1] == "src" && inner && !reaches(folders[2], top))
                return "goes against the arrows: " folders[2] " does not reach " top
            split("", seen)
            if (folders[1] == "src" && folders[2] == "train" && (top == "shard" || brings(header, "shard/model.h")))
                return "is inside of shard: train uses <fsdp/...> or state/state.h"
            if (folders[1] == "src" && folders[2] ~ /^(bench|generate)$/ &&
                ((top == "shard" && header != "shard/sharded.h") || brings(header, "shard/model.h")))
                return "is inside of shard: " folders[2] " uses <fsdp/...> or shard/sharded.h"
            if (folders[1] != "src" && (inner || (quote == "\"" && header ~ "/")))
                return folders[1] " sees only <fsdp/...>"
            if (folders[1] == "include" && quote == "\"")
                return "include sees only <fsdp/...>"
            return ""
        }
        {
            split($0, parts, ":")
            n_lines++
            files[n_lines] = parts[1]
            numbers[n_lines] = parts[2]
            match($0, /["<][^">]*[">]/)
            quotes[n_lines] = substr($0, RSTART, 1)
            headers[n_lines] = substr($0, RSTART + 1, RLENGTH - 2)
            included[parts[1]] = included[parts[1]] " " headers[n_lines]
        }
        END {
            for (line = 1; line <= n_lines; line++) {
                header = headers[line]
                quote = quotes[line]
                split(files[line], folders, "/")
                why = why_wrong()
                if (why != "")
                    printf "%s:%s: %s %s\n", files[line], numbers[line], header, why
            }
        }'
}

# plants FILE LINE: puts the line into a file of the copy, where the check must find it
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$source_root"/{CMakeLists.txt,src,include,cli} "$copy"
planted=()
plants()
{
    mkdir -p "$(dirname "$copy/$1")"
    printf '%s\n' "$2" >>"$copy/$1"
    planted+=("$1:$(wc -l <"$copy/$1"): ")
}

wrong=$(wrong_includes "$source_root")
if [[ -n $wrong ]]; then
    echo "$wrong" >&2
    exit 1
fi

[[ $(grep -c '^fsdp_layer(' "$source_root/CMakeLists.txt") -ge 15 ]]
plants src/base/wrong.c '#include "device/device.h"'
plants src/models/wrong.c '#include "shard/unit.h"'
plants src/models/deep/wrong.h '  #  include "comm/comm.h"'
plants src/optim/wrong.c '#include "nn/module.h"'
plants src/ckpt/wrong.c '#include <shard/unit.h>'
plants src/device/cuda/wrong.cu '#include "tensor/tape.h"'
plants src/tensor/wrong.c '#include "../nn/module.h"'
plants src/nowhere/wrong.c '#include <stdio.h>'
plants src/train/wrong.c '#include "shard/plan/schedule.h"'
plants src/train/wrong.h '#include "state/model_state.h"'
plants src/bench/wrong.c '#include "shard/step/optimizer.h"'
plants src/bench/wrong.c '#include "shard/offload/offload.h"'
plants src/generate/wrong.h '#include "state/model_state.h"'
plants cli/wrong.c '#include "base/error.h"'
plants cli/wrong.c '#include <train/train.h>'
plants include/fsdp/wrong.h '#include "status.h"'
found=$(wrong_includes "$copy")
for place in "${planted[@]}"; do
    if [[ $found != *"$place"* ]]; then
        echo "the check does not see the wrong include at $place" >&2
        exit 1
    fi
done
echo "includes follow the arrows of $(grep -c '^fsdp_layer(' "$source_root/CMakeLists.txt") layers"
