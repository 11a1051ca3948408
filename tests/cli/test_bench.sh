#!/bin/bash
# `fsdp bench step|kernel|comm`: tables and JSON say what they should, on one rank and on two, and what is asked for
# wrongly is refused with what there is.
set -euo pipefail
source "$(dirname "$0")/support.bash"

# json FILE EXPRESSION...: one line of JSON, of which every Perl expression over $r is true.
json()
{
    local file=$1
    shift
    [[ $(wc -l <"$file") == 1 ]] || fail "not one line: $(cat "$file")"
    perl -MJSON::PP -MList::Util=sum -e '
        open my $in, "<", shift or die; our $r = decode_json(<$in>);
        sub near { my ($a, $b, $share) = @_; return abs($a - $b) <= $share * abs($b) }
        for my $claim (@ARGV) { my $true = eval $claim; die "not so: $claim $@\n" if !$true }' \
        "$file" "$@" || fail "$file: $(cat "$file")"
}

quick="--device cpu --threads 1"
ranks="run --standalone --nproc-per-node 2 --plain"
refused 2 'no workload is named "single-"; there are cpu-512, single, 1b-8k, 1b-8k-ac, 3.2-1b, 3.2-1b-8, 8b-4k-ac, tiny' \
    bench step single- $quick
refused 2 'no workload is named "x"; there are cpu-512' bench kernel x $quick
refused 2 '`fsdp bench step`, `fsdp bench kernel` or `fsdp bench comm`' bench
refused 2 '`fsdp bench step`, `fsdp bench kernel` or `fsdp bench comm`' bench steps
refused 2 "comm takes --sizes, not a workload (tiny)" bench comm tiny $quick
refused 2 "--sizes=big" bench comm --sizes 1MB,big $quick
refused 2 "--steps=0" bench step tiny --steps 0 $quick
refused 2 "--breakdown belongs to" bench comm --breakdown $quick
refused 2 "unknown flag --stepz" bench step tiny --stepz 3 $quick

# A step: figures that hang together, and a breakdown whose classes are the whole.
"$fsdp" bench step tiny --train_batch_size 1 --steps 3 --warmup_steps 1 --breakdown --json $quick >step.json
json step.json '$r->{workload} eq "tiny" && $r->{world} == 1 && $r->{batch} == 1 && $r->{seq} == 128' \
    '$r->{N} == 2312256 && $r->{dtype} eq "fp32"' \
    'near($r->{tok_s} * $r->{ms}, 128e3, 0.05) && $r->{ms_best} <= $r->{ms}' \
    '$r->{tflops} * $r->{ms} * 1e9 > 6 * ($r->{N} - 256 * 192) * 128 * 0.99' \
    '$r->{tflops} * $r->{ms} * 1e9 < 8 * $r->{N} * 128' \
    '!defined $r->{peak_tflops} && !defined $r->{utilisation} && $r->{matrix_tflops} > 0' \
    'near($r->{utilisation_of_matrix} * $r->{matrix_tflops}, $r->{tflops}, 0.01)' \
    'join(",", map { $_->{name} } @{$r->{classes}}) eq
        "products,attention,norms and pointwise,loss with its product,optimizer,communication,other"' \
    'near(sum(map { $_->{ms} } @{$r->{classes}}), $r->{waited_ms}, 0.01)' \
    '$r->{classes}[0]{count} == 40 && $r->{classes}[1]{count} == 10 && $r->{classes}[5]{ms} == 0' \
    '(grep { $_->{name} eq "linear.forward" && $_->{count} == 20 } @{$r->{operations}}) == 1' \
    '$r->{operations}[0]{ms} >= $r->{operations}[1]{ms} && $r->{operations}[1]{ms} >= $r->{operations}[-1]{ms}'
"$fsdp" bench step tiny --train_batch_size 1 --steps 2 --warmup_steps 0 --breakdown $quick >step.txt
grep -q '^  products .* ms .* %' step.txt || fail "no products: $(cat step.txt)"
tail -1 step.txt | grep -q '^tiny .* tokens/s .* TFLOP/s a rank, .* % of a measured product' || fail "$(cat step.txt)"
# A loss that is not finite has no number in JSON.
"$fsdp" bench step tiny --train_batch_size 1 --steps 2 --warmup_steps 1 --optimizer sgd --lr 1000000 --grad_clip 0 --json $quick >diverged.json
json diverged.json '@{$r->{loss}} == 3 && $r->{loss}[0] > 5 && !defined $r->{loss}[2]'

# The workload tiny is the preset of that name.
for model in tiny "--preset tiny"; do "$fsdp" bench step $model --steps 1 --warmup_steps 0 --json $quick >same.json; grep -o '"N": .* "micro' same.json; done | sort -u >shapes
[[ $(cat shapes) == '"N": 2312256, "batch": 8, "seq": 128, "micro' ]] || fail "bench step tiny is not the preset: $(cat shapes)"

# Micro-batches are part of the step, a batch that was given is the batch, and a shape beside a workload's is refused.
"$fsdp" bench step tiny --train_batch_size 1 --steps 2 --warmup_steps 1 --gradient_accumulation_steps 4 --breakdown --json $quick >micro.json
json micro.json '$r->{micro_batches} == 4 && $r->{batch} == 1' 'near($r->{tok_s} * $r->{ms}, 4 * 128e3, 0.05)' \
    '$r->{classes}[0]{count} == 4 * 40 && $r->{tflops} * $r->{ms} * 1e9 > 4 * 6 * ($r->{N} - 256 * 192) * 128 * 0.99'
"$fsdp" bench step tiny --steps 2 --warmup_steps 0 --gradient_accumulation_steps 3 --train_batch_size 2 $quick >micro.txt
grep -q '3 micro-batches of 2 x 128 a step' micro.txt || fail "$(cat micro.txt)"
refused 2 "--num_layers: the workload tiny has a shape of its own" bench step tiny --num_layers 3 $quick

