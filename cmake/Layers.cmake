# Layers: static libraries that link only what their arrow reaches. A layer whose folder is still empty is an
# interface that passes its dependencies on.

# fsdp_layer(name DEPENDS layers... PACKAGES targets...): the library layer_<name> from src/<name>/.
function(fsdp_layer name)
  cmake_parse_arguments(LAYER "" "" "DEPENDS;PACKAGES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/device/cuda/|/device/cpu/simd/|/comm/nccl/|/comm/mpi/|/comm/ucx/")
  if(NOT sources)
    add_library(layer_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(layer_${name} STATIC ${sources})
    set(scope PUBLIC)
    set_property(GLOBAL APPEND PROPERTY FSDP_OBJECT_LAYERS layer_${name})
  endif()
  target_include_directories(layer_${name} ${scope} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(layer_${name} ${scope} ${LAYER_PACKAGES})
  set_property(GLOBAL APPEND PROPERTY FSDP_PACKAGES ${LAYER_PACKAGES})
  foreach(dependency ${LAYER_DEPENDS})
    target_link_libraries(layer_${name} ${scope} layer_${dependency})
  endforeach()
endfunction()

# fsdp_layer_part(layer WHEN condition SOURCES patterns... PACKAGES targets... DEFINES definitions...): more sources for
# a layer, where a variable says that what they need is there. The definitions reach every layer above.
function(fsdp_layer_part name)
  cmake_parse_arguments(PART "" "WHEN" "SOURCES;PACKAGES;DEFINES" ${ARGN})
  get_target_property(type layer_${name} TYPE)
  list(TRANSFORM PART_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/)
  file(GLOB sources CONFIGURE_DEPENDS ${PART_SOURCES})
  if(NOT ${PART_WHEN} OR NOT sources OR type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  target_sources(layer_${name} PRIVATE ${sources})
  target_link_libraries(layer_${name} PUBLIC ${PART_PACKAGES})
  target_compile_definitions(layer_${name} PUBLIC ${PART_DEFINES})
  set_property(GLOBAL APPEND PROPERTY FSDP_PACKAGES ${PART_PACKAGES})
endfunction()

# fsdp_layer_embed(layer FILES patterns...): files that the layer holds as text, see Embed.cmake.
function(fsdp_layer_embed name)
  cmake_parse_arguments(EMBED "" "" "FILES" ${ARGN})
  list(TRANSFORM EMBED_FILES PREPEND ${CMAKE_SOURCE_DIR}/)
  file(GLOB files CONFIGURE_DEPENDS ${EMBED_FILES})
  set(source ${CMAKE_BINARY_DIR}/${name}_assets.c)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DOUT=${source} -DTABLE=${name}_assets "-DFILES=${files}" -P ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake COMMENT "Embedding what ${name} holds" VERBATIM)
  target_sources(layer_${name} PRIVATE ${source})
endfunction()

# fsdp_layer_simd(layer SOURCES patterns...): sources compiled once per instruction set, with SIMD_LEVEL the suffix of
# the names they define. Which one runs is chosen at run time.
function(fsdp_layer_simd name)
  cmake_parse_arguments(SIMD "" "" "SOURCES" ${ARGN})
  get_target_property(type layer_${name} TYPE)
  list(TRANSFORM SIMD_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/)
  file(GLOB sources CONFIGURE_DEPENDS ${SIMD_SOURCES})
  if(NOT sources OR type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  set(levels base)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(levels base avx2 avx512)
  endif()
  set(flags_base "")
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  foreach(level ${levels})
    set(part ${name}_simd_${level})
    add_library(${part} OBJECT ${sources})
    target_compile_definitions(${part} PRIVATE SIMD_LEVEL=${level})
    # Kernels are optimised in every build type: unoptimised they would make debug and sanitizer runs useless. Nobody
    # reads the floating-point exception flags; as long as they count, GCC leaves loops with a selection as branches.
    target_compile_options(${part} PRIVATE -O3 -fno-trapping-math ${flags_${level}})
    target_include_directories(${part} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${part} PRIVATE layer_base)
    target_sources(layer_${name} PRIVATE $<TARGET_OBJECTS:${part}>)
    set_property(GLOBAL APPEND PROPERTY FSDP_OBJECT_LAYERS ${part})
  endforeach()
endfunction()
