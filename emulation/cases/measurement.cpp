// Cases of statistics and of hashes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

/// Adds a case that compares the operand made of `quantized` with `source`.
void compare_with(CaseDraw& draw, const QuantSpec& spec, bool transpose, HostTensor source,
                  HostTensor quantized, const std::string& what) {
  const MatrixShape s{source.rows, source.cols}, of_operand = s.transposed_if(transpose);
  const std::int64_t rows = of_operand.rows, k = of_operand.cols;
  const std::string tensor = fmt::format("{} {}{}{}", name_of(source.dtype), describe(s),
                                         orientation_name(transpose), what);
  draw.add(fmt::format("operand_statistics {}", label(spec)), tensor,
           {std::move(source), std::move(quantized), codes_of(draw, spec, rows, k),
            scales_of(draw, spec, rows, k), state_of(draw, spec), record_of(draw)},
           [spec, rows, k, transpose](Backend& b, const Views& t) {
             QuantizedOperand operand = operand_at(spec, rows, k, t, 2);
             b.run(ops::Quantize{.source = t[1],
                                 .transpose = transpose,
                                 .state = state_for(spec, t[4]),
                                 .operand = operand});
             b.run(ops::MeasureOperand{
                 .source = t[0], .transpose = transpose, .operand = operand, .record = t[5]});
           });
}

/// Compares an operand with another source than its own, so that some elements saturate.
void measure(CaseDraw& draw, const QuantSpec& spec, DType source, bool transpose) {
  const MatrixShape s = draw.shape();
  const bool wild = draw.one_in(4);
  HostTensor compared = draw.values(source, s.rows, s.cols, wild);
  HostTensor quantized = draw.values(source, s.rows, s.cols, wild);
  compare_with(draw, spec, transpose, std::move(compared), std::move(quantized), "");
}

/// Compares values in either storage order with another tensor.
void measure_stored(CaseDraw& draw, DType source, DType values, bool transpose,
                    StorageOrder order) {
  const MatrixShape s = draw.shape(), of_operand = s.transposed_if(transpose);
  const MatrixShape stored = of_operand.transposed_if(order == StorageOrder::rows_contiguous);
  QuantSpec spec;
  spec.format = values == DType::bf16 ? numerics::kBF16 : numerics::kFP32;
  const std::int64_t rows = of_operand.rows, k = of_operand.cols;
  draw.add(fmt::format("operand_statistics {}", label(spec)),
           fmt::format("{} {}{}{}", name_of(source), describe(s), orientation_name(transpose),
                       order == StorageOrder::rows_contiguous ? ", by rows" : ""),
           {draw.values(source, s.rows, s.cols, draw.one_in(4)),
            draw.values(values, stored.rows, stored.cols, draw.one_in(4)), record_of(draw)},
           [spec, rows, k, transpose, order](Backend& b, const Views& t) {
             QuantizedOperand operand = QuantizedOperand::without_memory(spec, rows, k);
             operand.order = order;
             operand.codes = t[1];
             b.run(ops::MeasureOperand{
                 .source = t[0], .transpose = transpose, .operand = operand, .record = t[2]});
           });
}

/// Draws a shape of whole groups of eight that fills part of the last
/// panels: the kernels' main path.
MatrixShape whole_groups(CaseDraw& draw) {
  return {8 * draw.integer(1, 20), 16 * draw.integer(1, 20)};
}

/// Returns `tensor` with some zeros, alone or in rows.
HostTensor with_zeros(CaseDraw& draw, HostTensor tensor) {
  const std::size_t size = size_of(tensor.dtype);
  const auto elements = static_cast<std::int64_t>(tensor.data.size() / size);
  for (std::int64_t left = draw.integer(1, 6); left > 0; --left) {
    const std::int64_t run = draw.one_in(2) ? 1 : draw.integer(1, 2 * tensor.cols);
    const std::int64_t first = draw.integer(0, elements - 1);
    const std::int64_t end = std::min(elements, first + run);
    std::fill(tensor.data.begin() + first * static_cast<std::int64_t>(size),
              tensor.data.begin() + end * static_cast<std::int64_t>(size), std::byte{0});
  }
  return tensor;
}

