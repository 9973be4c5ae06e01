// The interpreter of Python that the program starts, for the report and for the tokenizer of a
// model.
#pragma once

#include <string>

namespace fp8lab {

/// Environment variable that names the interpreter.
inline constexpr const char* kPythonVariable = "FP8LAB_PYTHON";

/// Returns the value of FP8LAB_PYTHON, else "python3", which is searched for in PATH.
std::string python_interpreter();

}  // namespace fp8lab
