// Calls of quantization.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "src/validate/kernel_data.hpp"
#include "src/validate/kernels.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using numerics::Rounding;
using numerics::ScaleFormat;
using Views = std::vector<TensorView>;

std::vector<QuantSpec> quantizations() {
  using numerics::ScaleRounding;
  std::vector<QuantSpec> specs;
  const TileShape tiles[] = {{0, 0}, {1, 0}, {1, 128}, {128, 128}, {1, 32}, {3, 7}};
  for (const TileShape& tile : tiles) {
    specs.push_back(quantized(numerics::kE4M3, tile, ScaleFormat::fp32));
    specs.push_back(quantized(numerics::kE5M2, tile, ScaleFormat::pow2));
  }
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    const bool narrow = named.format.bits() <= 8 && named.format.has_sign;
    if (narrow) specs.push_back(quantized(named.format, {1, 32}, ScaleFormat::fp32));
  }
  for (const ScaleRounding rounding :
       {ScaleRounding::ceil, ScaleRounding::ocp_floor, ScaleRounding::rceil, ScaleRounding::even}) {
    specs.push_back(quantized(numerics::kE4M3, {1, 32}, ScaleFormat::e8m0));
    specs.back().scale.rounding = rounding;
  }
  for (const auto arithmetic :
       {numerics::ScaleArithmetic::dec_div, numerics::ScaleArithmetic::dec_div_recip}) {
    specs.push_back(quantized(numerics::kE4M3, {1, 128}, ScaleFormat::fp32));
    specs.back().scale.arithmetic = arithmetic;
  }
  for (const auto choice : {numerics::FourOverSix::none, numerics::FourOverSix::mse}) {
    specs.push_back(quantized(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level));
    specs.back().scale.four_over_six = choice;
  }
  for (const Rounding rounding : {Rounding::stochastic, Rounding::toward_zero}) {
    specs.push_back(quantized(numerics::kE4M3, {1, 128}, ScaleFormat::pow2));
    specs.back().rounding = rounding;
  }
  specs.push_back(quantized(numerics::kE5M2, {0, 0}, ScaleFormat::fp32));
  specs.back().scale_source = ScaleSource::delayed;
  specs.back().history_length = 20;
  specs.push_back(quantized(numerics::kE4M3, {0, 0}, ScaleFormat::fp32));
  specs.back().scale_source = ScaleSource::static_scale;
  specs.back().static_scale = 0.37f;
  specs.push_back({});
  specs.back().format = numerics::kE4M3;  // only cast
  for (const FormatSpec& format : {numerics::kBF16, numerics::kFP16}) {
    specs.push_back({});
    specs.back().format = format;
  }
  return specs;
}

class QuantizationCalls {
 public:
  QuantizationCalls(std::uint64_t seed, int round) : data_(seed), round_(round) {}

  std::vector<KernelCall> draw() {
    for (const QuantSpec& spec : quantizations()) {
      const DType source = data_.word() % 3 == 0 ? DType::f32 : DType::bf16;
      for (const bool transpose : {false, true}) {
        quantize(spec, source, transpose);
        statistics(spec, source, transpose);
      }
      quantize_both(spec, source);
      quantize_results(spec, source);
    }
    statistics_of_channels();
    for (const char* name : kTransforms) {
      for (const bool transpose : {false, true}) transform(name, transpose);
    }
    const auto quantized_by = [](const FormatSpec& format, TileShape tile, const char* name) {
      QuantSpec spec = quantized(format, tile, ScaleFormat::fp32);
      spec.transform = *transform_from_name(name);
      return spec;
    };
    const QuantSpec logarithms = quantized(numerics::kLogFmt8, {1, 64}, ScaleFormat::fp32);
    const QuantSpec plain = quantized(numerics::kE2M1, {1, 0}, ScaleFormat::fp32);
    const char* const clamp = "clamp:0.99:compensated";
    GemmSpec fp8;
    fp8.accumulator = Accumulator::sm90_wgmma_fp8;
    multiply({}, logarithms, logarithms);
    multiply(fp8, quantized_by(numerics::kE2M1, {1, 0}, clamp), plain);
    multiply(fp8, plain, quantized_by(numerics::kE2M1, {0, 0}, clamp));
    multiply(fp8, quantized_by(numerics::kE4M3, {0, 0}, "clamp:0.7"), plain);
    const QuantSpec left = quantized_by(numerics::kE4M3, {0, 0}, "left:hadamard:12:drawn");
    multiply(fp8, left, plain);
    multiply(fp8, plain, quantized_by(numerics::kE4M3, {1, 0}, "left:hadamard:full:drawn:after"));
    multiply(fp8, left, quantized_by(numerics::kE2M1, {0, 0}, clamp));
    multiply(fp8, left, quantized_by(numerics::kE5M2, {0, 0}, "left:hadamard:64:+--+"));
    return std::move(calls_);
  }

