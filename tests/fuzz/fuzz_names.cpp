// Names and spec strings of the command line and of recipes. What is accepted must survive being
// printed and read again.
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = fuzz::text_of(data, size);
  if (const auto format = format_by_name(text)) {
    fuzz::require(format_by_name(format_name(*format)) == format, "format " + text);
    fuzz::require(format->bits() <= 32 && format->max_finite_code() > 0, "bits of " + text);
  }
  if (const auto tile = tile_from_name(text)) {
    fuzz::require(tile_from_name(tile_name(*tile)) == tile, "tile " + text);
  }
  if (const auto choice = schedule_from_name(text)) {
    GemmSpec spec;
    spec.schedule = choice->schedule;
    spec.promote_interval = choice->promote_interval;
    fuzz::require(schedule_from_name(schedule_name(spec)) == choice, "schedule " + text);
  }
  if (const auto accumulator = accumulator_by_name(text)) {
    fuzz::require(accumulator_name(*accumulator) == text, "accumulator " + text);
  }
  fuzz::accept_error([&] {
    const QuantSpec spec = parse_quant_spec(text);
    fuzz::require(parse_quant_spec(label(spec)) == spec, "quantizer " + text);
  });
  fuzz::accept_error([&] {
    const GemmSpec spec = parse_gemm_spec(text);
    fuzz::require(parse_gemm_spec(label(spec)) == spec, "GEMM spec " + text);
  });
  return 0;
}
