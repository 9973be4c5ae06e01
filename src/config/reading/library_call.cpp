#include "src/config/reading/library_call.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/reading/words.hpp"
#include "src/config/recipe/spec_words.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kPrefix = "cublaslt_h200:";

struct Mode {
  std::string_view name;
  TileShape a;
  TileShape b;
  bool fp8;
};

constexpr TileShape kTensor{0, 0}, kRow{1, 0}, kVector{1, 128}, kBlock{128, 128};
constexpr std::array<Mode, 6> kModes = {{
    {"tensor", kTensor, kTensor, true},
    {"row", kRow, kRow, true},
    {"1x128x1x128", kVector, kVector, true},
    {"1x128x128x128", kVector, kBlock, true},
    {"128x128x1x128", kBlock, kVector, true},
    {"bf16", kTensor, kTensor, false},
}};

bool in_blocks(const TileShape& tile) { return tile.cols > 0; }

const Mode& mode_by_name(const std::string& text, const std::string& name) {
  for (const Mode& mode : kModes) {
    if (mode.name == name) return mode;
  }
  const std::string accepted = "tensor, row, 1x128x1x128, 1x128x128x128, 128x128x1x128, bf16";
  throw InputError({.where = fmt::format("GEMM '{}'", text),
                    .noun = "unknown mode",
                    .key = name,
                    .nearest = did_you_mean(name, accepted),
                    .accepted = accepted});
}

bool take_output(const std::string& word, LibraryCall& call) {
  for (const char* name : {"bf16", "fp32", "fp16", "e4m3fn", "e5m2"}) {
    if (word != name) continue;
    call.output = *format_by_name(word);
    return true;
  }
  return false;
}

bool take_schedule(const std::string& text, const std::string& word, const Mode& mode,
                   LibraryCall& call) {
  if (word != "fast" && word != "promote") return false;
  if (!mode.fp8) {
    throw InputError({.where = fmt::format("GEMM '{}'", text),
                      .reason = "bf16 has one schedule",
                      .accepted = "neither fast nor promote"});
  }
  const bool fast = word == "fast";
  if (fast && in_blocks(mode.a)) {
    throw InputError({.where = fmt::format("GEMM '{}'", text),
                      .reason = "the H200 has no fast accumulation with scales that change along K",
                      .accepted = "promote"});
  }
  call.gemm.schedule = fast ? Schedule::fast : Schedule::promote;
  return true;
}

void check_operand(const QuantSpec& operand, const TileShape& tile, bool fp8, const char* name) {
  const bool typed = fp8 ? operand.format == numerics::kE4M3 || operand.format == numerics::kE5M2
                         : operand.format == numerics::kBF16;
  if (typed && operand.scale_tile() == tile) return;
  throw InputError({.where = "cublaslt_h200",
                    .reason = fmt::format("operand {} is {}", name, label(operand)),
                    .accepted = fmt::format("{} with scales by {}", fp8 ? "e4m3fn or e5m2" : "bf16",
                                            tile_name(tile))});
}

/// Throws Error unless the extents are among those of FP8 calls measured on the H200.
void check_extents(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kMeasuredM = 1000;
  const auto is_odd = [](std::int64_t extent) { return extent % 16 != 0; };
  if (is_odd(m) && m != kMeasuredM) {
    throw InputError({.where = "cublaslt_h200",
                      .key = "M",
                      .verb = "=",
                      .found = fmt::to_string(m),
                      .accepted = fmt::format("multiples of 16, and {}", kMeasuredM)});
  }
  if (is_odd(n))
    throw InputError({.where = "cublaslt_h200",
                      .key = "N",
                      .verb = "=",
                      .found = fmt::to_string(n),
                      .accepted = "multiples of 16"});
  if (is_odd(k))
    throw InputError({.where = "cublaslt_h200",
                      .key = "K",
                      .verb = "=",
                      .found = fmt::to_string(k),
                      .accepted = "multiples of 16"});
}

}  // namespace

bool is_library_call(const std::string& text) { return text.rfind(kPrefix, 0) == 0; }

LibraryCall parse_library_call(const std::string& text) {
  FP8LAB_ASSERT(is_library_call(text));
  const std::vector<std::string> words = split_at_slashes(text.substr(kPrefix.size()));
  const Mode& mode = mode_by_name(text, words.front());
  LibraryCall call;
  call.scales_a = mode.a;
  call.scales_b = mode.b;
  if (mode.fp8) {
    call.gemm.accumulator = Accumulator::sm90_wgmma_fp8;
    call.gemm.schedule = Schedule::promote;
    call.a.format = call.b.format = numerics::kE4M3;
    call.a.scale_source = call.b.scale_source = ScaleSource::current;
    call.a.tile = mode.a;
    call.b.tile = mode.b;
  }
  SettledOnce settled(fmt::format("GEMM '{}'", text));
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (take_schedule(text, words[i], mode, call)) {
      settled.settle("schedule", words[i]);
      continue;
    }
    if (take_output(words[i], call)) {
      settled.settle("output", words[i]);
      continue;
    }
    if (const std::optional<int> split = split_k_from_word(words[i])) {
      settled.settle("split of K", words[i]);
      call.gemm.split_k = *split;
      continue;
    }
    constexpr std::string_view kWords = "fast, promote, bf16, fp32, fp16, e4m3fn, e5m2, split_k=N";
    throw InputError({.where = fmt::format("GEMM '{}'", text),
                      .noun = "unknown word",
                      .key = fmt::to_string(words[i]),
                      .nearest = did_you_mean(words[i], kWords),
                      .accepted = std::string(kWords)});
  }
  return call;
}

void check_library_call(const LibraryCall& call, std::int64_t m, std::int64_t n, std::int64_t k) {
  const bool fp8 = call.gemm.accumulator == Accumulator::sm90_wgmma_fp8;
  check_operand(call.a, call.scales_a, fp8, "A");
  check_operand(call.b, call.scales_b, fp8, "B");
  const bool e5m2_a = call.a.format == numerics::kE5M2;
  const bool e5m2_b = call.b.format == numerics::kE5M2;
  if (e5m2_a && e5m2_b) {
    throw InputError({.where = "cublaslt_h200",
                      .reason = "the H200 refuses e5m2 by e5m2",
                      .accepted = "e4m3fn on one side"});
  }
  if (call.output.bits() <= 8 && !(fp8 && call.scales_a.is_tensor())) {
    throw InputError(
        {.where = "cublaslt_h200",
         .reason = fmt::format("output {} is for scales by tensor", format_name(call.output)),
         .accepted = "bf16, fp32, fp16"});
  }
  if (call.output == numerics::kE5M2 && !e5m2_a && !e5m2_b) {
    throw InputError({.where = "cublaslt_h200",
                      .reason = "output e5m2 needs an e5m2 operand",
                      .accepted = "e4m3fn or wider"});
  }
  if (fp8) check_extents(m, n, k);
  if (call.gemm.split_k > 1 && call.scales_a.is_row()) {
    throw InputError({.where = "cublaslt_h200",
                      .reason = "the library never splits K with scales by row",
                      .accepted = "split_k=1"});
  }
}

}  // namespace fp8lab
