# Libraries of the program. All that are missing are named at once, by the names that the table in
# quickstart.sh translates into packages of a distribution.

set(missing "")
if(FP8LAB_PORTABLE)
  set(HDF5_USE_STATIC_LIBRARIES ON)
endif()
# fp8lab_require(NAME package arguments...): find_package(package arguments...)
macro(fp8lab_require name package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND missing ${name})
  endif()
endmacro()
# fp8lab_require_library(NAME library header): the target fp8lab::NAME, of what has no package file
# of CMake on some distributions.
macro(fp8lab_require_library name library header)
  if(FP8LAB_PORTABLE)
    find_library(FP8LAB_${name}_LIBRARY NAMES lib${library}.a ${library})
  else()
    find_library(FP8LAB_${name}_LIBRARY ${library})
  endif()
  find_path(FP8LAB_${name}_INCLUDE_DIR ${header})
  mark_as_advanced(FP8LAB_${name}_LIBRARY FP8LAB_${name}_INCLUDE_DIR)
  if(FP8LAB_${name}_LIBRARY AND FP8LAB_${name}_INCLUDE_DIR)
    add_library(fp8lab::${name} UNKNOWN IMPORTED)
    set_target_properties(fp8lab::${name} PROPERTIES
      IMPORTED_LOCATION "${FP8LAB_${name}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${FP8LAB_${name}_INCLUDE_DIR}")
  else()
    list(APPEND missing ${name})
  endif()
endmacro()

fp8lab_require(openmp OpenMP COMPONENTS CXX)
fp8lab_require(eigen Eigen3 3.4 NO_MODULE)
fp8lab_require(fmt fmt)
fp8lab_require(nlohmann_json nlohmann_json)
fp8lab_require(hdf5 HDF5 1.10 COMPONENTS C)
fp8lab_require(tomlplusplus tomlplusplus)
# The package files of Boost are made for versions of CMake: 1.74 leaves its targets out under CMake 4.
fp8lab_require_library(boost_program_options boost_program_options boost/program_options.hpp)
fp8lab_require_library(xxhash xxhash xxhash.h)
fp8lab_require_library(libzip zip zip.h)
if(FP8LAB_BUILD_TESTS)
  fp8lab_require(catch2 Catch2)  # 2.13 or 3, and none is compatible with the other for CMake
  fp8lab_require(zlib ZLIB)
endif()

if(missing)
  list(JOIN missing " " missing)
  message(STATUS "fp8lab: missing: ${missing}")  # an error's text would be wrapped
  message(FATAL_ERROR "fp8lab: libraries are missing, named above")
endif()

# A distribution's archive of HDF5 is made for programs: it refers to stdout and stderr relative to its
# code, as a shared library may not. Here it refers to copies of them instead. Of the drivers for
# remote files, and so of the libraries for networks, nothing is linked.
if(FP8LAB_PORTABLE)
  set(archives "")
  foreach(library IN ITEMS sz aec z)
    find_library(FP8LAB_hdf5_${library}_LIBRARY lib${library}.a REQUIRED)
    mark_as_advanced(FP8LAB_hdf5_${library}_LIBRARY)
    list(APPEND archives "${FP8LAB_hdf5_${library}_LIBRARY}")
  endforeach()
  list(FILTER HDF5_C_LIBRARIES INCLUDE REGEX "libhdf5[^/]*\\.a$")
  set(streams "${CMAKE_BINARY_DIR}/generated/hdf5_streams.c")
  set(renamed "${CMAKE_BINARY_DIR}/generated/libhdf5.a")
  file(CONFIGURE OUTPUT "${streams}" @ONLY CONTENT [[
#include <stdio.h>
__attribute__((visibility("hidden"))) FILE* fp8lab_stdout;
__attribute__((visibility("hidden"))) FILE* fp8lab_stderr;
__attribute__((constructor)) static void set_streams(void) {
  fp8lab_stdout = stdout;
  fp8lab_stderr = stderr;
}
]])
  add_custom_command(OUTPUT "${renamed}" DEPENDS ${HDF5_C_LIBRARIES} VERBATIM
    COMMAND ${CMAKE_OBJCOPY} --redefine-sym stdout=fp8lab_stdout
            --redefine-sym stderr=fp8lab_stderr ${HDF5_C_LIBRARIES} "${renamed}")
  add_custom_target(fp8lab_hdf5_archive DEPENDS "${renamed}")
  add_library(fp8lab_hdf5 OBJECT "${streams}")
  set_target_properties(fp8lab_hdf5 PROPERTIES POSITION_INDEPENDENT_CODE ON)
  add_dependencies(fp8lab_hdf5 fp8lab_hdf5_archive)
  set(HDF5_C_LIBRARIES "${renamed}" ${archives} m ${CMAKE_DL_LIBS})
endif()

# Libraries of C++ whose code can be in their headers: the shared ones need the machine's libstdc++.
if(FP8LAB_PORTABLE)
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
  set_target_properties(tomlplusplus::tomlplusplus PROPERTIES
    INTERFACE_COMPILE_OPTIONS -DTOML_HEADER_ONLY=1)
endif()

# fp8lab_make_portable(TARGET): a program or shared library for machines with an older C++ or C
# library. Of the archives what nothing calls is left out, and with it needs of later symbols.
function(fp8lab_make_portable target)
  if(FP8LAB_PORTABLE)
    target_link_options(${target} PRIVATE
      -static-libstdc++ LINKER:--as-needed LINKER:--gc-sections)
    target_link_libraries(${target} PRIVATE fp8lab_hdf5)
  endif()
endfunction()