/// Measures both orientations of an operand, made of the source or of another tensor.
void measure_both(CaseDraw& draw, const QuantSpec& first_spec, const QuantSpec& second_spec,
                  DType source, const MatrixShape& s) {
  const bool wild = draw.one_in(4);
  HostTensor compared = draw.values(source, s.rows, s.cols, wild);
  if (draw.one_in(2)) compared = with_zeros(draw, std::move(compared));
  HostTensor quantized = draw.one_in(2) ? compared : draw.values(source, s.rows, s.cols, wild);
  draw.add(
      fmt::format("operand_statistics {} and {}", label(first_spec), label(second_spec)), source, s,
      {std::move(compared), std::move(quantized), codes_of(draw, first_spec, s.rows, s.cols),
       scales_of(draw, first_spec, s.rows, s.cols), codes_of(draw, second_spec, s.cols, s.rows),
       scales_of(draw, second_spec, s.cols, s.rows), state_of(draw, first_spec), record_of(draw),
       record_of(draw)},
      [first_spec, second_spec, s](Backend& b, const Views& t) {
        QuantizedOperand first = operand_at(first_spec, s.rows, s.cols, t, 2);
        QuantizedOperand second = operand_at(second_spec, s.cols, s.rows, t, 4);
        b.run(
            ops::Quantize{.source = t[1], .state = state_for(first_spec, t[6]), .operand = first});
        b.run(ops::Quantize{.source = t[1],
                            .transpose = true,
                            .state = state_for(second_spec, t[6]),
                            .operand = second});
        b.run(ops::MeasureBoth{.source = t[0],
                               .first = first,
                               .second = second,
                               .first_record = t[7],
                               .second_record = t[8]});
      });
}

/// Draws arbitrary codes. Half of all cases exclude the largest exponents of a byte, and with
/// them infinities and NaN.
HostTensor any_codes(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  const bool finite = draw.one_in(2);
  if (spec.storage() != DType::u8) return draw.values(spec.storage(), rows, k, !finite);
  HostTensor codes = draw.bytes(rows, k, spec.format.bits());
  if (finite) {
    for (std::byte& code : codes.data) code &= std::byte{0xBF};
  }
  return codes;
}

/// Draws arbitrary scales, some so small that their products with nonzero codes are zero.
HostTensor any_scales(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  HostTensor scales = draw_scales(draw, spec, rows, k);
  for (std::size_t i = 0; i < scales.data.size(); i += sizeof(float)) {
    if (!draw.one_in(4)) continue;
    const float small = std::ldexp(1.0f, -static_cast<int>(draw.integer(126, 149)));
    std::memcpy(scales.data.data() + i, &small, sizeof small);
  }
  return scales;
}

/// Measures arbitrary codes with arbitrary scales, including ones that no quantization produces:
/// both orientations together, and the second one alone.
void measure_any_codes(CaseDraw& draw, const QuantSpec& spec, DType source, const MatrixShape& s) {
  draw.add(fmt::format("operand_statistics {}", label(spec)),
           fmt::format("{} {} of any codes", name_of(source), describe(s)),
           {with_zeros(draw, draw.values(source, s.rows, s.cols, draw.one_in(4))),
            any_codes(draw, spec, s.rows, s.cols), any_scales(draw, spec, s.rows, s.cols),
            any_codes(draw, spec, s.cols, s.rows), any_scales(draw, spec, s.cols, s.rows),
            record_of(draw), record_of(draw), record_of(draw)},
           [spec, s](Backend& b, const Views& t) {
             const QuantizedOperand first = operand_at(spec, s.rows, s.cols, t, 1);
             const QuantizedOperand second = operand_at(spec, s.cols, s.rows, t, 3);
             b.run(ops::MeasureBoth{.source = t[0],
                                    .first = first,
                                    .second = second,
                                    .first_record = t[5],
                                    .second_record = t[6]});
             b.run(ops::MeasureOperand{
                 .source = t[0], .transpose = true, .operand = second, .record = t[7]});
           });
}

