# How everything is compiled. Floating-point contraction is off so that results do not depend on what the compiler
# found to fuse: kernels that want a fused multiply-add ask for it.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_C_FLAGS_DEBUG "-Og -g")

add_compile_definitions(_GNU_SOURCE)
add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow;-Wpointer-arith;-Wstrict-prototypes>"
                    "$<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes;-Wvla;-Werror;-fno-math-errno;-ffp-contract=off>")
# clang does not vectorise every loop for the oldest instruction set, and calls that a warning.
add_compile_options("$<$<COMPILE_LANG_AND_ID:C,Clang>:-Wno-pass-failed>")

# address, thread or a list such as address,undefined; set by the presets.
set(FSDP_SANITIZE "" CACHE STRING "sanitizers to build with")
if(FSDP_SANITIZE)
  add_compile_options(-fsanitize=${FSDP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${FSDP_SANITIZE})
endif()
