#!/bin/bash
# `make train` builds the command and nothing else, without GPU code; `make install` builds no tests. What a target
# would build is asked of make and of the build itself; nothing is built here.
set -euo pipefail
source=${FSDP_SOURCE:?} build=${FSDP_BUILD:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# A tree in which nothing has been built: make's wildcards must not see this one's build folders.
mkdir "$work/tree"
cp "$source/Makefile" "$source/CMakePresets.json" "$work/tree/"

# targets COMMANDS: the targets of the one `cmake --build` among them.
targets()
{
    [[ $(grep -c 'cmake --build' <<<"$1") == 1 ]] || fail "not one build: $1"
    sed -n 's/.*cmake --build [^ ]* --target \(.*\) -j.*/\1/p' <<<"$1"
}

train=$(make -n -C "$work/tree" train JOBS=1)
install=$(make -n -C "$work/tree" install JOBS=1 PREFIX=/nowhere)
[[ $(targets "$train") == fsdp ]] || fail "make train builds: $train"
[[ $(targets "$install") == "fsdp fsdp_shared fsdp_archive" ]] || fail "make install builds: $install"
grep -q 'cmake --preset command' <<<"$train" || fail "make train takes the folder of another preset: $train"
preset=$(sed -n '/"name": "command"/,/^    }/p' "$source/CMakePresets.json")
for setting in '"FSDP_CUDA": "OFF"' '"FSDP_TESTS": "OFF"' '"FSDP_SIMD": "native"'; do
    grep -q "$setting" <<<"$preset" || fail "the preset of make train builds more than the command for this processor: no $setting"
done

# What those targets consist of has nothing of the tests in it.
ninja=$(sed -n 's/^CMAKE_MAKE_PROGRAM:[A-Z]*=//p' "$build/CMakeCache.txt")
[[ $ninja == *ninja* ]] || { echo "not built by ninja: nothing to ask"; exit 77; }
inputs=$("$ninja" -C "$build" -t inputs fsdp libfsdp.a libfsdp.so)
[[ $(wc -l <<<"$inputs") -gt 100 ]] || fail "no list of inputs: $inputs"
if grep -E '(^|/)tests?/|cmocka' <<<"$inputs"; then
    fail "the command is built from tests"
fi
echo "make train builds $("$ninja" -C "$build" -t inputs fsdp | grep -c '\.o$') objects of the command, make install no test"
