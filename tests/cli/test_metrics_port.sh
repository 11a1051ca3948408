#!/bin/bash
# --metrics_port: two ranks train and are scraped by hand. The text is what Prometheus wants, its numbers are those of
# metrics.jsonl, every series is documented, and deploy/grafana asks for none that does not exist. With
# FSDP_PROMETHEUS_HOOK=COMMAND, the command is run with the port while the job trains.
set -euo pipefail
. "$(dirname "$0")/support.bash"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1
seq 1 4000 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 32 --num_layers 2 --num_heads 2
    --intermediate_size 64 --max_context_width 32 --train_batch_size 4 --dataset text.txt --sharding_strategy full --sample_tokens 0
    --validation_split 0.1 --validation_batches 1 --validation_freq 5 --checkpoint_freq 5 --keep_checkpoints 1)
"$fsdp" run --standalone --nproc-per-node 2 --max_restarts 1 --plain "${train[@]}" --max_steps 1000000 --output_dir run --metrics_port auto --resume auto \
    >run.log 2>&1 </dev/null &
job=$!

# until COMMAND...: waits until it succeeds
until_true()
{
    for _ in $(seq 600); do
        if "$@"; then return; fi
        kill -0 "$job" 2>/dev/null || { [[ -n ${ending:-} ]] || { cat run.log >&2; fail "the job has ended"; }; }
        sleep 0.1
    done
    tail -5 run.log >&2
    fail "not within a minute: $*"
}

without_server()
{
    ! grep -q 'built without libmicrohttpd' run.log || { echo "skipped: built without libmicrohttpd"; exit 77; }
}
served() { without_server; grep -q 'metrics for Prometheus: http://127.0.0.1:[0-9]*/metrics' run.log; }
until_true served
port=$(grep -o 'http://127.0.0.1:[0-9]*' run.log | grep -o '[0-9]*$' | head -1)

# ask REQUEST: the answer to these bytes, head and body
ask()
{
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '%b' "$1" >&3 2>/dev/null || true
    timeout 60 cat <&3 2>/dev/null || true
    exec 3>&-
}

value() { awk -v series="$1" '$1 == series {print $2}' scrape; } # value SERIES: in the last scrape

scrape()
{
    ask 'GET /metrics HTTP/1.0\r\n\r\n' | tr -d '\r' >answer
    sed '1,/^$/d' answer >scrape
}

trained()
{
    scrape
    [[ $(value fsdp_step) -ge ${1:?} && -n $(value fsdp_validation_loss) && $(value fsdp_checkpoint_step) -ge 5 ]]
}
until_true trained 12
grep -q '^HTTP/1.[01] 200' answer || fail "$(head -1 answer)"
grep -qi '^content-type: text/plain; version=0.0.4' answer || fail "the content type is wrong: $(head -9 answer)"

