# Gathers the bundle of BUILD_DIR, moves it elsewhere below WORK_DIR and runs it there with an empty
# environment, as another machine would: nothing of ours may be found outside of it.
set(bundle "${WORK_DIR}/elsewhere/fp8lab")
file(REMOVE_RECURSE "${WORK_DIR}")

include("${CMAKE_CURRENT_LIST_DIR}/../run_command.cmake")

function(expect text in)
  string(FIND "${in}" "${text}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "'${text}' is missing in:\n${in}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --config "${CONFIG}" --component bundle --strip
  --prefix "${WORK_DIR}/gathered")
file(MAKE_DIRECTORY "${WORK_DIR}/elsewhere")
file(RENAME "${WORK_DIR}/gathered" "${bundle}")

run(env -i "${bundle}/bin/fp8lab" info)
expect("${bundle}/share/fp8lab/experiments" "${output}")
run(env -i "${bundle}/bin/fp8lab" recipes list)
expect("infir2" "${output}")
run(env -i "${bundle}/bin/fp8lab" train --preset quickstart --dry-run)
run(env -i PYTHONPATH=${bundle}/share/fp8lab/analysis:${bundle}/share/fp8lab/python PYTHONDONTWRITEBYTECODE=1
  /usr/bin/python3 -m fp8lab_analysis.report --help)
run(env -i PYTHONPATH=${bundle}/share/fp8lab/python PYTHONDONTWRITEBYTECODE=1
  /usr/bin/python3 -m fp8lab.tokens --help)

# Every library that the program loads is the bundle's, but for the machine's own.
run(env -i ldd "${bundle}/bin/fp8lab")
string(REPLACE "\n" ";" lines "${output}")
set(own 0)
foreach(line IN LISTS lines)
  string(FIND "${line}" "=> ${bundle}/bin/../lib/fp8lab/" found)
  if(found GREATER -1)
    math(EXPR own "${own} + 1")
  elseif(line MATCHES "=>" AND
         NOT line MATCHES "^[ \t]*lib(c|m|mvec|dl|rt|pthread|resolv|util|cublasLt)\\.so")
    message(FATAL_ERROR "not from the bundle: ${line}")
  endif()
endforeach()
if(own LESS 5)
  message(FATAL_ERROR "only ${own} libraries come from the bundle:\n${output}")
endif()
file(GLOB cuda "${bundle}/lib/fp8lab/libcuda*"
  "${bundle}/lib/fp8lab/libcublas*" "${bundle}/lib/fp8lab/libnv*")
if(cuda)
  message(FATAL_ERROR "libraries of CUDA were gathered: ${cuda}")
endif()
