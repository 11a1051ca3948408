#!/bin/bash
# What `make install` puts down is enough: a program compiles against the headers, links both libraries through
# pkg-config, and runs.
set -euo pipefail
build=${FSDP_BUILD:?}
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$build" --prefix "$prefix" >/dev/null

cat >"$prefix/program.c" <<'END'
#include <stdio.h>
#include <string.h>
#include <fsdp/dtype.h>

int main(void)
{
    fsdp_dtype dtype;
    if (fsdp_dtype_parse("torch.bfloat16", &dtype) != FSDP_OK || fsdp_dtype_size(dtype) != 2)
        return 1;
    return fsdp_dtype_parse("fp7", &dtype) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "fp7") ? 0 : 1;
}
END
for header in "$prefix"/include/fsdp/*.h; do
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" -x c "$header"
done

sanitizers=$(sed -n 's/^FSDP_SANITIZE:[A-Z]*=//p' "$build/CMakeCache.txt")
if [[ -n $sanitizers ]]; then
    echo "built with -fsanitize=$sanitizers: linking from outside is tested in other builds"
    exit 77
fi
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
shared=$(pkg-config --cflags --libs fsdp)
${CC:-cc} "$prefix/program.c" -o "$prefix/shared" $shared
LD_LIBRARY_PATH=$prefix/lib "$prefix/shared"
readelf -d "$prefix/shared" | grep -q 'libfsdp\.so\.[0-9]'

static=$(pkg-config --static --cflags --libs fsdp)
${CC:-cc} "$prefix/program.c" -o "$prefix/static" ${static/-lfsdp/-l:libfsdp.a}
"$prefix/static"
if readelf -d "$prefix/static" | grep -q 'libfsdp'; then
    echo "the static program wants the shared library" >&2
    exit 1
fi

# Without a library path, by the run path that the file offers; and through CMake, from a prefix that has been moved.
${CC:-cc} "$prefix/program.c" -o "$prefix/found" $shared $(pkg-config --variable=rpath fsdp)
env -u LD_LIBRARY_PATH "$prefix/found"
mkdir "$prefix/consumer" "$prefix/moved"
cp -r "$prefix/lib" "$prefix/include" "$prefix/moved/"
mv "$prefix/program.c" "$prefix/consumer/"
cat >"$prefix/consumer/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(fsdp 0.1 REQUIRED)
add_executable(consumer program.c)
target_link_libraries(consumer PRIVATE fsdp::fsdp)
END
cmake -S "$prefix/consumer" -B "$prefix/consumer/build" -DCMAKE_PREFIX_PATH="$prefix/moved" >/dev/null
cmake --build "$prefix/consumer/build" >/dev/null
env -u LD_LIBRARY_PATH "$prefix/consumer/build/consumer"
readelf -d "$prefix/consumer/build/consumer" | grep -q "moved/lib"
sed -i 's/fsdp 0.1/fsdp 9.0/' "$prefix/consumer/CMakeLists.txt"
if cmake -S "$prefix/consumer" -B "$prefix/consumer/other" -DCMAKE_PREFIX_PATH="$prefix/moved" >/dev/null 2>&1; then
    echo "find_package(fsdp 9.0) takes this version" >&2
    exit 1
fi

bash -n "$prefix/share/bash-completion/completions/fsdp"
for page in fsdp fsdp-train fsdp-eval fsdp-ckpt; do
    grep -q '^\.SH NAME' "$prefix/share/man/man1/$page.1"
done
[[ -s $prefix/share/zsh/vendor-completions/_fsdp && -s $prefix/share/fish/vendor_completions.d/fsdp.fish ]]
echo "installed: $(cd "$prefix" && find lib include share bin -type f 2>/dev/null | wc -l) files"