 private:
  static constexpr const char* kTransforms[] = {
      "hadamard:2",   "hadamard:16:+--+",    "hadamard:64:drawn",      "hadamard:12:drawn:after",
      "hadamard:172", "hadamard:1024:drawn", "hadamard:full",          "hadamard:full:drawn:after",
      "smooth:0.5",   "smooth:0.3:static",   "left:hadamard:16:drawn", "left:hadamard:full"};

  /// Elements of K, or rows, that `transform` fits, about `wanted`.
  std::int64_t length_for(const Transform& transform, std::int64_t wanted) {
    constexpr std::int64_t kOrders[] = {2, 12, 16, 20, 96, 128, 172, 896, 1536, 4096, 9728};
    if (transform.is_smoothing()) return wanted;
    if (transform.block == 0) return kOrders[data_.word() % std::size(kOrders)];
    return (wanted + transform.block - 1) / transform.block * transform.block;
  }

  std::int64_t rows_for(const QuantSpec& spec, std::int64_t wanted) {
    return spec.transform.left ? length_for(spec.transform, wanted) : wanted;
  }

  /// Operands whose values are undone before they are multiplied, or in the product, or whose clamp
  /// is compensated.
  void multiply(const GemmSpec& gemm, const QuantSpec& a, const QuantSpec& b) {
    const MatrixShape s = matrix_shape(data_, round_);
    const std::int64_t k = s.cols;
    const std::int64_t m = rows_for(a, s.rows), n = rows_for(b, 1 + data_.word() % 300);
    const bool turn_a = data_.word() % 2 == 0, turn_b = data_.word() % 2 == 0;
    const DType dtype = data_.word() % 3 == 0 ? DType::f32 : DType::bf16;
    const bool wild = data_.word() % 4 == 0;
    GemmSpec spec = gemm;
    spec.output = data_.word() % 2 == 0 ? DType::f32 : DType::bf16;
    const auto output = [&](const QuantSpec& operand, std::int64_t rows) {
      return data_.output(operand.storage(), rows, k);
    };
    const auto source = [&](std::int64_t rows, bool turned) {
      return data_.values(dtype, turned ? k : rows, turned ? rows : k, wild);
    };
    calls_.push_back(
        {fmt::format("quantize and gemm {} x {} {}", label(a), label(b), label(spec)),
         fmt::format("({}, {}, {}) {}{}{}", m, n, k, name_of(dtype), turn_a ? " A transposed" : "",
                     turn_b ? " B transposed" : ""),
         {source(m, turn_a), source(n, turn_b), output(a, m), scales_of(data_, a, m, k),
          output(b, n), scales_of(data_, b, n, k), data_.output(spec.output, m, n),
          flat(data_.output(DType::f32, 1, 2)), flat(data_.output(DType::f32, 1, 2)),
          flat(data_.output(DType::u8, 1, sizeof(OperandStatistics)))},
         [=](Backend& backend, const Views& t) {
           QuantizedOperand left = operand_at(a, m, k, t, 2), right = operand_at(b, n, k, t, 4);
           left.clamp_bounds = t[7];
           right.clamp_bounds = t[8];
           const RandomKey key{7, 8, 9, 0, 10};
           backend.run(ops::Quantize{t[0], turn_a, key, {}, left});
           backend.run(ops::Quantize{t[1], turn_b, key, {}, right});
           backend.run(ops::Gemm{spec, left, right, {}, false, t[6]});
           if (a.transform.left || b.transform.left) {
             backend.run(ops::RotateBack{left, right, t[6]});
           }
           if (a.transform.compensated != b.transform.compensated) {
             backend.run(ops::Compensate{left, t[0], turn_a, right, t[1], turn_b, t[6]});
           }
           backend.run(ops::MeasureOperand{t[0], turn_a, left, t[9]});
         }});
  }

