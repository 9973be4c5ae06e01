// Checks of tensor-core instructions, of single output elements and of whole GEMMs.
#include <fmt/format.h>

#include <cstring>
#include <iterator>
#include <memory>

#include "emulation/numerics/codec.hpp"
#include "src/validate/suite_checks.hpp"

namespace fp8lab {
namespace {

using numerics::EpilogueScales;
using numerics::FormatSpec;
using numerics::GroupModel;
using numerics::Promotion;

// --- instructions -------------------------------------------------------------------------------

struct Instruction {
  const char* name;
  GroupModel group;
  bool mma_sync_fp8;
  FormatSpec format_a, format_b;
};

constexpr Instruction kInstructions[] = {
    {"wgmma e4m3 e4m3", numerics::kSm90WgmmaFp8F32, false, numerics::kE4M3, numerics::kE4M3},
    {"wgmma e4m3 e5m2", numerics::kSm90WgmmaFp8F32, false, numerics::kE4M3, numerics::kE5M2},
    {"wgmma e5m2 e5m2", numerics::kSm90WgmmaFp8F32, false, numerics::kE5M2, numerics::kE5M2},
    {"wgmma e4m3 e4m3 to f16", numerics::kSm90WgmmaFp8F16, false, numerics::kE4M3, numerics::kE4M3},
    {"mma.sync e4m3 e4m3", numerics::kSm90Fp16F32, true, numerics::kE4M3, numerics::kE4M3},
    {"mma.sync e5m2 e4m3 to f16", numerics::kSm90Fp16F16, true, numerics::kE5M2, numerics::kE4M3},
    {"bf16", numerics::kSm90Bf16F32, false, numerics::kBF16, numerics::kBF16},
    {"f16", numerics::kSm90Fp16F32, false, numerics::kFP16, numerics::kFP16},
    {"f16 to f16", numerics::kSm90Fp16F16, false, numerics::kFP16, numerics::kFP16},
};
constexpr int kGroupsPerPair = 3;

struct ExpectedGroup {
  const Instruction* instruction = nullptr;
  std::vector<std::uint32_t> a, b;
  std::uint32_t c_bits = 0;
  std::uint32_t result = 0;

