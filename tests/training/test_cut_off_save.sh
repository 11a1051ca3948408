#!/bin/bash
# Ranks give their parts of a local save their names one by one. A first save that was cut off in between is no checkpoint:
# the job begins once more, and ends like one that was never ended. A part that is not there at all is another matter: the
# disk of a rank may be missing, and the job is refused.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

layers=1
source "$FSDP_SOURCE/tests/training/jobs.bash"

losses() { sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }
flags=(--max_steps 3 --checkpoint_kind local --resume_from_checkpoint auto)
job whole 2 "${flags[@]}"
job other 2 "${flags[@]}"
for rank in 0 1; do
    part=checkpoints/step-00000003.rank-0000$rank
    rm -rf cut lost
    cp -r whole cut
    mv cut/$part cut/$part.tmp-0123456789abcdef
    job cut 2 "${flags[@]}"
    grep -q "starting from scratch" cut.log || fail "rank $rank: $(cat cut.log)"
    [[ $(losses whole | wc -l) == 3 && $(losses cut) == "$(losses whole)" ]] || fail "rank $rank: $(losses cut)"
    [[ -d cut/$part ]] || fail "rank $rank: $(ls cut/checkpoints)"

    # Parts of one step that are all there, of two saves: nothing was cut off.
    rm -rf mixed
    cp -r whole mixed
    rm -r mixed/$part
    cp -r other/$part mixed/$part
    ! try_job mixed 2 "${flags[@]}" || fail "rank $rank: its part is of another save, and the job began once more"
    grep -q "is on every rank" mixed.log || fail "rank $rank: $(cat mixed.log)"

    cp -r whole lost
    rm -r lost/$part
    ! try_job lost 2 "${flags[@]}" || fail "rank $rank: its part is gone, and the job began once more"
    grep -q "is on every rank" lost.log || fail "rank $rank: $(cat lost.log)"
done
echo "ok"
