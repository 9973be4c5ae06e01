// Operands whose rows are contiguous: the bits of their transposed copies, in every operation that
// reads operands.
#include <catch2/catch.hpp>

#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "tests/emulation/cpu/matrix.hpp"

namespace fp8lab {
namespace {

using test::Matrix;

constexpr StorageOrder kAlongK = StorageOrder::k_contiguous;
constexpr StorageOrder kAlongRows = StorageOrder::rows_contiguous;

/// (rows, k) values in both orders of storage, the second with gaps between its lines.
struct Stored {
  QuantSpec spec;
  Matrix along_k, along_rows;

  Stored(DType dtype, std::int64_t rows, std::int64_t k, std::uint32_t seed)
      : along_k(Matrix::random(dtype, rows, k, seed)), along_rows(dtype, k, rows + 3) {
    spec.format = dtype == DType::f32 ? numerics::kFP32 : numerics::kBF16;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < k; ++i) along_rows.set(i, r, along_k.at(r, i));
    }
  }

  QuantizedOperand operand(StorageOrder order) {
    QuantizedOperand operand =
        QuantizedOperand::without_memory(spec, along_k.rows(), along_k.cols());
    operand.order = order;
    operand.codes =
        order == kAlongK ? along_k.view() : along_rows.view().columns(0, along_k.rows());
    return operand;
  }
};

template <class Multiply>
void check_product(DType dtype, const GemmSpec& spec, DType output, const Multiply& multiply) {
  constexpr std::int64_t kM = 37, kN = 29, kK = 150;
  Stored a(dtype, kM, kK, 1), b(dtype, kN, kK, 2);
  const auto product = [&](StorageOrder order_a, StorageOrder order_b) {
    const QuantizedOperand left = a.operand(order_a), right = b.operand(order_b);
    Matrix d(output, kM, kN);
    multiply(ops::Gemm{spec, left, right, {}, false, d.view()});
    return d.bytes();
  };
  const std::vector<std::byte> expected = product(kAlongK, kAlongK);
  CHECK(product(kAlongK, kAlongRows) == expected);
  CHECK(product(kAlongRows, kAlongK) == expected);
  CHECK(product(kAlongRows, kAlongRows) == expected);
}

std::vector<std::byte> statistics_of(Backend& backend, Stored& stored, StorageOrder order,
                                     bool transpose) {
  const QuantizedOperand operand = stored.operand(order);
  std::vector<std::byte> record(sizeof(OperandStatistics));
  backend.run(ops::MeasureOperand{
      transpose ? stored.along_rows.view().columns(0, operand.rows) : stored.along_k.view(),
      transpose,
      operand,
      {record.data(), DType::u8, 1, static_cast<std::int64_t>(record.size()),
       static_cast<std::int64_t>(record.size())}});
  return record;
}

TEST_CASE("a product reads its operands in either order of storage") {
  const auto on_cpu = [](const ops::Gemm& op) { cpu::CpuBackend(1).run(op); };
  GemmSpec bf16, fp32, promoted;
  fp32.accumulator = Accumulator::ideal_fp32;
  promoted.schedule = Schedule::promote;
  promoted.promote_interval = 64;
  check_product(DType::bf16, bf16, DType::bf16, on_cpu);
  check_product(DType::bf16, promoted, DType::bf16, on_cpu);
  check_product(DType::f32, fp32, DType::bf16, on_cpu);
  check_product(DType::bf16, bf16, DType::bf16, [](const ops::Gemm& op) { reference::gemm(op); });
}

TEST_CASE("values are decoded and measured in either order of storage") {
  cpu::CpuBackend backend(1);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    Stored stored(dtype, 70, 131, 3);
    for (const bool transpose : {false, true}) {
      const auto decoded = [&](StorageOrder order) {
        Matrix values(DType::f32, transpose ? 131 : 70, transpose ? 70 : 131);
        backend.run(ops::Dequantize{stored.operand(order), transpose, values.view()});
        return values.bytes();
      };
      CHECK(decoded(kAlongRows) == decoded(kAlongK));
      // The record holds the hash of the codes, which goes by row and k.
      CHECK(statistics_of(backend, stored, kAlongRows, transpose) ==
            statistics_of(backend, stored, kAlongK, transpose));
    }
  }
}

TEST_CASE("codes, and operands to be written, have K contiguous") {
  cpu::CpuBackend backend(1);
  Stored a(DType::bf16, 32, 64, 1), b(DType::bf16, 16, 64, 2);
  Matrix d(DType::bf16, 32, 16);
  const GemmSpec spec;
  QuantizedOperand left = a.operand(kAlongRows);
  const QuantizedOperand right = b.operand(kAlongK);
  CHECK_THROWS_WITH(backend.run(ops::Quantize{.source = a.along_k.view(), .operand = left}),
                    Catch::Contains("rows contiguous; accepted: K"));
  left.codes = a.along_k.view();
  CHECK_THROWS_WITH(backend.run(ops::Gemm{spec, left, right, {}, false, d.view()}),
                    Catch::Contains("codes is bf16 (32, 64), expected bf16 (64, 32)"));
  left = a.operand(kAlongRows);
  left.spec.format = numerics::kE4M3;
  left.spec.scale_source = ScaleSource::none;
  Matrix codes(DType::u8, 64, 32);
  left.codes = codes.view();
  CHECK_THROWS_WITH(backend.run(ops::Dequantize{left, false, a.along_k.view()}),
                    Catch::Contains("rows contiguous; accepted: K"));
}

TEST_CASE("the truth path multiplies operands in either order of storage") {
  const auto backend = reference::make_truth_backend(1);
  const GemmSpec spec;
  check_product(DType::f64, spec, DType::f64, [&](const ops::Gemm& op) { backend->run(op); });
}

}  // namespace
}  // namespace fp8lab