  GroupProblem problem() const {
    MmaModel model;
    model.known = true;
    model.mma_sync_fp8 = instruction->mma_sync_fp8;
    model.group = instruction->group;
    return {model,
            instruction->format_a,
            instruction->format_b,
            a.data(),
            b.data(),
            static_cast<int>(a.size()),
            c_bits};
  }
};

std::uint32_t draw_accumulator(const GroupModel& group, CaseGenerator& cases) {
  const float value = cases.accumulator();
  if (group.output == numerics::OutputKind::f32_truncated) return numerics::float_bits(value);
  return cases.bits() % 2 == 0 ? cases.bits() & 0xFBFFu
                               : numerics::encode(numerics::kFP16, numerics::float_bits(value));
}

// --- library modes ------------------------------------------------------------------------------

struct LibraryMode {
  const char* name;
  Promotion promotion;
  std::int64_t interval, scale_width_a, scale_width_b;
  EpilogueScales scales;
  bool bf16;
};

constexpr LibraryMode kModes[] = {
    {"scalar, fast", Promotion::add, 0, 0, 0, EpilogueScales::scalar, false},
    {"scalar", Promotion::add, 128, 0, 0, EpilogueScales::scalar, false},
    {"outer, fast", Promotion::add, 0, 0, 0, EpilogueScales::outer, false},
    {"outer", Promotion::add, 128, 0, 0, EpilogueScales::outer, false},
    {"1x128 by 1x128", Promotion::b_then_a, 128, 128, 128, EpilogueScales::none, false},
    {"1x128 by 128x128", Promotion::product_first, 128, 128, 128, EpilogueScales::none, false},
    {"bf16", Promotion::add, 0, 0, 0, EpilogueScales::none, true},
};
constexpr FormatSpec kOutputs[] = {numerics::kFP32, numerics::kBF16, numerics::kFP16,
                                   numerics::kE4M3};
constexpr int kElementsPerMode = 160;

struct ExpectedElement {
  const LibraryMode* mode = nullptr;
  ElementProblem problem;
  std::vector<std::uint32_t> a, b;
  std::uint32_t result = 0;
};

float ordinary_scale(CaseGenerator& cases) {
  return numerics::bits_float(0x3D000000u + cases.bits() % 0x04000000u);
}

ExpectedElement draw_element(const LibraryMode& mode, CaseGenerator& cases) {
  constexpr FormatSpec kFp8[] = {numerics::kE4M3, numerics::kE5M2};
  ExpectedElement drawn;
  drawn.mode = &mode;
  ElementProblem& p = drawn.problem;
  p.k = 1 + cases.bits() % 700;
  p.element.group = mode.bf16 ? numerics::kSm90Bf16F32 : numerics::kSm90WgmmaFp8F32;
  p.element.format_a = mode.bf16 ? numerics::kBF16 : kFp8[cases.bits() % 2];
  p.element.format_b = mode.bf16 ? numerics::kBF16 : kFp8[cases.bits() % 2];
  p.element.promote_interval = mode.interval;
  p.element.promotion = mode.promotion;
  p.element.scale_width_a = mode.scale_width_a;
  p.element.scale_width_b = mode.scale_width_b;
  if (p.k > 256 && cases.bits() % 4 == 0) {
    p.element.range_width = numerics::split_range_width(p.k, mode.bf16 ? 64 : 128, 2, false);
    p.epilogue.split_k = true;
  }
  p.epilogue.scales = mode.scales;
  p.epilogue.output = kOutputs[cases.bits() % std::size(kOutputs)];
  if (p.epilogue.output == numerics::kE4M3) p.epilogue.output_scale = ordinary_scale(cases);
  const std::uint32_t alpha = cases.bits() % 8;
  p.epilogue.alpha = alpha == 0 ? 0.0f : alpha == 1 ? -2.0f : ordinary_scale(cases);
  const bool specials = cases.bits() % 8 == 0;
  drawn.a = cases.codes<std::uint32_t>(p.element.format_a, 1, p.k, 1, 16, specials);
  drawn.b = cases.codes<std::uint32_t>(p.element.format_b, 1, p.k, 1, 24, specials);
  const bool extreme = cases.bits() % 8 == 0;
  const auto scales = [&](std::int64_t width) {
    std::vector<float> list(width == 0 ? 1 : static_cast<std::size_t>((p.k + width - 1) / width));
    for (float& scale : list) scale = extreme ? cases.scale() : ordinary_scale(cases);
    return list;
  };
  p.sa = scales(mode.scale_width_a);
  p.sb = scales(mode.scale_width_b);
  if (cases.bits() % 3 == 0) {
    p.epilogue.beta = ordinary_scale(cases);
    p.c = cases.accumulator();
  }
  if (cases.bits() % 3 == 0) p.bias = cases.bits() % 2 == 0 ? ordinary_scale(cases) : 100.0f;
  return drawn;
}

// --- whole GEMMs --------------------------------------------------------------------------------

/// Codes and scales of one operand, contiguous.
struct SuiteOperand {
  QuantSpec spec;
  std::int64_t rows = 0, k = 0;
  std::vector<std::uint16_t> bf16;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  SuiteOperand() = default;
  SuiteOperand(const QuantSpec& wanted, std::int64_t operand_rows, std::int64_t operand_k,
               CaseGenerator& cases, bool specials)
      : spec(wanted), rows(operand_rows), k(operand_k) {
    if (spec.is_quantized()) {
      codes = cases.codes<std::uint8_t>(spec.format, rows, k, 3, 16, specials);
    } else {
      bf16 = cases.codes<std::uint16_t>(spec.format, rows, k, 3, 16, specials);
    }
    if (!spec.has_scale()) return;
    scales.resize(static_cast<std::size_t>(spec.tile_rows(rows) * spec.tile_cols(k)));
    for (float& scale : scales) scale = ordinary_scale(cases);
  }

