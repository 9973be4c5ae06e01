// Reads matrices from .npy files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "emulation/backend.hpp"
#include "src/cli/inputs/matrices.hpp"
#include "src/io/tensors/npy.hpp"

namespace fp8lab::cli {

/// Reads a matrix of a .npy file with at least one element. Prints a note if values are NaN or
/// infinite. Throws Error that names the file.
NpyArray read_matrix(const std::string& file);

/// Returns the number of elements that are NaN or infinite; 0 for codes.
std::int64_t count_special(const NpyArray& array);

/// Calls make_operand for `file`: codes (u8) with the scales of
/// `scale_file`, or values to quantize.
MatrixOperand read_operand(Backend& backend, const std::string& file,
                           const std::optional<std::string>& scale_file, const QuantSpec& spec,
                           std::uint64_t seed);

}  // namespace fp8lab::cli
