# make install: libraries, headers, pkg-config file, command, man page, completion. Relative to the prefix throughout.
set(CMAKE_INSTALL_LIBDIR lib) # the pkg-config file counts on it
include(GNUInstallDirs)

# Static users need what the archive links; packages with a pkg-config file of their own are required by name.
set(FSDP_PC_REQUIRES "jansson zlib libzstd oniguruma")
set(FSDP_PC_LIBS "${OpenMP_C_FLAGS} -lm -lpthread -ldl")
if(FSDP_HAVE_ONEDNN)
  string(APPEND FSDP_PC_LIBS " -ldnnl")
endif()
# By library, not by package: its file asks static users for libraries without archives (libudev).
if(FSDP_HAVE_HWLOC)
  string(APPEND FSDP_PC_LIBS " -lhwloc")
endif()
if(FSDP_HAVE_CRYPTO)
  string(APPEND FSDP_PC_REQUIRES " libcrypto")
endif()
if(FSDP_HAVE_MPI)
  string(APPEND FSDP_PC_LIBS " -lmpi")
endif()
if(FSDP_HAVE_CUDA)
  string(APPEND FSDP_PC_LIBS " ${CUDA_RUNTIME_LIBRARY} -lrt")
endif()
configure_file(${CMAKE_SOURCE_DIR}/cmake/fsdp.pc.in ${CMAKE_BINARY_DIR}/fsdp.pc @ONLY)

install(TARGETS fsdp_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_BINARY_DIR}/libfsdp.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_BINARY_DIR}/fsdp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/fsdp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(TARGET fsdp)
  install(TARGETS fsdp RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${CMAKE_BINARY_DIR}/fsdp.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${CMAKE_BINARY_DIR}/fsdp.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME fsdp)
endif()
