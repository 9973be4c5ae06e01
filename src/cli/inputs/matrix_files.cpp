#include "src/cli/inputs/matrix_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/io/tensors/stored_type.hpp"

namespace fp8lab::cli {
namespace {

bool is_special(float value) { return !std::isfinite(value); }

/// Returns the values; empty for codes.
std::vector<float> values_of(const NpyArray& array) {
  if (array.dtype != DType::f32 && array.dtype != DType::bf16) return {};
  std::vector<float> values(static_cast<std::size_t>(array.rows * array.cols));
  decode_elements(stored_type(array.dtype), array.data, values);
  return values;
}

/// Prints a note on NaN and infinity: the emulation supports them, but they are
/// seldom intended in a file.
void note_special_values(const NpyArray& array, const std::string& file) {
  const std::vector<float> values = values_of(array);
  const auto count = std::count_if(values.begin(), values.end(), is_special);
  if (count == 0) return;
  const auto first = std::find_if(values.begin(), values.end(), is_special) - values.begin();
  print_notes({fmt::format("{}: {} of {} elements are NaN or infinite, the first at ({}, {})", file,
                           count, values.size(), first / array.cols, first % array.cols)});
}

}  // namespace

std::int64_t count_special(const NpyArray& array) {
  const std::vector<float> values = values_of(array);
  return std::count_if(values.begin(), values.end(), is_special);
}

NpyArray read_matrix(const std::string& file) {
  refuse_other_kind(file, kMatrixKind);
  NpyArray array = read_npy(file);
  if (array.dtype == DType::f64) {
    throw InputError({.where = file,
                      .noun = ".npy type",
                      .found = "'<f8'",
                      .reason = "is not accepted here",
                      .accepted = "'<f4', or '<u2' with the bits of bf16",
                      .remedy = "save x.astype('float32')"});
  }
  if (array.rows < 1 || array.cols < 1) {
    throw InputError(
        {.where = file,
         .reason = fmt::format("shape ({}, {}) has no elements", array.rows, array.cols)});
  }
  note_special_values(array, file);
  return array;
}

MatrixOperand read_operand(Backend& backend, const std::string& file,
                           const std::optional<std::string>& scale_file, const QuantSpec& spec,
                           std::uint64_t seed) {
  NpyArray values = read_matrix(file);
  std::optional<NpyArray> scales;
  if (scale_file) scales = read_matrix(*scale_file);
  return make_operand(backend, values.view(), file, scales, scale_file.value_or(""), spec, seed);
}

}  // namespace fp8lab::cli
