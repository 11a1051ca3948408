#!/bin/bash
# Includes follow the arrows that CMakeLists.txt states: a layer sees itself and what it depends on, down to base; cli/
# and include/ see only <fsdp/...>. The rule is read from CMakeLists.txt, and the check is itself checked: copies of the
# tree with one wrong include each must be refused.
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
        {
            split($0, parts, ":")
            file = parts[1]
            split(file, folders, "/")
            match($0, /["<][^">]*[">]/)
            quote = substr($0, RSTART, 1)
            header = substr($0, RSTART + 1, RLENGTH - 2)
            top = header
            sub("/.*", "", top)
            inner = header ~ "/" && top in layers
            if (header ~ /\.\.\//)
                why = "steps out of its folder"
            else if (folders[1] == "src" && !(folders[2] in layers))
                why = "lies in a folder that is no layer"
            else if (folders[1] == "src" && inner && !reaches(folders[2], top))
                why = "goes against the arrows: " folders[2] " does not reach " top
            else if (folders[1] != "src" && (inner || (quote == "\"" && header ~ "/")))
                why = folders[1] " sees only <fsdp/...>"
            else if (folders[1] == "include" && quote == "\"")
                why = "include sees only <fsdp/...>"
            else
                next
            printf "%s:%s: %s %s\n", file, parts[2], header, why
        }'
}

# A copy of the tree with the line $2 put into the file $1 must be refused.
refuses()
{
    local file=$1 line=$2 copy
    copy=$(mktemp -d)
    cp -r "$source_root"/{CMakeLists.txt,src,include,cli} "$copy"
    mkdir -p "$(dirname "$copy/$file")"
    printf '%s\n' "$line" >>"$copy/$file"
    local found
    found=$(wrong_includes "$copy")
    rm -rf "$copy"
    if [[ $found != *"$file"* ]]; then
        echo "the check does not see $line in $file" >&2
        return 1
    fi
}

wrong=$(wrong_includes "$source_root")
if [[ -n $wrong ]]; then
    echo "$wrong" >&2
    exit 1
fi

[[ $(grep -c '^fsdp_layer(' "$source_root/CMakeLists.txt") -ge 15 ]]
refuses src/base/wrong.c '#include "device/device.h"'
refuses src/models/wrong.c '#include "shard/unit.h"'
refuses src/models/deep/wrong.h '  #  include "comm/comm.h"'
refuses src/optim/wrong.c '#include "nn/module.h"'
refuses src/ckpt/wrong.c '#include <shard/unit.h>'
refuses src/device/cuda/wrong.cu '#include "tensor/tape.h"'
refuses src/tensor/wrong.c '#include "../nn/module.h"'
refuses src/nowhere/wrong.c '#include <stdio.h>'
refuses cli/wrong.c '#include "base/error.h"'
refuses cli/wrong.c '#include <train/train.h>'
refuses include/fsdp/wrong.h '#include "status.h"'
echo "includes follow the arrows of $(grep -c '^fsdp_layer(' "$source_root/CMakeLists.txt") layers"
