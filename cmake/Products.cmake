# What users get: libfsdp.so, libfsdp.a and the fsdp command, in the top of the build folder.

# Sets `out` to the objects of all layers, and `packages` to what they link.
function(fsdp_all_objects out packages)
  get_property(layers GLOBAL PROPERTY FSDP_OBJECT_LAYERS)
  set(objects "")
  foreach(layer ${layers})
    list(APPEND objects $<TARGET_OBJECTS:${layer}>)
  endforeach()
  get_property(linked GLOBAL PROPERTY FSDP_PACKAGES)
  list(REMOVE_DUPLICATES linked)
  set(${out} ${objects} PARENT_SCOPE)
  set(${packages} ${linked} PARENT_SCOPE)
endfunction()

# fsdp_shared is libfsdp.so; fsdp_public is what a program that uses the library links: include/ and libfsdp.a.
function(fsdp_library)
  fsdp_all_objects(objects packages)
  add_library(fsdp_shared SHARED ${objects})
  set_target_properties(fsdp_shared PROPERTIES OUTPUT_NAME fsdp LINKER_LANGUAGE C VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_link_libraries(fsdp_shared PRIVATE ${packages})
  if(NOT FSDP_SANITIZE)
    # Symbols have versions, those of the stable core apart from the command's surface; what no header declares is local.
    set(map ${CMAKE_BINARY_DIR}/fsdp.map)
    file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/fsdp/*.h)
    add_custom_command(OUTPUT ${map}
      COMMAND ${CMAKE_COMMAND} -E env CC=${CMAKE_C_COMPILER} ${CMAKE_SOURCE_DIR}/scripts/abi map > ${map}
      DEPENDS ${headers} ${CMAKE_SOURCE_DIR}/scripts/abi ${CMAKE_SOURCE_DIR}/cmake/abi.txt
      COMMENT "Versions of the public symbols" VERBATIM)
    add_custom_target(fsdp_map DEPENDS ${map})
    add_dependencies(fsdp_shared fsdp_map)
    set_property(TARGET fsdp_shared APPEND PROPERTY LINK_DEPENDS ${map})
    target_link_options(fsdp_shared PRIVATE -Wl,-z,defs -Wl,--version-script=${map})
  endif()

  # One object in which hidden symbols are local: a program can neither call nor collide with what is not public.
  set(archive ${CMAKE_BINARY_DIR}/libfsdp.a)
  set(joined ${CMAKE_BINARY_DIR}/fsdp.joined.o)
  add_custom_command(OUTPUT ${archive}
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${joined} ${objects}
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${joined}
    COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
    COMMAND ${CMAKE_AR} rcs ${archive} ${joined}
    COMMAND ${CMAKE_COMMAND} -E rm -f ${joined}
    DEPENDS ${objects} COMMENT "Joining libfsdp.a" COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(fsdp_archive ALL DEPENDS ${archive})
  add_library(fsdp_public INTERFACE)
  target_include_directories(fsdp_public INTERFACE ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(fsdp_public INTERFACE ${archive} ${packages})
  add_dependencies(fsdp_public fsdp_archive)
endfunction()

# The command, from cli/. It sees the public headers only.
function(fsdp_command)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cli/*.c)
  if(NOT sources)
    message(STATUS "cli/ is empty: no command is built")
    return()
  endif()
  add_executable(fsdp ${sources})
  target_link_libraries(fsdp PRIVATE fsdp_public)
  set_target_properties(fsdp PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                        LINK_DEPENDS ${CMAKE_BINARY_DIR}/libfsdp.a)
  target_compile_definitions(fsdp PRIVATE FSDP_VERSION="${PROJECT_VERSION}")
  # Man pages and completions come from the command's own tables of flags.
  add_custom_command(TARGET fsdp POST_BUILD
    COMMAND ${CMAKE_SOURCE_DIR}/scripts/pages $<TARGET_FILE:fsdp> ${CMAKE_BINARY_DIR}/pages VERBATIM)
endfunction()
