#!/bin/bash
# A later version can add fields to fsdp_module and its class: they come out of the reserved room, so a program that
# embeds a module keeps its layout and works with either version. The later version is made here, from the header.
set -euo pipefail
build=${FSDP_BUILD:?} source=${FSDP_SOURCE:?}
if [[ -n $(sed -n 's/^FSDP_SANITIZE:[A-Z]*=//p' "$build/CMakeCache.txt") ]]; then
    echo "built with sanitizers: linking from outside is tested in other builds"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/program.c" <<'END_C'
#include <stdio.h>
#include <fsdp/fsdp.h>

typedef struct own {
    fsdp_module base;
    fsdp_module *layer;
    double mine;
} own;

static int destroyed;

static fsdp_tensor *forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_call(((own *)self)->layer, t, x);
}

static void destroy(fsdp_module *self)
{
    destroyed = ((own *)self)->mine == 42;
}

static const fsdp_module_class own_class = {.type = "own", .forward = forward, .destroy = destroy};

int main(void)
{
    own *m = fsdp_module_new(&own_class, sizeof *m);
    m->mine = 42;
    m->layer = fsdp_module_add(m, "layer", fsdp_linear_new(3, 5, true));
    for (unsigned i = 0; i < sizeof m->base.reserved / sizeof *m->base.reserved; i++)
        if (m->base.reserved[i])
            return 1;
    if (fsdp_module_check(&m->base) != FSDP_OK)
        return 1;
    printf("module %zu, class %zu, own field at %zu\n", sizeof(fsdp_module), sizeof(fsdp_module_class),
           offsetof(own, layer));
    fsdp_module_free(&m->base);
    return destroyed ? 0 : 1;
}
END_C

cp -r "$source/include" "$work/later"
sed -i -e 's/\*reserved\[7\];/*later_field, *reserved[6];/' \
    -e 's/void (\*reserved\[4\])(void);/int (*later_field)(void); void (*reserved[3])(void);/' "$work/later/fsdp/module.h"
[[ $(grep -c later_field "$work/later/fsdp/module.h") == 2 ]]

for headers in "$source/include" "$work/later"; do
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$work/program.c" -o "$work/program" -I"$headers" -L"$build" -lfsdp \
        -Wl,-rpath,"$build"
    "$work/program" >>"$work/layouts"
done
[[ $(wc -l <"$work/layouts") == 2 && $(sort -u "$work/layouts" | wc -l) == 1 ]] || { cat "$work/layouts"; exit 1; }
head -1 "$work/layouts"
