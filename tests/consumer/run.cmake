# Installs BUILD_DIR into WORK_DIR/prefix, builds the project beside this file against it and runs
# what came out.
set(prefix "${WORK_DIR}/prefix")
set(build "${WORK_DIR}/build")
file(REMOVE_RECURSE "${WORK_DIR}")

include("${CMAKE_CURRENT_LIST_DIR}/../run_command.cmake")

run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${prefix}" --config "${CONFIG}")
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}" -B "${build}" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
  "-DCMAKE_BUILD_TYPE=${CONFIG}" "-DCMAKE_CXX_FLAGS=-Wall -Wextra ${CXX_FLAGS}")
run(${CMAKE_COMMAND} --build "${build}" --config "${CONFIG}")
run("${build}/numerics_only")
run("${build}/emulated_gemm")

# The installed program finds its data and its analysis package, not those of the source tree.
run("${prefix}/bin/fp8lab" info)
string(FIND "${output}" "${prefix}/share/fp8lab/experiments" found)
if(found EQUAL -1)
  message(FATAL_ERROR "the installed program takes its data from elsewhere:\n${output}")
endif()
run("${prefix}/bin/fp8lab" recipes show infir2)
run("${prefix}/bin/fp8lab" train --preset quickstart --dry-run)
run("${CMAKE_COMMAND}" -E env "PYTHONPATH=${prefix}/share/fp8lab/analysis:${prefix}/share/fp8lab/python"
  PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m fp8lab_analysis.report --help)
# Python's package has its library, and that finds the installed recipes.
run("${CMAKE_COMMAND}" -E env --unset=FP8LAB_LIBRARY "PYTHONPATH=${prefix}/share/fp8lab/python"
  PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c
  "import numpy, fp8lab\nx = numpy.ones((16, 128), 'f4')\nassert (fp8lab.gemm(x, x, 'infir2:fprop') == 128).all()")
# Every file of the package is installed: modules, and the templates with what they include.
get_filename_component(source "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
file(GLOB_RECURSE files RELATIVE "${source}/analysis" "${source}/analysis/fp8lab_analysis/*")
list(FILTER files EXCLUDE REGEX "__pycache__")
list(LENGTH files count)
if(count LESS 50)
  message(FATAL_ERROR "only ${count} files of the analysis package were found")
endif()
foreach(file IN LISTS files)
  if(NOT EXISTS "${prefix}/share/fp8lab/analysis/${file}")
    message(FATAL_ERROR "${file} is not installed")
  endif()
endforeach()
