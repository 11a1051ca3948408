# What the tests of the command share: where it is, and one check for a line of error.
build=${FSDP_BUILD:?}
source_root=${FSDP_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
fsdp=$build/fsdp
work=$(mktemp -d)
trap '[[ -z $(jobs -p) ]] || kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"

fail()
{
    echo "$*" >&2
    exit 1
}

# refused CODE TEXT ARGUMENTS...: the command exits with CODE and says one line on standard error that holds TEXT, and
# nothing on standard output.
refused()
{
    local code=$1 text=$2 got=0
    shift 2
    "$fsdp" "$@" >out 2>err </dev/null || got=$?
    [[ $got == "$code" ]] || fail "fsdp $*: exit code $got instead of $code: $(cat err)"
    [[ $(wc -l <err) == 1 ]] || fail "fsdp $*: not one line: $(cat err)"
    grep -qF -- "$text" err || fail "fsdp $*: '$(cat err)' does not say '$text'"
    [[ ! -s out ]] || fail "fsdp $*: prints on standard output: $(cat out)"
}

# A terminal can be had for a command: there is script(1), and the system gives it one.
have_terminal()
{
    command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1
}
