// Readings of a recorded GEMM under which its result would be wrong in a known way.
#pragma once

#include <string>
#include <vector>

#include "src/replay/recorded_gemm.hpp"

namespace fp8lab {

/// A reading of a record's operands: as the call says, or with one fault.
struct GemmReading {
  std::string fault;  ///< "scale_a transposed"; empty: as the call says
  RecordedGemm gemm;  ///< with operands and scales of this reading
};

/// Returns the reading without a fault first, then one for each fault that changes an operand:
/// scales transposed, of the neighbouring tile, divided by instead of multiplied with, left out, of
/// the other operand, of an earlier call; codes read as FP4 or as another FP8 format.
std::vector<GemmReading> gemm_readings(const RecordedGemm& gemm);

/// Rows and columns of D whose elements stand for all of them.
struct ElementSample {
  std::vector<std::int64_t> rows, cols;
};

/// Returns at most `most` rows and columns, spread evenly over the recorded ones.
ElementSample element_sample(const RecordedGemm& gemm, std::size_t most);

/// Returns the exact results of the sampled elements, row by row, in FP64 before any rounding:
/// the sum over K of scales times codes, plus the bias, times d_scale.
std::vector<double> exact_results(const RecordedGemm& gemm, const ElementSample& sample);

/// Returns the products of K in blocks of `width`, scaled, for one element.
std::vector<double> block_products(const RecordedGemm& gemm, std::int64_t row, std::int64_t col,
                                   std::int64_t width);

/// Returns the root of the mean square of recorded minus exact results, divided by that of the
/// recorded ones. Elements that are not finite in both are left out; infinity if one is not finite
/// in only one of them, or if none is finite in both.
double relative_error(const RecordedGemm& gemm, const ElementSample& sample);

}  // namespace fp8lab