  QuantSpec transformed_spec() {
    const QuantSpec specs[] = {quantized(numerics::kE4M3, {1, 128}, ScaleFormat::fp32),
                               quantized(numerics::kE4M3, {0, 0}, ScaleFormat::fp32),
                               quantized(numerics::kE5M2, {1, 0}, ScaleFormat::pow2),
                               quantized(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level),
                               quantized(numerics::kE4M3, {1, 32}, ScaleFormat::e8m0)};
    return specs[data_.word() % std::size(specs)];
  }

  /// Quantization behind a transform along K, the way back, and statistics; smoothing with its
  /// factors, twice, so that static ones have to stay.
  void transform(const char* name, bool transpose) {
    QuantSpec spec = transformed_spec();
    spec.transform = *transform_from_name(name);
    if (data_.word() % 4 == 0) spec.rounding = Rounding::stochastic;
    const MatrixShape s = matrix_shape(data_, round_);
    const bool left = spec.transform.left;
    const std::int64_t rows = left ? length_for(spec.transform, s.rows) : s.rows;
    const std::int64_t k = left ? s.cols : length_for(spec.transform, s.cols);
    const MatrixShape source{transpose ? k : rows, transpose ? rows : k};
    const DType dtype = data_.word() % 3 == 0 ? DType::f32 : DType::bf16;
    const DType out = data_.word() % 2 == 0 ? DType::bf16 : DType::f32;
    const bool wild = data_.word() % 4 == 0, right = data_.word() % 2 == 0;
    const RandomKey key{7, data_.word(), 3, transpose ? 1u : 0u, data_.word() % 100};
    HostTensor factors = flat(data_.output(DType::f32, 1, k));
    for (std::byte& byte : factors.data) byte = std::byte{0};
    calls_.push_back(
        {fmt::format("transform {}", name),
         fmt::format("{} {} {}{}", label(spec), name_of(dtype), describe(source),
                     transpose ? " transposed" : ""),
         {data_.values(dtype, source.rows, source.cols, wild),
          data_.values(dtype, source.rows, source.cols, wild),
          data_.output(spec.storage(), rows, k), scales_of(data_, spec, rows, k),
          data_.output(out, source.rows, source.cols),
          flat(data_.output(DType::u8, 1, sizeof(OperandStatistics))), factors},
         [spec, rows, k, transpose, right, key](Backend& b, const Views& t) {
           QuantizedOperand operand = operand_at(spec, rows, k, t, 2);
           if (spec.transform.is_smoothing()) {
             b.run(ops::SmoothingFactors{spec.transform, t[0], transpose, t[1], transpose, t[6]});
             b.run(ops::SmoothingFactors{spec.transform, t[1], transpose, t[0], transpose, t[6]});
             operand.channel_factors = t[6];
             operand.is_right = right;
           }
           b.run(ops::Quantize{t[0], transpose, key, {}, operand});
           b.run(ops::Dequantize{operand, transpose, t[4]});
           b.run(ops::MeasureOperand{t[1], transpose, operand, t[5]});
         }});
  }

  void quantize(const QuantSpec& spec, DType source, bool transpose) {
    const MatrixShape s = matrix_shape(data_, round_);
    const std::int64_t rows = transpose ? s.cols : s.rows, k = transpose ? s.rows : s.cols;
    const bool delayed = spec.scale_source == ScaleSource::delayed;
    const HostTensor state = state_of(spec);
    const DType out = data_.word() % 2 == 0 ? DType::bf16 : DType::f32;
    const RandomKey drawn{7, data_.word(), 3, transpose ? 1u : 0u};
    calls_.push_back(
        {fmt::format("quantize {}", label(spec)),
         fmt::format("{} {}{}", name_of(source), describe(s), transpose ? " transposed" : ""),
         {data_.values(source, s.rows, s.cols, data_.word() % 4 == 0),
          data_.output(spec.storage(), rows, k), scales_of(data_, spec, rows, k), state,
          data_.output(out, s.rows, s.cols), data_.integers(1, 0, 1000)},
         [spec, rows, k, transpose, delayed, drawn](Backend& b, const Views& t) {
           QuantizedOperand operand = operand_at(spec, rows, k, t, 1);
           RandomKey key = drawn;
           key.step_counter = static_cast<const std::uint32_t*>(t[5].data);
           const TensorView state_view = delayed ? t[3] : TensorView{};
           b.run(ops::Quantize{t[0], transpose, key, state_view, operand});
           if (delayed) {  // a second step uses what the first one learnt
             b.run(ops::UpdateDelayedScale{spec, state_view});
             b.run(ops::Quantize{t[0], transpose, key, state_view, operand});
             b.run(ops::UpdateDelayedScale{spec, state_view});
           }
           b.run(ops::Dequantize{operand, transpose, t[4]});
         }});
  }

