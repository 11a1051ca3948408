#!/bin/bash
# Every example in the public headers' comments, and every C block of README and docs, compiles against include/fsdp.
# An example is what a comment indents by five spaces. What it names and does not declare is declared below; "..." is
# what the reader puts there.
set -euo pipefail
source=${FSDP_SOURCE:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

cat >"$work/given.h" <<'END_C'
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/settings.h>

extern fsdp_settings settings;
extern int argc;
extern char **argv;
extern const int64_t steps, n, size[2], C, H;
extern int64_t step, epoch;
extern const float *batch, *wanted;
extern const int32_t *ids, *labels;
extern const char *text;
extern float *values;
extern double right, all;
extern fsdp_world *world;
extern fsdp_module *net;
extern fsdp_config sharding;
extern fsdp_model *model;
extern fsdp_optimizer_config adam;
extern fsdp_optimizer *optimizer;
extern fsdp_step_report report;
extern fsdp_state *state;
extern fsdp_tape *t;
extern fsdp_tensor *x, *qkv;
extern fsdp_tokenizer *tokenizer;
fsdp_status cube_backward(const fsdp_operation_run *r);
END_C

# Definitions (typedef, static) stand outside of the function that all else goes into.
assemble='
function depth_of(line, i, c, d) {
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        d += (c == "{" || c == "(") - (c == "}" || c == ")")
    }
    return d
}
{
    line = $0
    sub(/^ *\.\.\. */, "; ", line)
    if (!outside && depth == 0 && line ~ /^(typedef|static) /)
        outside = 1
    depth += depth_of(line)
    if (outside)
        definitions = definitions line "\n"
    else
        body = body line "\n"
    if (outside && depth == 0 && line ~ /[;}] *$/)
        outside = 0
}
END { printf "%s\nfsdp_status example(void);\nfsdp_status example(void)\n{\n%sreturn FSDP_OK;\n}\n", definitions, body }'

n=0
compile() # NAME INCLUDE: the example on standard input
{
    { echo "#include <$2>"; echo '#include <fsdp/fsdp.h>'; cat "$work/given.h"; awk "$assemble"; } >"$work/example.c"
    # What an example declares is for the code that follows it.
    ${CC:-cc} -std=c11 -Wall -Werror -Wno-unused-variable -Wno-unused-but-set-variable -Wno-unused-function \
        -Wno-unused-value -fsyntax-only -I"$source/include" "$work/example.c" || { cat "$work/example.c"; fail "$1"; }
    n=$((n + 1))
}

# Each comment with an example becomes a file NAME-LINE of its own.
for header in "$source"/include/fsdp/*.h; do
    name=$(basename "$header")
    awk -v out="$work/$name" '
        /^\/\*/ { file = out "-" NR }
        /^ \*     / { line = substr($0, 8); sub(/ *\*\/$/, "", line); print line >file; next }
        /^ \*$/ && file { print "" >file; next }' "$header"
    for example in "$work/$name"-*; do
        if [[ -e $example ]] && grep -q . "$example"; then
            compile "$(basename "$example")" "fsdp/$name" <"$example"
        fi
    done
done
[[ $n -ge 20 ]] || fail "only $n examples were found in the headers"

in_headers=$n
for page in README.md $(cd "$source" && ls docs/*.md); do
    awk -v out="$work/page-" '/^```c$/ { file = out (++n); next } /^```/ { file = "" } file { print >file }' "$source/$page"
    for example in "$work"/page-*; do
        if [[ -e $example ]]; then
            compile "$page: $(basename "$example")" fsdp/fsdp.h <"$example"
            rm "$example"
        fi
    done
done
[[ $n -gt $in_headers ]] || fail "no example was found in the pages of docs"
echo "$n examples compile"
