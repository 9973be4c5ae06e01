#include "src/assessment/gemm_time.hpp"

#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

constexpr double kTera = 1e12 / 2;  // floating-point operations to multiply-adds

constexpr TileShape kTensor{0, 0}, kRow{1, 0}, kGroup{1, 128}, kSquare{128, 128};

}  // namespace

std::optional<double> measured_rate(const GemmSpec& gemm, const QuantSpec& a, const QuantSpec& b) {
  if (!a.is_cast() && !b.is_cast()) {
    if (gemm.accumulator == Accumulator::sm90_bf16) return 832 * kTera;
    return std::nullopt;
  }
  if (gemm.accumulator != Accumulator::sm90_wgmma_fp8) return std::nullopt;
  const bool promoted = gemm.schedule == Schedule::promote;
  const auto are = [&](const TileShape& of_a, const TileShape& of_b) {
    return a.tile == of_a && b.tile == of_b;
  };
  if (are(kTensor, kTensor)) return (promoted ? 1395 : 1585) * kTera;
  if (are(kRow, kRow)) return (promoted ? 1390 : 1538) * kTera;
  if (are(kGroup, kSquare)) return 1385 * kTera;
  if (are(kGroup, kGroup)) return 1168 * kTera;
  return std::nullopt;
}

std::optional<double> product_seconds(const Recipe& recipe,
                                      const std::vector<LinearDeclaration>& linears,
                                      std::int64_t layers, std::int64_t tokens) {
  double seconds = 0;
  for (const LinearDeclaration& linear : linears) {
    if (linear.block == Block::head) continue;
    const LinearRecipe& numerics = recipe.for_layer(linear.name, static_cast<int>(layers));
    const double work = static_cast<double>(linear.in * linear.out) * static_cast<double>(tokens);
    for (const GemmRole role : kGemmRoles) {
      const std::optional<double> rate =
          measured_rate(numerics.gemm(role), numerics.a(role), numerics.b(role));
      if (!rate) return std::nullopt;
      seconds += work / *rate;
    }
  }
  return seconds;
}

}  // namespace fp8lab
