#include "src/validate/measure_device.hpp"

#include "emulation/base/input_error.hpp"
#if defined(FP8LAB_HAVE_CUDA)
#include <algorithm>
#include <cstring>

#include "emulation/cases/case_generator.hpp"
#include "emulation/numerics/codec.hpp"
#include "kernels/probes/card_probe.hpp"
#include "kernels/probes/codec_sweep.hpp"
#include "src/backend/factory.hpp"
#endif

namespace fp8lab {

#if defined(FP8LAB_HAVE_CUDA)
namespace {

using cuda::MmaForm;

constexpr int kChain = 4;            ///< instructions of a chain
constexpr int kPromoted = 2;         ///< of them before a promotion
constexpr std::int64_t kTileK = 16;  ///< elements that draw one kind of values

std::vector<std::uint32_t> draw_codes(const numerics::FormatSpec& format, std::int64_t rows,
                                      std::int64_t k, CaseGenerator& cases) {
  return cases.codes<std::uint32_t>(format, rows, k, 3, kTileK, true);
}

/// The bytes of codes as a card reads them; TF32 as FP32.
std::vector<std::uint8_t> bytes_of(const numerics::FormatSpec& format,
                                   const std::vector<std::uint32_t>& codes) {
  const std::size_t width = format.bits() <= 8 ? 1 : format.bits() <= 16 ? 2 : 4;
  std::vector<std::uint8_t> bytes(codes.size() * width);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::uint32_t element = width == 4 ? codes[i] << (32 - format.bits()) : codes[i];
    std::memcpy(bytes.data() + i * width, &element, width);
  }
  return bytes;
}

DeviceProducts measure_mma(const MmaForm& form, int steps, int promoted, int tiles,
                           CaseGenerator& cases) {
  DeviceProducts one;
  one.instruction = "mma.sync";
  one.format_a = form.a;
  one.format_b = form.b;
  one.to_f16 = form.to_f16;
  one.tiles = tiles;
  one.rows = cuda::kMmaRows;
  one.columns = cuda::kMmaColumns;
  one.k = steps * form.k;
  one.promote = promoted * form.k;
  one.a = draw_codes(form.a, one.tiles * one.rows, one.k, cases);
  one.b = draw_codes(form.b, one.tiles * one.columns, one.k, cases);
  std::vector<std::uint32_t> c(static_cast<std::size_t>(one.results()));
  for (std::uint32_t& bits : c) {
    bits = numerics::float_bits(cases.accumulator());
    if (form.to_f16) bits = numerics::encode(numerics::kFP16, bits);
    if (cases.bits() % 2 == 0) bits = 0;
  }
  one.d = cuda::multiply_tiles(
      {form.types, tiles, steps, promoted, bytes_of(form.a, one.a), bytes_of(form.b, one.b), c});
  if (promoted == 0) one.c = std::move(c);
  return one;
}

/// An operand with scale 1 in the memory of the backend.
QuantizedOperand uploaded(Backend& backend, const numerics::FormatSpec& format, std::int64_t rows,
                          std::int64_t k, const std::vector<std::uint32_t>& codes) {
  QuantizedOperand operand;
  operand.spec.format = format;
  operand.spec.scale_source = ScaleSource::current;
  operand.rows = rows;
  operand.k = k;
  operand.codes = backend.allocate(DType::u8, rows, k);
  backend.upload(operand.codes, bytes_of(format, codes).data());
  const float one = 1.0f;
  operand.scales = backend.allocate(DType::f32, 1, 1);
  backend.upload(operand.scales, &one);
  return operand;
}

/// The wgmma of the backend's own GEMM, whose results have scale 1 and no addend.
DeviceProducts measure_wgmma(Backend& backend, const numerics::FormatSpec& a,
                             const numerics::FormatSpec& b, std::int64_t promote,
                             CaseGenerator& cases) {
  DeviceProducts one;
  one.instruction = "wgmma";
  one.format_a = a;
  one.format_b = b;
  one.promote = promote;
  one.tiles = 1;
  one.rows = one.columns = 64;
  one.k = 256;
  one.a = draw_codes(a, one.rows, one.k, cases);
  one.b = draw_codes(b, one.columns, one.k, cases);
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = promote > 0 ? Schedule::promote : Schedule::fast;
  if (promote > 0) spec.promote_interval = static_cast<int>(promote);
  spec.output = DType::f32;
  const std::size_t mark = backend.memory_mark();
  const QuantizedOperand left = uploaded(backend, a, one.rows, one.k, one.a);
  const QuantizedOperand right = uploaded(backend, b, one.columns, one.k, one.b);
  const TensorView d = backend.allocate(DType::f32, one.rows, one.columns);
  backend.run(
      ops::Gemm{.spec = spec, .a = left, .b = right, .bias = {}, .accumulate = false, .d = d});
  one.d.resize(static_cast<std::size_t>(one.results()));
  backend.download(one.d.data(), d);
  backend.release_to(mark);
  return one;
}

DeviceConversions measure_conversion(cuda::CardConversion conversion,
                                     const numerics::FormatSpec& format, CaseGenerator& cases) {
  constexpr std::int64_t kEach = 256;
  DeviceConversions one;
  one.format = format;
  for (int kind = 0; kind < kValueKinds; ++kind) {
    for (const float value : cases.values(format, static_cast<ValueKind>(kind), kEach)) {
      one.inputs.push_back(numerics::float_bits(value));
    }
  }
  one.codes = cuda::convert_values(conversion, one.inputs);
  return one;
}

}  // namespace

DevicePack measure_device(const DeviceMeasurement& measurement, const std::string& version) {
  if (cuda::device_count() == 0) {
    throw InputError({.where = "validate device",
                      .reason = "no CUDA device is present",
                      .accepted = "a pack that another machine made"});
  }
  const cuda::CardFacts facts = cuda::card_facts();
  DevicePack pack;
  pack.facts = {facts.name, facts.major, facts.minor, facts.driver, facts.runtime, version};
  CaseGenerator cases(measurement.seed);
  for (const MmaForm& form : cuda::kMmaForms) {
    if (facts.major * 10 + facts.minor < form.architecture) continue;
    const int tiles = measurement.tiles;
    pack.products.push_back(measure_mma(form, 1, 0, tiles, cases));
    pack.products.push_back(measure_mma(form, kChain, 0, tiles / 2, cases));
    if (!form.to_f16) {
      pack.products.push_back(measure_mma(form, kChain, kPromoted, tiles / 2, cases));
    }
  }
  if (facts.major == 9) {
    const std::unique_ptr<Backend> backend = make_backend("cuda", 0);
    for (const numerics::FormatSpec& format : {numerics::kE4M3, numerics::kE5M2}) {
      pack.products.push_back(measure_wgmma(*backend, format, format, 0, cases));
      pack.products.push_back(measure_wgmma(*backend, format, format, 128, cases));
    }
  }
  using cuda::CardConversion;
  pack.conversions = {measure_conversion(CardConversion::e4m3, numerics::kE4M3, cases),
                      measure_conversion(CardConversion::e5m2, numerics::kE5M2, cases),
                      measure_conversion(CardConversion::bf16, numerics::kBF16, cases),
                      measure_conversion(CardConversion::f16, numerics::kFP16, cases)};
  return pack;
}

#else

DevicePack measure_device(const DeviceMeasurement&, const std::string&) {
  throw InputError({.where = "validate device",
                    .reason = "this build has no CUDA code",
                    .accepted = "a pack that another machine made"});
}

#endif

}  // namespace fp8lab