  /// An operand compared with another source than its own, so that some of it saturates.
  void statistics(const QuantSpec& spec, DType source, bool transpose) {
    const MatrixShape s = matrix_shape(data_, round_);
    const bool wild = data_.word() % 4 == 0;
    HostTensor compared = data_.values(source, s.rows, s.cols, wild);
    HostTensor quantized = data_.values(source, s.rows, s.cols, wild);
    compare_with(spec, transpose, std::move(compared), std::move(quantized), "");
  }

  /// Numbers of channels around that of the top channels, even and odd, of a few rounds of a block
  /// and beyond 2^16; channels that differ, that are equal, and that have no number.
  void statistics_of_channels() {
    const std::int64_t wide = data_.integer(1 << 16, 90000), odd = 2 * data_.integer(5, 500) + 1;
    const std::int64_t thousands = data_.integer(1000, 9000);
    for (const std::int64_t cols : std::initializer_list<std::int64_t>{1, 2, 7, 8, 9, odd, odd + 1,
                                                                       thousands, wide, wide + 1}) {
      for (const bool transpose : {false, true}) {
        const std::int64_t rows = cols > 1 << 14 ? data_.integer(1, 3) : data_.integer(1, 140);
        const DType dtype = data_.word() % 3 == 0 ? DType::f32 : DType::bf16;
        const QuantSpec spec = transformed_spec();
        for (const Channels channels : {Channels::different, Channels::equal, Channels::zero,
                                        Channels::special, Channels::nan}) {
          HostTensor compared = tensor_of(channels, dtype, rows, cols);
          HostTensor quantized = tensor_of(channels, dtype, rows, cols);
          compare_with(spec, transpose, std::move(compared), std::move(quantized),
                       words_of(channels));
        }
      }
    }
  }

  enum class Channels : std::uint8_t {
    different,
    equal,    ///< a few values
    zero,     ///< zeros
    special,  ///< infinities and NaN among them
    nan,      ///< nothing else
  };
  static const char* words_of(Channels channels) {
    constexpr const char* kNames[] = {"", ", equal channels", ", all zero", ", non-finite values",
                                      ", all NaN"};
    return kNames[static_cast<std::size_t>(channels)];
  }

