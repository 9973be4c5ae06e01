# Compile options shared by every target, and two functions for the source lists.

# -Wrestrict is off: GCC 12 reports it falsely for string concatenation (GCC bug 105329).
add_library(fp8lab_options INTERFACE)
target_include_directories(fp8lab_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(
  fp8lab_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow;$<$<BOOL:${FP8LAB_WERROR}>:-Werror>;-ffp-contract=off;-fno-math-errno>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(FP8LAB_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "fp8lab: FP8LAB_FUZZ needs Clang, not ${CMAKE_CXX_COMPILER_ID}")
  endif()
  target_compile_options(fp8lab_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
if(FP8LAB_SANITIZE OR FP8LAB_FUZZ)
  target_compile_options(fp8lab_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined;-fno-sanitize-recover=undefined;-fno-omit-frame-pointer>)
  target_link_options(fp8lab_options INTERFACE -fsanitize=address,undefined)
  # GCC 12 reports it falsely for the branches that the sanitizers add.
  target_compile_options(fp8lab_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
endif()

option(FP8LAB_PRECOMPILE "Precompile the standard headers that nearly every source includes" ON)
if(FP8LAB_PRECOMPILE)
  # GCC forgets which headers are the system's once they are precompiled, and reports in them what it
  # otherwise keeps to itself: bounds of searches and copies that it cannot follow through inlining.
  target_compile_options(fp8lab_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overread;-Wno-stringop-overflow;-Wno-array-bounds>)
endif()

# fp8lab_precompile(TARGET [LIGHT]): .cmake/precompiled.hpp, compiled once for all targets at -O3 and
# once for all light ones. A header compiled so serves sources with its flags alone, so that these
# targets are all position-independent and have the flag of OpenMP, whether they need them or not.
function(fp8lab_precompile target)
  if(NOT FP8LAB_PRECOMPILE)
    return()
  endif()
  set(flags "$<$<COMPILE_LANGUAGE:CXX>:-fPIC;${OpenMP_CXX_FLAGS}>")
  set(precompiled fp8lab_precompiled)
  if("LIGHT" IN_LIST ARGN)
    string(APPEND precompiled "_light")
  endif()
  if(NOT TARGET ${precompiled})
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/precompiled.cpp" CONTENT "")
    add_library(${precompiled} OBJECT "${CMAKE_BINARY_DIR}/generated/precompiled.cpp")
    target_link_libraries(${precompiled} PRIVATE fp8lab_options fmt::fmt)
    target_compile_options(${precompiled} PRIVATE "${flags}")
    if("LIGHT" IN_LIST ARGN)
      fp8lab_compile_lightly(${precompiled})
    endif()
    target_precompile_headers(${precompiled} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:${CMAKE_SOURCE_DIR}/.cmake/precompiled.hpp>")
  endif()
  target_compile_options(${target} PRIVATE "${flags}")
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
endfunction()

option(FP8LAB_UNITE "Compile the sources of a folder as one: for builds of everything" ON)

# fp8lab_unite(TARGET): its sources are compiled as one, which reads the headers and instantiates the
# templates that they share once.
function(fp8lab_unite target)
  if(FP8LAB_UNITE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()

# fp8lab_compile_lightly(TARGET...): for code without loops over data. -O3 of it would take half as
# long again to compile, for nothing.
function(fp8lab_compile_lightly)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endforeach()
endfunction()

# fp8lab_add_library(NAME source... [LIBS public...] [PRIVATE private...] [LIGHT] [SINGLY]): the static
# library fp8lab_NAME of one folder. LIBS are the folders that it may include; LIGHT: code without
# loops over data; SINGLY: each source by itself, for code whose speed is measured, so that what the
# compiler inlines does not depend on its neighbours.
function(fp8lab_add_library name)
  cmake_parse_arguments(arg "LIGHT;SINGLY" "" "LIBS;PRIVATE" ${ARGN})
  add_library(fp8lab_${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(fp8lab_${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  target_link_libraries(fp8lab_${name}
    PUBLIC ${arg_LIBS} PRIVATE $<BUILD_INTERFACE:fp8lab_options> ${arg_PRIVATE})
  if(NOT arg_SINGLY)
    fp8lab_unite(fp8lab_${name})
  endif()
  set(flags "")
  if(arg_LIGHT)
    fp8lab_compile_lightly(fp8lab_${name})
    set(flags LIGHT)
  endif()
  if("fmt::fmt" IN_LIST arg_PRIVATE)  # the precompiled headers hold fmt, with its definitions
    fp8lab_precompile(fp8lab_${name} ${flags})
  endif()
endfunction()

# Instruction sets of the CPU emulator, slowest first, and the compiler's flags for each.
set(FP8LAB_SIMD "all" CACHE STRING
  "Instruction sets to compile: all, native (the best that this processor runs) or a list of them")
set(simd_sets portable)
set(simd_flags_portable "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND simd_sets avx2 avx512 avx512_fp16 avx512_amx)
  set(simd_flags_avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
  set(simd_flags_avx512 ${simd_flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd
                        -mavx512vnni -mprefer-vector-width=512)
  set(simd_flags_avx512_fp16 ${simd_flags_avx512} -mavx512vbmi -mavx512bitalg -mgfni -mavx512fp16)
  set(simd_flags_avx512_amx ${simd_flags_avx512_fp16} -mamx-tile -mamx-bf16
                            -DFP8LAB_ISA_avx512_fp16=1)
endif()

# Writes simd_sets.hpp, which names the compiled sets to C++, into DIRECTORY.
function(fp8lab_write_simd_sets directory)
  set(calls "")
  foreach(isa IN LISTS ARGN)
    string(APPEND calls " X(${isa})")
  endforeach()
  file(CONFIGURE OUTPUT "${directory}/simd_sets.hpp" @ONLY CONTENT
    "// Instruction sets of this build, slowest first.\n#define FP8LAB_FOR_EACH_SIMD_SET(X)@calls@\n")
endfunction()

if(FP8LAB_SIMD STREQUAL "native")
  set(probe "${CMAKE_BINARY_DIR}/simd_probe")
  fp8lab_write_simd_sets("${probe}" ${simd_sets})
  try_run(status compiled SOURCES
    "${CMAKE_SOURCE_DIR}/.cmake/native_simd_set.cpp"
    "${CMAKE_SOURCE_DIR}/emulation/cpu/simd/target.cpp"
    "${CMAKE_SOURCE_DIR}/emulation/base/error.cpp"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${CMAKE_SOURCE_DIR};${probe}"
    CXX_STANDARD 20 COMPILE_OUTPUT_VARIABLE errors RUN_OUTPUT_VARIABLE native)
  if(NOT compiled OR NOT status EQUAL 0)
    message(FATAL_ERROR "fp8lab: cannot tell the instruction set of this processor: ${errors}")
  endif()
  set(simd_sets ${native})
  if(FP8LAB_BUILD_TESTS)  # which compare with portable code
    list(PREPEND simd_sets portable)
    list(REMOVE_DUPLICATES simd_sets)
  endif()
elseif(NOT FP8LAB_SIMD STREQUAL "all")
  foreach(isa IN LISTS FP8LAB_SIMD)
    if(NOT isa IN_LIST simd_sets)
      message(FATAL_ERROR "fp8lab: FP8LAB_SIMD has '${isa}'; accepted: all, native or ${simd_sets}")
    endif()
  endforeach()
  list(PREPEND FP8LAB_SIMD portable)
  list(REMOVE_DUPLICATES FP8LAB_SIMD)
  set(simd_sets ${FP8LAB_SIMD})
endif()
message(STATUS "fp8lab: instruction sets ${simd_sets}")
fp8lab_write_simd_sets("${CMAKE_BINARY_DIR}/generated" ${simd_sets})

# fp8lab_add_simd_sources(TARGET source...): compiles each source once per instruction set, with
# FP8LAB_ISA naming the inline namespace of that compilation, and links all copies into TARGET,
# which may include <simd_sets.hpp>.
# Always optimised: an unoptimised copy could leave inline functions with foreign instructions.
function(fp8lab_add_simd_sources target)
  foreach(isa IN LISTS simd_sets)
    set(object "${target}_${isa}")
    add_library(${object} OBJECT ${ARGN})
    target_link_libraries(${object} PRIVATE fp8lab_options)
    target_compile_definitions(${object} PRIVATE FP8LAB_ISA=isa_${isa} FP8LAB_ISA_${isa}=1)
    target_compile_options(${object} PRIVATE -O3 ${simd_flags_${isa}})
    set_target_properties(${object} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
  endforeach()
  target_include_directories(${target} PRIVATE "${CMAKE_BINARY_DIR}/generated")
endfunction()

# fp8lab_add_test(NAME tier source... [SPEC cases] [LIBS lib...]): one Catch2 executable, every case,
# or every one of a Catch2 test spec, a ctest with the label of its tier: ci, exhaustive, gpu or slow.
# Tests of src are compiled lightly: what they compute, they compute in the libraries. Others have
# loops of their own, which -O3 makes little faster and takes half as long again to compile.
# A case counts as skipped that says that it has no device or no folder of data (FP8LAB_...).
function(fp8lab_add_test name tier)
  cmake_parse_arguments(arg "" "SPEC" "LIBS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE fp8lab_options fp8lab_catch_main ${arg_LIBS})
  target_compile_definitions(${name} PRIVATE FP8LAB_TEST_DATA="${CMAKE_SOURCE_DIR}/tests")
  set(level 2)
  if("${arg_UNPARSED_ARGUMENTS}" MATCHES "^src/")
    set(level g)
  endif()
  if(NOT tier STREQUAL "exhaustive")
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O${level}>)
    if(FP8LAB_PRECOMPILE AND NOT "OpenMP::OpenMP_CXX" IN_LIST arg_LIBS)
      target_precompile_headers(${name} REUSE_FROM fp8lab_catch_precompiled_O${level})
    endif()
  endif()
  catch_discover_tests(${name} TEST_SPEC "${arg_SPEC}" TEST_PREFIX "${name}: " PROPERTIES LABELS ${tier}
    SKIP_REGULAR_EXPRESSION "skipped: (no CUDA device|FP8LAB_)")
endfunction()
