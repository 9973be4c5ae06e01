// Cases of statistics and of hashes.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

/// The statistics of the operand made of `quantized`, compared with `source`.
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
             b.run(ops::Quantize{t[1], transpose, {}, state_for(spec, t[4]), operand});
             b.run(ops::MeasureOperand{t[0], transpose, operand, t[5]});
           });
}

/// An operand compared with another source than its own, so that some of it saturates.
void measure(CaseDraw& draw, const QuantSpec& spec, DType source, bool transpose) {
  const MatrixShape s = draw.shape();
  const bool wild = draw.one_in(4);
  HostTensor compared = draw.values(source, s.rows, s.cols, wild);
  HostTensor quantized = draw.values(source, s.rows, s.cols, wild);
  compare_with(draw, spec, transpose, std::move(compared), std::move(quantized), "");
}

/// Values in either order of storage, compared with another tensor.
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
             b.run(ops::MeasureOperand{t[0], transpose, operand, t[2]});
           });
}

enum class Channels : std::uint8_t {
  different,
  equal,    ///< a few values
  zero,     ///< zeros
  special,  ///< infinities and NaN among them
  nan,      ///< nothing else
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

/// Numbers of channels around that of the top channels, even and odd, of a few rounds of a block
/// and beyond 2^16; channels that differ, that are equal, and that have no number.
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
void draw_cases<ops::HashTensor>(CaseDraw& draw) {
  const auto hash = [&](HostTensor tensor) {
    const MatrixShape s{tensor.rows, tensor.cols};
    const DType dtype = tensor.dtype;
    const std::uint64_t first = draw.word();
    draw.add("hash_tensor", dtype, s,
             {std::move(tensor), flat(draw.output(DType::u8, 1, sizeof(std::uint64_t)))},
             [first](Backend& b, const Views& t) {
               b.run(ops::HashTensor{t[0], numerics::HashedPart::weights, first, t[1]});
             });
  };
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    hash(draw.values(dtype, s.rows, s.cols, draw.one_in(2)));
  }
  const MatrixShape s = draw.shape();
  hash(draw.bytes(s.rows, s.cols));
}

}  // namespace fp8lab
