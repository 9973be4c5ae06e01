// The location of the Python package fp8lab that comes with the program.
#pragma once

#include <filesystem>

namespace fp8lab {

/// Returns the folder that holds fp8lab: beside the experiments of an installed program, else in
/// the source tree. Empty for a program in that package: the interpreter has it. Throws Error if
/// there is none.
std::filesystem::path python_package_folder();

}  // namespace fp8lab