/// Measures operands that are the source itself, together and one by one.
void measure_source(CaseDraw& draw, DType source, const MatrixShape& s) {
  QuantSpec spec;
  spec.format = source == DType::bf16 ? numerics::kBF16 : numerics::kFP32;
  draw.add(fmt::format("operand_statistics {}", label(spec)),
           fmt::format("{} {} itself", name_of(source), describe(s)),
           {with_zeros(draw, draw.values(source, s.rows, s.cols, draw.one_in(3))), record_of(draw),
            record_of(draw), record_of(draw), record_of(draw)},
           [spec, s](Backend& b, const Views& t) {
             QuantizedOperand first = QuantizedOperand::without_memory(spec, s.rows, s.cols);
             QuantizedOperand second = QuantizedOperand::without_memory(spec, s.cols, s.rows);
             first.codes = second.codes = t[0];
             second.order = StorageOrder::rows_contiguous;
             b.run(ops::MeasureBoth{.source = t[0],
                                    .first = first,
                                    .second = second,
                                    .first_record = t[1],
                                    .second_record = t[2]});
             b.run(ops::MeasureOperand{.source = t[0], .operand = first, .record = t[3]});
             b.run(ops::MeasureOperand{
                 .source = t[0], .transpose = true, .operand = second, .record = t[4]});
           });
}

enum class Channels : std::uint8_t {
  different,
  equal,    ///< a few values
  zero,     ///< zeros
  special,  ///< infinities and NaN among others
  nan,      ///< NaN only
};

const char* words_of(Channels channels) {
  constexpr const char* kNames[] = {"", ", equal channels", ", all zero", ", non-finite values",
                                    ", all NaN"};
  return kNames[static_cast<std::size_t>(channels)];
}

HostTensor tensor_of(CaseDraw& draw, Channels channels, DType dtype, std::int64_t rows,
                     std::int64_t cols) {
  HostTensor tensor = draw.values(dtype, rows, cols, channels == Channels::special);
  const std::size_t size = size_of(dtype);
  if (channels == Channels::zero || channels == Channels::nan) {
    const std::byte bits{channels == Channels::zero ? std::uint8_t{0} : std::uint8_t{0xFF}};
    std::fill(tensor.data.begin(), tensor.data.end(), bits);
  } else if (channels == Channels::equal) {
    for (std::size_t at = 3 * size; at < tensor.data.size(); at += size) {
      std::copy_n(&tensor.data[at / size % 3 * size], size, &tensor.data[at]);
    }
  }
  return tensor;
}

/// Measures channels: counts around the number of top channels, even and odd, a few rounds of a
/// block, and beyond 2^16; channels that differ, that are equal, and that are all NaN.
void measure_channels(CaseDraw& draw) {
  const std::int64_t wide = draw.integer(1 << 16, 90000), odd = 2 * draw.integer(5, 500) + 1;
  const std::int64_t thousands = draw.integer(1000, 9000);
  for (const std::int64_t cols : std::initializer_list<std::int64_t>{1, 2, 7, 8, 9, odd, odd + 1,
                                                                     thousands, wide, wide + 1}) {
    for (const bool transpose : {false, true}) {
      const std::int64_t rows = cols > 1 << 14 ? draw.integer(1, 3) : draw.integer(1, 140);
      const DType dtype = draw.activation_type();
      const QuantSpec spec = draw_quantizer(draw);
      for (const Channels channels : {Channels::different, Channels::equal, Channels::zero,
                                      Channels::special, Channels::nan}) {
        HostTensor compared = tensor_of(draw, channels, dtype, rows, cols);
        HostTensor quantized = tensor_of(draw, channels, dtype, rows, cols);
        compare_with(draw, spec, transpose, std::move(compared), std::move(quantized),
                     words_of(channels));
      }
    }
  }
}

}  // namespace

