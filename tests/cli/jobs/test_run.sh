#!/bin/bash
# `fsdp train` as its users see it: how soon it starts, what it writes in a pipe and on a terminal, which rank read which
# sample, what a kill leaves behind.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
export OMP_NUM_THREADS=1
sanitized=$(grep -c '^FSDP_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt" || true)

# ranks N FLAGS...: a small byte-level model on N ranks.
ranks()
{
    local n=$1
    shift
    "$fsdp" run --standalone --nproc-per-node "$n" --plain "$fsdp" train --device cpu --model_type llama_v3 --hidden_width 16 \
        --num_layers 1 --num_heads 2 --intermediate_size 32 --max_context_width 16 --sharding_strategy full "$@"
}

# --- the first step of the tiny preset on 2 ranks ---------------------------------------------------------------------------
# The best of a few, from the command to the line of step 1. The promise is one second on a machine that has nothing else to
# do; the bound is what a busy one must still reach.
best=1000000
for _ in 1 2 3; do
    begin=${EPOCHREALTIME/./}
    while read -r line; do
        [[ $line != *"Batch 1 "* ]] || break
    done < <(cd "$source_root" && "$fsdp" run --standalone --nproc-per-node 2 "$fsdp" train --device cpu --preset tiny \
        --sharding_strategy full --max_steps 1 --logging_freq 1 --sample_tokens 0 --no_checkpoint_at_end --output_dir "$work/start" --overwrite)
    end=${EPOCHREALTIME/./}
    wait $! || true # whoever reads has left; until it has ended, the folder is its own
    [[ $line == *"Batch 1 Loss: "* ]] || fail "no first step: $line"
    ((end - begin < best * 1000)) && best=$(((end - begin) / 1000))
done
echo "start to first step of the tiny preset on 2 ranks: $best ms"
((sanitized || best < 8000)) || fail "the first step comes after $best ms"

# --- which rank read which sample -------------------------------------------------------------------------------------------
# 37 contexts of 16 tokens, the end token included.
head -c $((37 * 16 - 1)) "$source_root/README.md" | tr '\0-\37\200-\377' ' ' >text.txt
for n in 1 2 3; do
    ranks "$n" --dataset text.txt --epochs 2 --train_batch_size 4 --log_samples "samples.$n" --output_dir "run.$n" >"log.$n"
    # Every sample twice, in another order the second time, and no sample on two ranks in one step.
    awk -v n=37 '{ for (i = 3; i <= NF; i++) seen[$i]++ }
        END { for (i = 0; i < n; i++) if (seen[i] != 2) { print "sample " i " came " seen[i] + 0 " times"; exit 1 } }' "samples.$n" ||
        fail "$n ranks"
    [[ $(cut -d' ' -f2 "samples.$n" | sort -u | wc -l) == "$n" ]] || fail "$n ranks: not every rank has read"
done
[[ $(awk '$1 == 1' samples.1) != $(awk '$1 == 11 { $1 = 1; print }' samples.1) ]] || fail "both epochs have one order"
# Stopped on 3 ranks and gone on with on 2 (the same global batch of 6): together every sample once.
ranks 3 --dataset text.txt --epochs 1 --max_steps 3 --train_batch_size 2 --log_samples samples.r --output_dir first >/dev/null
ranks 2 --dataset text.txt --epochs 1 --train_batch_size 3 --log_samples samples.r --output_dir second \
    --resume_from_checkpoint first/checkpoints >resumed
grep -q '^resumed from .* at step 3' resumed || fail "not resumed: $(head -3 resumed)"
[[ $(cut -s -d' ' -f3- samples.r | tr ' ' '\n' | grep . | sort -n | tr '\n' ' ') == "$(seq 0 36 | tr '\n' ' ')" ]] ||
    fail "after a resume at another world size samples are missing or came twice"

# --- a pipe gets plain lines, a terminal one line in place -------------------------------------------------------------------
! grep -q $'\033\|\r' log.2 || fail "escape sequences in a pipe"
[[ $(grep -c '^Batch [0-9]* Loss: [0-9.]*, Speed: [0-9.]* samples/sec, lr: [0-9.e-]*' log.2) == 10 ]] || fail "not a line per step"
for line in '^steps  *10' '^loss  *[0-9.]* (' '^peak memory ' '^files of the run run.2$' '^metrics  *run.2/metrics.jsonl$' \
    '^model rate .* utilization '; do
    grep -q "$line" log.2 || fail "the summary has no line '$line'"
done

# --- the traces that the summary names are there, also of runs that end before the trace does or were resumed behind its start --
ranks 2 --dataset text.txt --max_steps 3 --trace traces/t --metrics figures/m --log_samples figures/s --output_dir traced >log.trace
grep -q '^trace  *traces/t$' log.trace || fail "traces: $(grep trace log.trace)"
tail -n 1 traces/t | grep -q '^]$' || fail "the trace is not whole"
for rank in 0 1; do
    grep -q '"name":"rank '$rank'"' traces/t || fail "the trace lacks rank $rank"
done
ranks 1 --dataset text.txt --max_steps 6 --trace traces/resumed --output_dir traced --resume_from_checkpoint traced/checkpoints >log.trace
grep -q '^trace  *traces/resumed$' log.trace || fail "traces of a resumed run: $(grep trace log.trace)"
[[ -s traces/resumed ]] || fail "a resumed run left no trace"
ranks 1 --dataset text.txt --max_steps 1 --trace traces/none --output_dir untraced >log.trace
! grep -q '^trace ' log.trace || fail "a trace is named that does not exist"
grep -q 'nothing was traced' log.trace || fail "nobody says that nothing was traced"

if have_terminal; then
    TERM=xterm script -qec "stty cols 60; '$fsdp' train --device cpu --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2 \
        --intermediate_size 32 --max_context_width 16 --dataset text.txt --max_steps 20 --output_dir tty" typescript >/dev/null
    grep -q $'\r\033\[KBatch' typescript || fail "progress is not rewritten in place"
    tr '\r' '\n' <typescript | sed 's/\x1b\[K//g' | awk '/^Batch/ && length > 60 { exit 1 }' || fail "progress wraps at 60 columns"
    grep -qE $'\r\033\\[KBatch [0-9]+/20, loss [0-9.]+, [0-9.kM]+ tokens/s' typescript || fail "the live line: $(cat -v typescript | tail -n 5)"
    # Under `fsdp run`, too: one line, rewritten, and lines that stay do not run into it.
    TERM=xterm script -qec "stty cols 60; '$fsdp' run --standalone --nproc-per-node 2 '$fsdp' train --device cpu --model_type llama_v3 --hidden_width 16 \
        --num_layers 1 --num_heads 2 --intermediate_size 32 --max_context_width 16 --dataset text.txt --max_steps 20 --output_dir tty2" typescript >/dev/null
    grep -qE $'\r\033\\[KBatch [0-9]+/20, loss' typescript || fail "no live line under fsdp run: $(cat -v typescript | tail -n 5)"
    tr '\r' '\n' <typescript | sed 's/\x1b\[K//g' | awk '/^Batch/ && length > 60 { exit 1 }' || fail "progress wraps under fsdp run"
    [[ $(grep -c 'Batch' typescript) -le 3 ]] || fail "under fsdp run progress scrolls: $(cat -v typescript)"
    # Output that also goes elsewhere stays plain: files of --log_dir, and what the rank pipes into another program.
    small="--device cpu --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32 --max_context_width 16 --dataset text.txt --max_steps 20"
    TERM=xterm script -qec "'$fsdp' run --standalone --log_dir logs --tee 3 '$fsdp' train $small --output_dir tty3" typescript >/dev/null
    grep -qE '^Batch 20 Loss: ' logs/attempt_0/0/stdout.log || fail "the log lacks progress: $(find logs; cat -v typescript)"
    TERM=xterm script -qec "'$fsdp' run --standalone bash -c \"'$fsdp' train $small --output_dir tty4 | tee piped\"" typescript >/dev/null
    grep -qE '^Batch 20 Loss: ' piped || fail "what is piped on is rewritten: $(cat -v piped)"
    # What the launcher says does not run into the line: a rank that dies leaves it standing.
    TERM=xterm script -qec "'$fsdp' run --standalone bash -c 'printf \"Batch 1/9\\r\"; kill -9 \$\$'" typescript >/dev/null || true
    grep -q 'Batch 1/9' typescript || fail "the line is not shown: $(cat -v typescript)"
    grep -qE 'Batch 1/9.*fsdp run: .*killed by signal 9' <(sed 's/\r\x1b\[K/\n/g' typescript) && fail "lines run into each other: $(cat -v typescript)"
fi

# --- on several ranks every rank that fails says one line with its number --------------------------------------------------
code=0
ranks 2 --dataset /no/such/data >out 2>err || code=$?
[[ $code == 2 ]] || fail "two ranks without data: exit code $code"
for rank in 0 1; do
    [[ $(grep -c "fsdp train: rank $rank: /no/such/data: there is no such file or folder" err) -le 1 ]] || fail "rank $rank repeats itself"
done
grep -q "rank [01]: /no/such/data" err || fail "no rank says why: $(cat err)"
[[ $(grep -vc "^\(\[rank 1\] \)\?fsdp train: rank [01]: \|^fsdp run: rank [01] " err) == 0 ]] || fail "other lines: $(cat err)"
[[ ! -e fsdp_runs ]] || fail "a run folder is left behind"

# --- kill -9 leaves whole lines --------------------------------------------------------------------------------------------
"$fsdp" train --device cpu --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32 \
    --max_context_width 16 --dataset text.txt --max_steps 1000000 --logging_freq 1000 --output_dir killed >/dev/null &
victim=$!
for _ in $(seq 1200); do
    [[ -s killed/metrics.jsonl && $(wc -l <killed/metrics.jsonl) -gt 20 ]] && break
    sleep 0.05
done
kill -9 "$victim"
wait "$victim" 2>/dev/null || true
n=$(wc -l <killed/metrics.jsonl)
((n > 20)) || fail "killed after $n lines"
awk '{ sub(" +$", "") } substr($0, 1, 9) != "{\"step\": " || substr($0, length) != "}" { print NR ": " $0; exit 1 } $2 != NR "," { exit 1 }' \
    killed/metrics.jsonl || fail "a line is torn or missing"
echo "samples, pipes, terminals and kills are as they should be"
