// Matrices of .npy files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "emulation/backend.hpp"
#include "src/cli/matrices.hpp"
#include "src/io/npy.hpp"

namespace fp8lab::cli {

/// A matrix of a .npy file with at least one element. A note says where values are NaN or infinite.
/// Throws Error naming the file.
NpyArray read_matrix(const std::string& file);

/// How many elements are NaN or infinite; 0 for codes.
std::int64_t count_special(const NpyArray& array);

/// make_operand of `file`: codes (u8) with the scales of `scale_file`, or values that are
/// quantized.
MatrixOperand read_operand(Backend& backend, const std::string& file,
                           const std::optional<std::string>& scale_file, const QuantSpec& spec,
                           std::uint64_t seed);

}  // namespace fp8lab::cli
