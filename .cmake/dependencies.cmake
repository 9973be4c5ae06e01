# Libraries of the program. All that are missing are named at once, by the names that the table in
# quickstart.sh translates into packages of a distribution.

set(missing "")
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
  find_library(FP8LAB_${name}_LIBRARY ${library})
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
