# make install: libraries, headers, CMake and pkg-config files, command, man pages, completions; in components that are the
# Debian packages. Relative to the prefix throughout.
set(CMAKE_INSTALL_LIBDIR lib CACHE STRING "where libraries go, below the prefix")
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
file(RELATIVE_PATH FSDP_UP_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
file(RELATIVE_PATH FSDP_UP_FROM_CMAKE /${CMAKE_INSTALL_LIBDIR}/cmake/fsdp /)

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
if(FSDP_HAVE_MICROHTTPD)
  string(APPEND FSDP_PC_LIBS " -lmicrohttpd")
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

configure_file(${CMAKE_SOURCE_DIR}/cmake/fsdpConfig.cmake.in ${CMAKE_BINARY_DIR}/fsdpConfig.cmake @ONLY)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/fsdpConfigVersion.cmake COMPATIBILITY SameMajorVersion)

install(TARGETS fsdp_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/libfsdp.a DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/fsdp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/fsdpConfig.cmake ${CMAKE_BINARY_DIR}/fsdpConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp COMPONENT development)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/fsdp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.h")
if(TARGET fsdp)
  install(TARGETS fsdp RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/pages/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT command)
  set(pages ${CMAKE_BINARY_DIR}/pages/fsdp)
  install(FILES ${pages}.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME fsdp
          COMPONENT command)
  install(FILES ${pages}.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _fsdp COMPONENT command)
  install(FILES ${pages}.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME fsdp.fish
          COMPONENT command)
endif()