template <>
void draw_cases<ops::MeasureOperand>(CaseDraw& draw) {
  for (const QuantSpec& spec : every_quantizer()) {
    const DType source = draw.activation_type();
    for (const bool transpose : {false, true}) measure(draw, spec, source, transpose);
  }
  for (const DType values : kActivationTypes) {
    for (const bool transpose : {false, true}) {
      for (const auto order : {StorageOrder::k_contiguous, StorageOrder::rows_contiguous}) {
        measure_stored(draw, draw.activation_type(), values, transpose, order);
      }
    }
  }
  measure_channels(draw);
}

template <>
void draw_cases<ops::MeasureBoth>(CaseDraw& draw) {
  for (const QuantSpec& spec : every_quantizer()) {
    const DType source = draw.activation_type();
    measure_both(draw, spec, spec, source, whole_groups(draw));
    measure_both(draw, spec, spec, source, draw.shape());
    if (!spec.has_codebooks()) measure_any_codes(draw, spec, source, whole_groups(draw));
  }
  for (const TileShape tile : {TileShape{1, 128}, TileShape{128, 128}, TileShape{0, 0}}) {
    const QuantSpec first = quantized(numerics::kE4M3, tile);
    for (const QuantSpec& second :
         {quantized(numerics::kE4M3, {128, 128}), quantized(numerics::kE5M2, {1, 128}),
          quantized(numerics::kE4M3, {1, 64}, numerics::ScaleFormat::e8m0)}) {
      measure_both(draw, first, second, draw.activation_type(), whole_groups(draw));
    }
  }
  for (const DType source : kActivationTypes) {
    measure_source(draw, source, whole_groups(draw));
    measure_source(draw, source, draw.shape());
  }
}

template <>
void draw_cases<ops::HashTensors>(CaseDraw& draw) {
  const auto hash_all = [&](const std::string& what, std::vector<HostTensor> tensors) {
    const std::uint64_t first = draw.word();
    tensors.push_back(flat(draw.output(DType::u8, 1, sizeof(std::uint64_t))));
    draw.add("hash_tensors", what, std::move(tensors), [first](Backend& b, const Views& t) {
      const auto hashed = std::span(t).first(t.size() - 1);
      b.run(ops::HashTensors{hashed, numerics::HashedPart::weights, first, t.back()});
    });
  };
  const auto hash = [&](HostTensor tensor) {
    const MatrixShape s{tensor.rows, tensor.cols};
    const std::string what = std::string(name_of(tensor.dtype)) + " " + describe(s);
    std::vector<HostTensor> tensors;
    tensors.push_back(std::move(tensor));
    hash_all(what, std::move(tensors));
  };
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape(), whole = whole_groups(draw);
    hash(draw.values(dtype, s.rows, s.cols, draw.one_in(2)));
    hash(flat(draw.values(dtype, whole.rows, whole.cols, draw.one_in(2))));
  }
  const MatrixShape s = draw.shape();
  hash(draw.bytes(s.rows, s.cols));
  // More whole tensors than one launch takes, and among them some with gaps or partial words.
  std::vector<HostTensor> many;
  const std::int64_t count = draw.integer(220, 400);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_whole = !draw.one_in(8);
    const std::int64_t rows = draw.integer(1, 4);
    const std::int64_t cols = is_whole ? 8 * draw.integer(1, 20) : draw.integer(1, 160);
    HostTensor tensor = draw.values(draw.activation_type(), rows, cols, false);
    many.push_back(is_whole ? flat(std::move(tensor)) : std::move(tensor));
  }
  hash_all(fmt::format("{} tensors", count), std::move(many));
}

}  // namespace fp8lab