  QuantizedOperand view() {
    QuantizedOperand operand;
    operand.spec = spec;
    operand.rows = rows;
    operand.k = k;
    operand.codes = spec.is_quantized() ? TensorView{codes.data(), DType::u8, rows, k, k}
                                        : TensorView{bf16.data(), DType::bf16, rows, k, k};
    if (spec.has_scale()) {
      const std::int64_t wide = spec.tile_cols(k);
      operand.scales = {scales.data(), DType::f32, spec.tile_rows(rows), wide, wide};
    }
    return operand;
  }
};

struct GemmProblem {
  GemmSpec spec;
  SuiteOperand a, b;
  std::vector<float> bias;  ///< empty: none
  bool accumulate = false;
  std::vector<float> d;               ///< f32 output; the addend before run()
  std::vector<std::uint16_t> d_bf16;  ///< bf16 output

  void run(const Implementation& implementation) {
    const std::int64_t m = a.rows, n = b.rows;
    const bool f32 = spec.output == DType::f32;
    void* data = f32 ? static_cast<void*>(d.data()) : d_bf16.data();
    TensorView bias_view;
    if (!bias.empty()) bias_view = {bias.data(), DType::f32, 1, n, n};
    implementation.gemm(spec, a.view(), b.view(), bias_view, accumulate,
                        {data, spec.output, m, n, n});
  }

  std::uint32_t result(std::size_t i) const {
    return spec.output == DType::f32 ? numerics::float_bits(d[i]) : d_bf16[i];
  }

