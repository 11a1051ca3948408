#!/bin/bash
# Every public header stands alone in C11 and in C++17; fsdp.h is the stable core, all of it and nothing else; a C++
# program links the library and trains a step.
set -euo pipefail
build=${FSDP_BUILD:?} source=${FSDP_SOURCE:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
cxx=$(command -v "${CXX:-g++}") || { echo "no C++ compiler"; exit 77; }

cd "$source/include"
for header in fsdp/*.h; do
    echo "#include <$header>" >"$work/one.c"
    ${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I. "$work/one.c" || fail "$header in C11"
    "$cxx" -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I. -x c++ "$work/one.c" || fail "$header in C++17"
done

surface=$(grep -l "The command's surface" fsdp/*.h)
core=$(grep -L "The command's surface" fsdp/*.h | grep -v '^fsdp/fsdp.h$')
[[ $(wc -l <<<"$surface") -ge 7 && $(wc -l <<<"$core") -ge 12 ]] || fail "core: $core, surface: $surface"
diff <(echo "$core") <(sed -n 's/^#include <\(fsdp\/.*\)>/\1/p' fsdp/fsdp.h) ||
    fail "fsdp.h does not include the stable core (<) but something else (>)"
for header in $surface; do
    head -20 "$header" | grep -q "The command's surface" || fail "$header does not say it in its first lines"
    if grep -n "#include <$header>" $core; then
        fail "the stable core includes $header of the command's surface"
    fi
done

if [[ -n $(sed -n 's/^FSDP_SANITIZE:[A-Z]*=//p' "$build/CMakeCache.txt") ]]; then
    echo "built with sanitizers: linking from outside is tested in other builds"
    exit 77
fi
cat >"$work/program.cpp" <<'END_CPP'
#include <cstdio>
#include <fsdp/fsdp.h>
#include <fsdp/train.h>

struct net {
    fsdp_module base;
    fsdp_module *layer;
};

static fsdp_tensor *forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_relu(t, fsdp_call(reinterpret_cast<net *>(self)->layer, t, x));
}

static fsdp_status train()
{
    fsdp_world_config place = FSDP_WORLD_CONFIG_INIT;
    fsdp_config sharding = FSDP_CONFIG_INIT;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_train_result unused = FSDP_TRAIN_RESULT_INIT;
    fsdp_module_class own = {};
    fsdp_world *world;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_step_report report;
    own.type = "net";
    own.forward = forward;
    place.device = "cpu";
    FSDP_TRY(fsdp_world_open(&place, &world));
    net *n = static_cast<net *>(fsdp_module_new(&own, sizeof *n));
    n->layer = fsdp_module_add(n, "layer", fsdp_linear_new(4, 2, true));
    FSDP_TRY(fsdp_shard(world, &n->base, &sharding, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[4] = {1, 1, 1, 1};
    const int64_t in[] = {2, 4}, out[] = {2, 2};
    fsdp_tape *t = fsdp_begin(model);
    fsdp_tensor *z = fsdp_call(fsdp_model_module(model), t, fsdp_input(t, FSDP_F32, 2, in, x));
    FSDP_TRY(fsdp_backward(t, fsdp_mse(t, z, fsdp_input(t, FSDP_F32, 2, out, y)), true));
    FSDP_TRY(fsdp_step(optimizer, &report));
    std::printf("a C++ program trains: loss %g of %g values\n", report.loss, report.count);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    fsdp_world_close(world);
    return unused.size == sizeof unused && report.count == 4 ? FSDP_OK : FSDP_ERR_STATE;
}

int main()
{
    fsdp_status status = train();
    if (status != FSDP_OK)
        std::fprintf(stderr, "%s\n", fsdp_last_error());
    return fsdp_exit_code(status);
}
END_CPP
"$cxx" -std=c++17 -Wall -Wextra -Wno-missing-field-initializers -Werror "$work/program.cpp" -o "$work/program" -I. \
    -L"$build" -lfsdp -Wl,-rpath,"$build"
"$work/program"
echo "$(wc -l <<<"$core") headers of the stable core and $(wc -l <<<"$surface") of the command's surface, in C and C++"
