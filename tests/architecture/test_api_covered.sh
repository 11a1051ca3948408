#!/bin/bash
# Every function of the stable core is called by a test of tests/api, which sees the public headers and libfsdp.so alone.
# What cannot be called there is listed here with the test that does.
set -euo pipefail
export LC_ALL=C
source_root=${FSDP_SOURCE:?}

elsewhere=$(sed 's/ .*//' <<'END'
END
)

# missing FILES...: functions of the core that the files do not call.
missing()
{
    local called
    called=$(cat "$@" | grep -oE '\bfsdp_[a-z0-9_]+ ?\(' | tr -d ' (' | sort -u)
    comm -23 <(awk '$1 == "function" && $3 ~ /^FSDP_[0-9]/ { print $2 }' "$source_root/cmake/abi.txt" | sort -u) <(echo "$called") |
        { grep -vxF "${elsewhere:-none}" || true; }
}

# The net itself: without its test a function is missed.
without=$(missing $(ls "$source_root"/tests/api/*.c | grep -v test_recording))
grep -qx fsdp_set_counted_rows <<<"$without" || { echo "the check does not see that fsdp_set_counted_rows is not called" >&2; exit 1; }

found=$(missing "$source_root"/tests/api/*.c)
if [[ $found ]]; then
    echo "no test of tests/api calls:" >&2
    echo "$found" >&2
    exit 1
fi
echo "all $(grep -c '^function .* FSDP_[0-9]' "$source_root/cmake/abi.txt") functions of the stable core are called by tests of the API"