  std::string describe(std::size_t i) const {
    const auto element = static_cast<std::int64_t>(i);
    return fmt::format("{}, {} by {}, {} x {} x {}{}{}, element ({}, {})", label(spec),
                       label(a.spec), label(b.spec), a.rows, b.rows, a.k,
                       bias.empty() ? "" : ", bias", accumulate ? ", accumulating" : "",
                       element / b.rows, element % b.rows);
  }
};

struct OperandPair {
  const char* format;
  TileShape a, b;
  const char* gemm;
  std::int64_t m, n;  ///< largest
};

/// Square tiles of B need more than 128 columns to have a second row of scales.
constexpr OperandPair kPairs[] = {
    {"e4m3fn", {0, 0}, {0, 0}, "fast", 12, 20},
    {"e4m3fn", {0, 0}, {0, 0}, "promote:128", 12, 20},
    {"e5m2", {1, 0}, {1, 0}, "promote:64", 12, 20},
    {"e4m3fn", {1, 128}, {1, 128}, "promote:128", 12, 20},
    {"e4m3fn", {1, 128}, {128, 128}, "promote:128", 3, 300},
    {"e4m3fn", {128, 128}, {1, 128}, "promote:128", 12, 20},
    {"e2m1", {1, 32}, {1, 32}, "promote:32", 12, 20},
    {"bf16", {0, 0}, {0, 0}, "fast", 12, 20},
};
constexpr int kGemmsPerPair = 10;

GemmProblem draw_gemm(const OperandPair& pair, CaseGenerator& cases) {
  GemmProblem problem;
  QuantSpec a;
  a.format = *format_by_name(pair.format);
  if (a.is_quantized()) a.scale_source = ScaleSource::current;
  QuantSpec b = a;
  a.tile = pair.a;
  b.tile = pair.b;
  GemmSpec& spec = problem.spec;
  spec.accumulator = a.is_quantized() ? Accumulator::sm90_wgmma_fp8 : Accumulator::sm90_bf16;
  const ScheduleChoice choice = *schedule_from_name(pair.gemm);
  spec.schedule = choice.schedule;
  spec.promote_interval = choice.promote_interval;
  spec.output = cases.bits() % 3 == 0 ? DType::bf16 : DType::f32;
  problem.accumulate = spec.output == DType::f32 && cases.bits() % 3 == 0;
  const std::int64_t k = 130 + cases.bits() % 400;
  if (k > 256 && b.tile.rows != 128 && a.tile.rows != 128 && cases.bits() % 4 == 0) {
    spec.split_k = 2;
  }
  const bool specials = cases.bits() % 8 == 0;
  const std::int64_t m = pair.m / 2 + 1 + cases.bits() % (pair.m / 2);
  const std::int64_t n = pair.n / 2 + 1 + cases.bits() % (pair.n / 2);
  problem.a = SuiteOperand(a, m, k, cases, specials);
  problem.b = SuiteOperand(b, n, k, cases, specials);
  if (cases.bits() % 2 == 0) {
    for (std::int64_t i = 0; i < n; ++i) problem.bias.push_back(ordinary_scale(cases));
  }
  problem.d.resize(static_cast<std::size_t>(m * n));
  problem.d_bf16.resize(problem.d.size());
  for (float& start : problem.d) start = cases.accumulator();
  return problem;
}

struct ExpectedGemm {
  GemmProblem problem;  ///< not yet run
  GemmProblem result;
};

// --- recorded GEMMs -----------------------------------------------------------------------------

ElementProblem element_problem(const GemmModel& model, const GemmRecord& record, std::size_t r,
                               std::size_t c) {
  const auto row_of = [](const std::vector<float>& scales, std::size_t row, std::uint32_t width) {
    if (width == 0) return std::vector<float>{1.0f};
    const auto first = scales.begin() + static_cast<std::ptrdiff_t>(row * width);
    return std::vector<float>(first, first + width);
  };
  ElementProblem problem;
  problem.element = model.element;
  problem.epilogue = model.epilogue;
  problem.k = record.k;
  problem.a = record.a.data() + r * record.k;
  problem.b = record.b.data() + c * record.k;
  problem.sa = row_of(record.sa, r, record.scales_a);
  problem.sb = row_of(record.sb, c, record.scales_b);
  if (record.has_c()) problem.c = record.c[r * record.cols.size() + c];
  if (record.has_bias != 0) problem.bias = record.bias[r];
  return problem;
}

}  // namespace

SuiteCheck group_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedGroup>>();
  for (const Instruction& instruction : kInstructions) {
    const int n = instruction.mma_sync_fp8 ? 32 : instruction.group.products;
    for (int pair = 0; pair < kCaseKinds * kCaseKinds; ++pair) {
      for (int i = 0; i < kGroupsPerPair; ++i) {
        ExpectedGroup one;
        one.instruction = &instruction;
        const auto kind_a = static_cast<CaseKind>(pair / kCaseKinds);
        const auto kind_b = static_cast<CaseKind>(pair % kCaseKinds);
        one.a = cases.tile<std::uint32_t>(instruction.format_a, kind_a, n);
        one.b = cases.tile<std::uint32_t>(instruction.format_b, kind_b, n);
        // A chain of two, so that the second accumulator is near the products.
        one.c_bits = i == 0   ? 0u
                     : i == 1 ? list->back().result
                              : draw_accumulator(instruction.group, cases);
        one.result = expected.group(one.problem());
        list->push_back(std::move(one));
      }
    }
  }
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedGroup& one : *list) {
      const bool goes_on = tally.check(one.result, tested.group(one.problem()), [&] {
        return fmt::format("{}, group {}, accumulator {:#x}", one.instruction->name,
                           &one - list->data(), one.c_bits);
      });
      if (!goes_on) return;
    }
  };
  return {"group", [](const Implementation& tested) { return bool(tested.group); }, run};
}

