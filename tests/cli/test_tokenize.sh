#!/bin/bash
# `fsdp tokenize`: every form of input and output, on golden vectors of a real tokenizer.
set -euo pipefail
source "$(dirname "$0")/support.bash"

[[ $("$fsdp" tokenize --text "Hi!") == "72 105 33" ]]
[[ $(printf 'Hi!' | "$fsdp" tokenize) == "72 105 33" ]]
[[ $("$fsdp" tokenize --decode --text "[72, 105, 33]") == "Hi!" ]]
printf 'one two' >a.txt
printf 'three' >b.txt
[[ $("$fsdp" tokenize --count a.txt b.txt) == $'7 a.txt\n5 b.txt\n12 total' ]]
[[ $("$fsdp" tokenize --count --text four) == 4 ]]

printf '%s\n' '{"x": {"text": ["}", 1]}, "text": "a\u00e9\ud83d\ude00\n"}' '"plain"' '{"body": "b"}' >records.jsonl
[[ $("$fsdp" tokenize --jsonl records.jsonl 2>err) == $'{"ids": [97, 195, 169, 240, 159, 152, 128, 10]}\n{"ids": [112, 108, 97, 105, 110]}' ]]
grep -q 'records.jsonl:3: not a JSON object with a text called text' err
refused 2 "records.jsonl:1: not a JSON object with a text called body" tokenize --jsonl --field body --strict records.jsonl
[[ $(printf '{"ids": [34, 92, 10, 1]}\n' | "$fsdp" tokenize --jsonl --decode) == '{"text": "\"\\\n\u0001"}' ]]

# A token file does not depend on the threads that made it.
for i in $(seq 200); do echo "document $i has some words in it"; done >many.txt
"$fsdp" tokenize --output one.bin --threads 1 many.txt a.txt >line
grep -q '^one.bin: [0-9]* tokens in [0-9]* documents' line
"$fsdp" tokenize --output three.bin --threads 3 many.txt a.txt >/dev/null
cmp one.bin three.bin

# --jsonl counts for --output too, and so do capitals in names; a byte order mark costs nothing.
printf '{"text": "abc"}\n{"text": "de"}\n' >plain.txt
"$fsdp" tokenize --output records.bin --jsonl plain.txt | grep -q '^records.bin: 7 tokens in 2 documents' || fail "--output ignores --jsonl"
cp plain.txt LOUD.JSONL
"$fsdp" tokenize --output loud.bin LOUD.JSONL | grep -q ': 7 tokens in 2 documents'
{ printf '\xef\xbb\xbf'; cat plain.txt; } >marked.jsonl
[[ $("$fsdp" tokenize --jsonl marked.jsonl) == $'{"ids": [97, 98, 99]}\n{"ids": [100, 101]}' ]]
"$fsdp" tokenize --output marked.bin marked.jsonl | grep -q ': 7 tokens in 2 documents'
"$fsdp" tokenize --output ten.bin --max_tokens 10 many.txt | grep -q '^ten.bin: 10 tokens in 1 documents'
printf '1 2 \033[2J' >ids.txt
refused 2 "'\\x1b[2J' is no id" tokenize --decode ids.txt

# A signal ends --output with its number and leaves no file behind, finished or not.
for i in $(seq 400); do cat "$source_root/docs/flags.md"; done >endless.txt
for signal in INT TERM; do
    env --default-signal=INT "$fsdp" tokenize --tokenizer "$source_root/tests/golden/tokenizer_t5" --threads 1 --output stopped.bin endless.txt >/dev/null 2>err &
    job=$!
    for i in $(seq 200); do
        find "/proc/$job/fd" -lname '*(deleted)' -o -lname '*stopped.bin.tmp.*' 2>/dev/null | grep -q . && break
        sleep 0.02
    done
    kill -$signal $job
    code=0
    wait $job || code=$?
    [[ $code == $((128 + $(kill -l $signal))) ]] || fail "SIG$signal: exit code $code: $(cat err)"
    grep -q interrupted err || fail "SIG$signal: $(cat err)"
    ! ls stopped.bin* 2>/dev/null || fail "SIG$signal leaves a file"
done

# On a terminal a bar is drawn in place while the file is made; in a pipe there is none.
for i in $(seq 60); do cat "$source_root/docs/flags.md"; done >long.txt
"$fsdp" tokenize --output long.bin --threads 1 long.txt >/dev/null 2>bar
! grep -q '#' bar || fail "a bar in a pipe"
if have_terminal; then
    TERM=xterm script -qec "'$fsdp' tokenize --tokenizer '$source_root/tests/golden/tokenizer_t5' --output bar.bin --threads 1 long.txt" \
        typescript >/dev/null
    grep -q '\[#*\.*\]  *[0-9]*%  [0-9.]* MB, [0-9.]* M tokens' typescript || fail "no bar on a terminal"
    grep -q 'bar.bin: [0-9]* tokens' typescript
fi

golden=${FSDP_GOLDEN_DIR:-$source_root/tests/golden}
for folder in "$golden"/tokenizer_*; do
    [[ -e $folder/tokenizer.json ]] || continue
    # The vectors hold "ids" and "text" in every record: text must give the ids, and both ways must agree.
    "$fsdp" tokenize --tokenizer "$folder" --jsonl "$folder/vectors.jsonl" >ours
    sed -n 's/.*"ids": \(\[[0-9, ]*\]\).*/{"ids": \1}/p' "$folder/vectors.jsonl" >theirs
    cmp ours theirs || fail "$folder: ids differ"
    echo "$(basename "$folder"): $(wc -l <ours) vectors"
done
