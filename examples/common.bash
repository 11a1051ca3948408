# What the examples share: the command, a folder to work in, and the check of the loss. Sourced with the script's arguments.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
fsdp=${FSDP:-$root/build/fsdp}
[[ -x $fsdp ]] || fsdp=$(command -v fsdp) || { echo "no fsdp command: run make, or set FSDP" >&2; exit 1; }
work=${1:-$(mktemp -d)}
mkdir -p "$work"
cd "$work"
echo "in $work"

# train RANKS FLAGS...: `fsdp train` on so many ranks of this machine.
train()
{
    local ranks=$1
    shift
    "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train --output_dir run "$@"
}

# loss_below LIMIT: the mean loss of the last eight steps in run/metrics.jsonl.
loss_below()
{
    sed -n 's/.*"loss": *\([-+.0-9e]*\).*/\1/p' run/metrics.jsonl | tail -n 8 |
        awk -v limit="$1" '{ sum += $1; n++ }
            END { if (n && sum / n < limit) { printf "loss %.4f, below %s\n", sum / n, limit; exit 0 }
                  printf "loss %.4f is not below %s\n", n ? sum / n : -1, limit > "/dev/stderr"; exit 1 }'
}