# Every line is HELP, TYPE or a sample; each family is told of once, before its samples; no series comes twice.
awk '
    /^# HELP fsdp_[a-z_]+ .*\.$/ {if (help[$3]++) bad("told twice"); next}
    /^# TYPE fsdp_[a-z_]+ (gauge|counter)$/ {
        if (type[$3] != "") bad("typed twice")
        type[$3] = $4
        if (($4 == "counter") != ($3 ~ /_total$/)) bad("name and type disagree")
        next
    }
    match($0, /^fsdp_[a-z_]+/) {
        name = substr($0, 1, RLENGTH)
        rest = substr($0, RLENGTH + 1)
        if (!help[name] || type[name] == "") bad("not told of")
        if (rest !~ /^(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? (-?[0-9.]+(e[-+][0-9]+)?|NaN|[-+]Inf)$/) bad("not a sample")
        sub(/ [^ ]*$/, "")
        if (seen[$0]++) bad("comes twice")
        n++
        next
    }
    {bad("neither")}
    function bad(why) {print why ": " $0; failed = 1}
    END {if (n < 80) {print n " samples only"; failed = 1}; exit failed}' scrape >&2 || fail "the text is malformed"

# Both ranks, every lap; the numbers of the newest step are those of its line.
for rank in 0 1; do
    for lap in data forward backward optimizer validation save other; do
        [[ -n $(value "fsdp_lap_seconds_total{rank=\"$rank\",lap=\"$lap\",kind=\"work\"}") ]] || fail "rank $rank: no lap $lap"
    done
    [[ -n $(value "fsdp_lap_seconds{rank=\"$rank\",lap=\"all_gather\",kind=\"wait\"}") ]] || fail "rank $rank: no wait"
    [[ $(value "fsdp_memory_bytes{rank=\"$rank\"}") -gt 10000 ]] || fail "rank $rank: no memory"
done
step=$(value fsdp_step)
line() { grep -q "\"step\": *$step," run/metrics.jsonl; }
until_true line
for pair in loss:fsdp_loss grad_norm:fsdp_gradient_norm lr:fsdp_learning_rate seconds:fsdp_step_seconds 'memory:fsdp_memory_bytes{rank="0"}'; do
    theirs=$(grep "\"step\": *$step," run/metrics.jsonl | grep -o "\"${pair%%:*}\": *[-0-9.e+]*" | head -1 | sed 's/.*: *//')
    awk -v a="$theirs" -v b="$(value "${pair#*:}")" 'BEGIN {d = a - b; if (d < 0) d = -d; exit !(a != "" && b != "" && d <= 1e-6 * (b < 0 ? -b : b))}' ||
        fail "step $step: ${pair#*:} is $(value "${pair#*:}"), ${pair%%:*} in metrics.jsonl $theirs"
done
[[ $(value fsdp_steps_total) == "$step" || $(value fsdp_steps_total) == $((step + 1)) ]] || fail "steps_total $(value fsdp_steps_total) at step $step"

# What exists (the tables of the source) is what is served here, documented, and asked for by deploy/grafana.
names() { grep -oh 'fsdp_[a-z_]*' "$@" | sort -u; }
grep -oh '"fsdp_[a-z_]*["{]' "$source_root/src/observe/serve/exposition.c" | tr -d '"{' | sort -u >exist
grep -o '^fsdp_[a-z_]*' scrape | sort -u >served
comm -23 exist served | grep -v '^fsdp_gpu_\|^fsdp_loss_scale$' >missing || true
[[ ! -s missing ]] || fail "not served: $(cat missing)"
comm -13 exist served >unknown
[[ ! -s unknown ]] || fail "served, but in no table: $(cat unknown)"
names "$source_root/docs/metrics.md" >documented
diff exist documented >&2 || fail "docs/metrics.md lists other series"
for file in dashboard.json alerts.yml; do
    names "$source_root/deploy/grafana/$file" | comm -13 exist - >unknown
    [[ ! -s unknown ]] || fail "deploy/grafana/$file asks for $(cat unknown)"
done
names "$source_root/deploy/grafana/dashboard.json" | comm -23 exist - >unshown
[[ ! -s unshown ]] || fail "no panel shows $(cat unshown)"

[[ -z ${FSDP_PROMETHEUS_HOOK:-} ]] || "$FSDP_PROMETHEUS_HOOK" "$port" served

# Refused: other paths, other methods, a taken port; the run goes on.
[[ $(ask 'GET /../../etc/passwd HTTP/1.0\r\n\r\n' | head -1) == *" 404 "* ]] || fail "a path outside is not refused"
[[ $(ask 'POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc' | head -1) == *" 405 "* ]] || fail "POST is not refused"
refused 2 "--metrics_port $port: cannot listen at 127.0.0.1" train "${train[@]:2}" --max_steps 1 --output_dir second --metrics_port "$port"
refused 2 "--metrics_port" train "${train[@]:2}" --max_steps 1 --output_dir third --metrics_port 70000
until_true trained $((step + 3))

# A rank is killed: the job that its launcher starts again serves, too, and knows its checkpoint before it writes another.
for pid in $(pgrep -P "$job"); do
    ! tr '\0' '\n' <"/proc/$pid/environ" | grep -qx RANK=1 || kill -KILL "$pid"
done
served_again() { [[ $(grep -c 'metrics for Prometheus' run.log) == 2 ]]; }
until_true served_again
port=$(grep -o 'http://127.0.0.1:[0-9]*' run.log | grep -o '[0-9]*$' | tail -1)
scrape
[[ $(value fsdp_restarts) == 1 ]] || fail "fsdp_restarts is $(value fsdp_restarts) after a restart"
[[ $(value fsdp_checkpoint_step) -ge 5 ]] || fail "the checkpoint of step $(value fsdp_checkpoint_step) after a restart"

ending=1
kill -TERM "$job"
wait "$job" || [[ $? == 143 ]] || { cat run.log >&2; fail "the job did not end as asked"; }
