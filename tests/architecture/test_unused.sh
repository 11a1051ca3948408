#!/bin/bash
# No function of the library is there for nothing: what one object defines for others, another object of src/ or cli/
# uses. What only tests call is listed below, with the reason why a test needs it. Functions that only one file uses are
# static; the check is itself checked with a function that nobody calls.
set -euo pipefail
export LC_ALL=C
build=${FSDP_BUILD:?} source=${FSDP_SOURCE:?}

# name: why a test may call it although the library and the command do not
allowed='
arena_bytes: memory follows what a file holds, not what it claims
chat_template_create: a template by itself, without the folder of a tokenizer
chat_template_render: likewise
ckpt_saver_done: a test must see a background save fail before it looks at what is left
client_add: each operation of the store by itself
client_get: likewise
client_set: likewise
comm_check: tests wait for a failure that another rank caused, without making a call of their own
comm_group_bytes: the bytes that each strategy moves are a claim of the documentation
core_list_sort: machines with more memory nodes than this one
cpu_best_level: tests compare the kernels of every instruction set that this machine has
cpu_level_name: likewise
device_open_cpu_level: likewise
flags_read_text: fuzzed without a file
gpu_attention_forward_workspace: described.c uses it in builds without CUDA
host_memory_available_in: control groups as files of a test
image_set_read_idx: single files of a set, each with its own damage
json_parse_as: each option of the parser by itself
json_read_file_as: its form for files
known_pattern_at: every hand-written matcher is compared with Oniguruma
ledger_count: closed books must not stay
line_flush: sends without waiting, for whoever polls
loader_create: a loader over a data set of the test, without a model
main: of the command
manifest_print: fuzzed without a file
model_config_json: fuzzed and compared without a file
model_config_parse: likewise
model_folder_find: tests look up single tensors of what was written
numa_divide: hosts with other sockets, caches and GPUs than this one
numa_node_of_gpu: likewise
owner_facts_gone: facts about other hosts, which a test invents
owner_filesystem_is_local: likewise
page_text: a page by itself, without a file
pattern_regex_plain: the regular expression beside the hand-written matcher
gemm_probe_kernel: a kernel that a test breaks on purpose
plan_script_add: steps written by hand, for the player
plan_script_add_work: likewise
program_run: tests of tensor run whole programs without a model
run_steps: tests step through a run
safetensors_open_memory: fuzzed without a file
safetensors_read: every pair of types
token_file_document: the index that the writer wrote
token_file_documents: likewise
token_file_verify: likewise, and the checksum
server_count: hostile messages must leave nothing behind
store_count: likewise
tokenizer_tables_read: fuzzed without a file
watchdog_end: of the thread that watchdog_begin started
watchdog_round: likewise
'

# unused OBJECTS...: names that one of the objects or archives defines and no other object of them uses. Of names that
# include/fsdp declares the users are elsewhere; kernels in .cu files (_Z...) are launched by their own.
unused()
{
    nm -A --format=posix "$@" 2>/dev/null | awk '
        $3 ~ /^[TDBRCWV]$/ { defined[$2] = 1 }
        $3 ~ /^[Uw]$/ { used[$2] = 1 }
        END { for (name in defined) if (!(name in used) && name !~ /^(fsdp_|_Z)/) print name }' | sort
}
objects=("$build"/liblayer_*.a "$build"/CMakeFiles/fsdp.dir/cli/*.o)
[[ -e ${objects[0]} && $(nm "${objects[0]}" 2>/dev/null | wc -l) -gt 100 ]]
if nm "${objects[0]}" | grep -q -e __asan -e __tsan; then
    echo "a sanitizer adds names of its own"
    exit 77
fi

# Parts that this build may lack (CUDA, NCCL, MPI) are searched as text.
optional=$(cat $(find "$source"/src/device/cuda "$source"/src/comm/nccl "$source"/src/comm/mpi -type f) | grep -oE '[a-z_0-9]+' | sort -u)
failed=0
while read -r name; do
    if grep -q "^$name: ." <<<"$allowed" || grep -qx "$name" <<<"$optional"; then
        continue
    fi
    echo "$name is used by no other file of src/ or cli/: make it static, or remove it" >&2
    failed=1
done < <(unused "${objects[@]}")
# The list does not outlive what it excuses.
while IFS=: read -r name _; do
    [[ -z $name || $name == main ]] || grep -rqwE "$name" "$source/src" || {
        echo "$name is allowed but gone: remove it from the list" >&2
        failed=1
    }
done <<<"$allowed"

# The check can fail.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'int used_by_nobody(void); int used_by_nobody(void) { return 1; }' >"$work/a.c"
"$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")" -c -o "$work/a.o" "$work/a.c"
[[ $(unused "$work/a.o") == used_by_nobody ]]
exit $failed