  HostTensor tensor_of(Channels channels, DType dtype, std::int64_t rows, std::int64_t cols) {
    HostTensor tensor = data_.values(dtype, rows, cols, channels == Channels::special);
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

  /// The statistics of the operand made of `quantized`, compared with `source`.
  void compare_with(const QuantSpec& spec, bool transpose, HostTensor source, HostTensor quantized,
                    const std::string& what) {
    const MatrixShape s{source.rows, source.cols};
    const std::int64_t rows = transpose ? s.cols : s.rows, k = transpose ? s.rows : s.cols;
    const bool delayed = spec.scale_source == ScaleSource::delayed;
    calls_.push_back(
        {fmt::format("operand_statistics {}", label(spec)),
         fmt::format("{} {}{}{}", name_of(source.dtype), describe(s),
                     transpose ? " transposed" : "", what),
         {std::move(source), std::move(quantized), data_.output(spec.storage(), rows, k),
          scales_of(data_, spec, rows, k), state_of(spec),
          flat(data_.output(DType::u8, 1, sizeof(OperandStatistics)))},
         [spec, rows, k, transpose, delayed](Backend& b, const Views& t) {
           QuantizedOperand operand = operand_at(spec, rows, k, t, 2);
           b.run(ops::Quantize{t[1], transpose, {}, delayed ? t[4] : TensorView{}, operand});
           b.run(ops::MeasureOperand{t[0], transpose, operand, t[5]});
         }});
  }

  HostTensor state_of(const QuantSpec& spec) {
    const bool delayed = spec.scale_source == ScaleSource::delayed;
    HostTensor state = flat(data_.output(DType::f32, 1, delayed ? DelayedState::length(spec) : 1));
    for (std::byte& byte : state.data) byte = std::byte{0};
    return state;
  }

  /// Operations that quantize their result: norm, SwiGLU and its gradient.
  void quantize_results(const QuantSpec& spec, DType dtype) {
    MatrixShape s = matrix_shape(data_, round_);
    if (data_.word() % 2 == 0) s.cols = (s.cols + 127) / 128 * 128;
    const bool delayed = spec.scale_source == ScaleSource::delayed;
    const bool wild = data_.word() % 4 == 0;
    const RandomKey key{7, data_.word(), 3, 0};
    const auto state = [delayed](const TensorView& view) { return delayed ? view : TensorView{}; };
    const auto input = [&](std::int64_t cols) { return data_.values(dtype, s.rows, cols, wild); };
    const auto output = [&](std::int64_t cols) { return data_.output(dtype, s.rows, cols); };
    const auto codes = [&](std::int64_t rows, std::int64_t k) {
      return data_.output(spec.storage(), rows, k);
    };
    const std::string what = fmt::format("{} {}", name_of(dtype), describe(s));
    calls_.push_back({fmt::format("rmsnorm_quantize {}", label(spec)),
                      what,
                      {input(s.cols), flat(data_.ordinary(dtype, 1, s.cols)), output(s.cols),
                       flat(data_.output(DType::f32, 1, s.rows)), codes(s.rows, s.cols),
                       scales_of(data_, spec, s.rows, s.cols), state_of(spec)},
                      [spec, s, key, state](Backend& b, const Views& t) {
                        QuantizedOperand operand = operand_at(spec, s.rows, s.cols, t, 4);
                        const ops::RmsNormForward norm{t[0], t[1], 1e-6f, t[2], t[3]};
                        b.run(ops::ProduceQuantize{norm, key, state(t[6]), operand});
                      }});
    calls_.push_back({fmt::format("swiglu_quantize {}", label(spec)),
                      what,
                      {input(2 * s.cols), output(s.cols), codes(s.rows, s.cols),
                       scales_of(data_, spec, s.rows, s.cols), state_of(spec)},
                      [spec, s, key, state](Backend& b, const Views& t) {
                        QuantizedOperand operand = operand_at(spec, s.rows, s.cols, t, 2);
                        const ops::SwigluForward swiglu{t[0], t[1]};
                        b.run(ops::ProduceQuantize{swiglu, key, state(t[4]), operand});
                      }});
    const std::int64_t wide = 2 * s.cols;
    calls_.push_back({fmt::format("swiglu_backward_quantize {}", label(spec)),
                      what,
                      {input(wide), input(s.cols), output(wide), codes(s.rows, wide),
                       scales_of(data_, spec, s.rows, wide), codes(wide, s.rows),
                       scales_of(data_, spec, wide, s.rows), state_of(spec)},
                      [spec, s, wide, key, state](Backend& b, const Views& t) {
                        QuantizedOperand first = operand_at(spec, s.rows, wide, t, 3);
                        QuantizedOperand second = operand_at(spec, wide, s.rows, t, 5);
                        const ops::SwigluBackward swiglu{t[0], t[1], t[2]};
                        b.run(ops::ProduceQuantize{swiglu, key, state(t[7]), first, &second});
                      }});
  }

  void quantize_both(const QuantSpec& spec, DType source) {
    const MatrixShape s = matrix_shape(data_, round_);
    const bool delayed = spec.scale_source == ScaleSource::delayed;
    const HostTensor state = state_of(spec);
    const RandomKey key{7, data_.word(), 3, 0};
    calls_.push_back(
        {fmt::format("quantize_both {}", label(spec)),
         fmt::format("{} {}", name_of(source), describe(s)),
         {data_.values(source, s.rows, s.cols, data_.word() % 4 == 0),
          data_.output(spec.storage(), s.rows, s.cols), scales_of(data_, spec, s.rows, s.cols),
          data_.output(spec.storage(), s.cols, s.rows), scales_of(data_, spec, s.cols, s.rows),
          state},
         [spec, s, delayed, key](Backend& b, const Views& t) {
           QuantizedOperand first = operand_at(spec, s.rows, s.cols, t, 1);
           QuantizedOperand second = operand_at(spec, s.cols, s.rows, t, 3);
           b.run(ops::QuantizeBoth{t[0], key, delayed ? t[5] : TensorView{}, first, second});
         }});
  }

  KernelData data_;
  int round_;
  std::vector<KernelCall> calls_;
};

}  // namespace

std::vector<KernelCall> quantization_calls(std::uint64_t seed, int round) {
  return QuantizationCalls(seed, round).draw();
}

}  // namespace fp8lab