SuiteCheck element_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedElement>>();
  for (const LibraryMode& mode : kModes) {
    for (int i = 0; i < kElementsPerMode; ++i) {
      list->push_back(draw_element(mode, cases));
      ExpectedElement& one = list->back();
      one.problem.a = one.a.data();
      one.problem.b = one.b.data();
      one.result = expected.element(one.problem);
    }
  }
  // The vectors of codes may have moved with their elements, but not what they own.
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedElement& one : *list) {
      const bool goes_on = tally.check(one.result, tested.element(one.problem), [&] {
        return fmt::format("mode {}, K {}, alpha {}, beta {}, output {}{}{}", one.mode->name,
                           one.problem.k, one.problem.epilogue.alpha, one.problem.epilogue.beta,
                           format_name(one.problem.epilogue.output),
                           one.problem.epilogue.split_k ? ", split" : "",
                           one.problem.bias ? ", bias" : "");
      });
      if (!goes_on) return;
    }
  };
  return {"element", [](const Implementation& tested) { return bool(tested.element); }, run};
}

SuiteCheck gemm_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedGemm>>();
  for (const OperandPair& pair : kPairs) {
    for (int i = 0; i < kGemmsPerPair; ++i) {
      ExpectedGemm one;
      one.problem = draw_gemm(pair, cases);
      one.result = one.problem;
      one.result.run(expected);
      list->push_back(std::move(one));
    }
  }
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedGemm& one : *list) {
      GemmProblem actual = one.problem;
      actual.run(tested);
      for (std::size_t i = 0; i < actual.d.size(); ++i) {
        const bool goes_on = tally.check(one.result.result(i), actual.result(i),
                                         [&] { return one.problem.describe(i); });
        if (!goes_on) return;
      }
    }
  };
  return {"gemm", [](const Implementation& tested) { return bool(tested.gemm); }, run};
}

SuiteCheck recorded_group_check(const std::filesystem::path& file) {
  auto records = std::make_shared<std::vector<MmaRecord>>();
  read_mma_records(file, [&](const MmaRecord& record) {
    if (mma_model(record).known) records->push_back(record);
  });
  const auto run = [records](const Implementation& tested, CheckTally& tally) {
    for (const MmaRecord& record : *records) {
      const MmaModel model = mma_model(record);
      for (const MmaTile& tile : record.tiles) {
        for (std::size_t i = 0; i < tile.d.size(); ++i) {
          const GroupProblem problem{model,
                                     *golden_format(record.format_a),
                                     *golden_format(record.format_b),
                                     tile.a.data() + i / 8 * record.k,
                                     tile.b.data() + i % 8 * record.k,
                                     static_cast<int>(record.k),
                                     tile.c[i]};
          const bool goes_on = tally.check(tile.d[i], tested.group(problem), [&] {
            return fmt::format("{}, tile {}, row {}, column {}", record.name,
                               &tile - record.tiles.data(), i / 8, i % 8);
          });
          if (!goes_on) return;
        }
      }
    }
  };
  return {file.filename().string(), [](const Implementation& tested) { return bool(tested.group); },
          run};
}

SuiteCheck recorded_element_check(const std::filesystem::path& file) {
  auto records = std::make_shared<std::vector<GemmRecord>>();
  read_gemm_records(file, [&](const GemmRecord& record) {
    if (gemm_model(record).known) records->push_back(record);
  });
  const auto run = [records](const Implementation& tested, CheckTally& tally) {
    for (const GemmRecord& record : *records) {
      const GemmModel model = gemm_model(record);
      for (std::size_t i = 0; i < record.d.size(); ++i) {
        const std::size_t r = i / record.cols.size(), c = i % record.cols.size();
        const bool goes_on =
            tally.check(record.d[i], tested.element(element_problem(model, record, r, c)), [&] {
              return fmt::format("record {} (M {}, N {}, K {}), row {}, column {}",
                                 &record - records->data(), record.m, record.n, record.k,
                                 record.rows[r], record.cols[c]);
            });
        if (!goes_on) return;
      }
    }
  };
  return {file.filename().string(),
          [](const Implementation& tested) { return bool(tested.element); }, run};
}

}  // namespace fp8lab