# Two ranks: one of them prints, and waits for collectives are a class of their own.
"$fsdp" $ranks "$fsdp" bench step tiny --train_batch_size 1 --steps 2 --warmup_steps 1 --breakdown --json $quick >two.json
json two.json '$r->{world} == 2 && $r->{classes}[5]{name} eq "communication" && $r->{classes}[5]{count} > 0'

# One process as a rank of a world that is not there: its size, and the time that its links say.
"$fsdp" bench step tiny --emulate 4@1GBs,2@0.5GBs --train_batch_size 1 --steps 2 --warmup_steps 1 --json $quick >emulated.json
json emulated.json '$r->{world} == 8 && $r->{comm_ms} > 0.1 && $r->{ms} > 0'
"$fsdp" bench step tiny --emulate 4@0.5GBs,2@0.25GBs --train_batch_size 1 --steps 2 --warmup_steps 1 --json $quick >slower.json
(($(sed 's/.*"comm_ms": \([0-9]*\)\.\([0-9]*\).*/\1\2/; s/^0*//' slower.json) > $(sed 's/.*"comm_ms": \([0-9]*\)\.\([0-9]*\).*/\1\2/; s/^0*//' emulated.json) * 3 / 2)) ||
    fail "links of half the rate: $(cat emulated.json slower.json)"
# What its steps wait for, by collective and unit, the longest first: no link hides the last reduction.
json slower.json '$r->{waits_ms} > 0 && @{$r->{waits}} > 0' '!grep { $_->{name} !~ /^(all_gather|reduce_scatter|all_reduce) ./ } @{$r->{waits}}' \
    '!grep { $r->{waits}[$_]{ms} > $r->{waits}[$_ - 1]{ms} } 1 .. $#{$r->{waits}}' '$r->{waits}[0]{ms} <= $r->{waits_ms} + 0.001'
refused 2 "does not describe links" bench step tiny --emulate 8x450 $quick
"$fsdp" bench step tiny --steps 1 --warmup_steps 0 --train_batch_size 1 --fp8_weights step $quick >idle.txt 2>idle.err
grep -q "warning: --fp8_weights has no effect without --fp8" idle.err || fail "not said: $(cat idle.err)"
refused 2 "leave --comm_backend out" bench step tiny --emulate 8@450GBs --comm_backend shm $quick
refused 2 "are for NCCL between GPUs" bench step tiny --emulate 8@450GBs --comm_ctas 8 $quick

# Kernels: every row has a time and one rate, whose share is that of the rates above.
"$fsdp" bench kernel tiny --json $quick >kernel.json
json kernel.json '$r->{workload} eq "tiny" && $r->{matrix_tflops} > 0 && $r->{copy_gb_s} > 0' '@{$r->{kernels}} == 32' \
    '!grep { $_->{ms} <= 0 || defined($_->{tflops}) == defined($_->{gb_s}) } @{$r->{kernels}}' \
    '!grep { $_->{gb_s} && !near($_->{of_copy} * $r->{copy_gb_s}, $_->{gb_s}, 0.01) } @{$r->{kernels}}' \
    '!grep { $_->{tflops} && !near($_->{of_matrix} * $r->{matrix_tflops}, $_->{tflops}, 0.01) } @{$r->{kernels}}' \
    'join(",", map { $_->{shape} } grep { $_->{name} eq "gate|up, weight gradient" } @{$r->{kernels}}) eq "1024 x 1024 x 192"' \
    '!grep { $_->{name} eq "down, forward" && !near($_->{ms} * $_->{tflops} * 1e9, 2 * 1024 * 192 * 512, 0.01) } @{$r->{kernels}}'
"$fsdp" bench kernel tiny --bf16 $quick >kernel.txt
for name in "q|k|v, forward" "attention, backward" "packed, backward" "rmsnorm, backward" rope "swiglu, forward" cross-entropy \
    "embedding, gradient" adamw copy; do
    grep -qF "$name" kernel.txt || fail "no row for $name: $(cat kernel.txt)"
done

# Links that no time can be told from are refused.
for links in "" 2@1e-30GBs 2@1e300GBs; do
    refused 2 "does not describe links" bench step tiny --emulate "$links"
done

# Collectives: on one rank nothing crosses the bus; on two the rate is that of the bytes that do.
"$fsdp" bench comm --sizes 64KiB --json $quick >one.json
json one.json '$r->{world} == 1 && $r->{backend} eq "self"' '!grep { $_->{bus_gb_s} != 0 } @{$r->{collectives}}'
"$fsdp" $ranks "$fsdp" bench comm --sizes 64KiB,1MiB --json $quick >comm.json
json comm.json '$r->{world} == 2 && $r->{backend} eq "shm"' \
    'join(",", map { "$_->{name} $_->{bytes}" } @{$r->{collectives}}) eq "all_gather 65536,reduce_scatter 65536," .
        "all_reduce 65536,all_gather 1048576,reduce_scatter 1048576,all_reduce 1048576"' \
    '!grep { !near($_->{bus_gb_s} * $_->{ms} * 1e6, $_->{bytes} * ($_->{name} eq "all_reduce" ? 1 : 0.5), 0.02) }
        @{$r->{collectives}}' \
    '!grep { $_->{copy_gb_s} <= 0 } @{$r->{collectives}}'
"$fsdp" $ranks "$fsdp" bench comm --sizes 64KiB $quick >comm.txt
grep -q '^2 ranks over shm' comm.txt && grep -q '^reduce_scatter .* 0.062 ' comm.txt || fail "$(cat comm.txt)"
echo "steps, kernels and collectives are measured, and say so"
