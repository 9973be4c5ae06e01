#include "src/model/parameters.hpp"

#include <algorithm>
#include <cmath>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "src/data/random.hpp"
#include "src/model/decoder.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kInitializationStream = 0x1217;

/// Standard normal numbers by Box and Muller in double precision, from functions of ours only, so
/// that every machine draws the same weights.
class NormalSequence {
 public:
  NormalSequence(std::uint64_t seed, std::uint32_t stream) : random_(seed, stream) {}

  double next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius =
        std::sqrt(-2.0 * (numerics::log2_f64(random_.open_unit()) * 0x1.62E42FEFA39EFp-1));
    const auto angle = numerics::sincos_f64(6.283185307179586 * random_.open_unit());
    spare_ = radius * angle.sin;
    has_spare_ = true;
    return radius * angle.cos;
  }

 private:
  RandomSequence random_;
  double spare_ = 0;
  bool has_spare_ = false;
};

/// By parameter: true where the GEMM of one linear layer writes its gradient and nothing adds to
/// it.
std::vector<bool> written_once(const Declaration& declaration) {
  std::vector<bool> result(declaration.parameters().size());
  for (const LinearDeclaration& linear : declaration.linears()) {
    result[static_cast<std::size_t>(linear.weight)] = !linear.is_tied;
  }
  return result;
}

/// Elements [first, first + count) of a contiguous matrix, as one row.
TensorView range(const TensorView& view, std::int64_t first, std::size_t count) {
  return view.flat().columns(first, static_cast<std::int64_t>(count));
}

}  // namespace

double read_scalar(Backend& backend, const TensorView& scalars, std::int64_t index) {
  const TensorView view = scalars.columns(index, 1);
  if (view.dtype == DType::f64) {
    double value = 0;
    backend.download(&value, view);
    return value;
  }
  float value = 0;
  backend.download(&value, view);
  return static_cast<double>(value);
}

void download_floats(Backend& backend, const TensorView& view, std::span<float> values) {
  FP8LAB_ASSERT(static_cast<std::int64_t>(values.size()) == view.size());
  if (view.dtype == DType::f64) {
    std::vector<double> wide(values.size());
    backend.download(wide.data(), view);
    std::transform(wide.begin(), wide.end(), values.begin(),
                   [](double value) { return static_cast<float>(value); });
  } else if (view.dtype == DType::bf16) {
    std::vector<std::uint16_t> bits(values.size());
    backend.download(bits.data(), view);
    std::transform(bits.begin(), bits.end(), values.begin(), numerics::from_bf16);
  } else {
    FP8LAB_ASSERT(view.dtype == DType::f32);
    backend.download(values.data(), view);
  }
}

Parameters::Parameters(Backend& backend, const ModelConfig& model, const OptimizerConfig& optimizer,
                       DType working, Purpose purpose)
    : backend_(backend),
      model_(model),
      declaration_(declaration_of(model)),
      working_(backend.storage(working)) {
  const DType master = backend_.storage(optimizer.weights);
  if (master == DType::bf16 && working_ != master) {
    throw Error(
        "optimizer.weights = \"bf16\": the recipe's activations are fp32, and its weights "
        "with them; weights = \"fp32\" goes with it");
  }
  const std::vector<bool> is_written = written_once(declaration_);
  for (const ParameterDeclaration& declaration : declaration_.parameters()) {
    const auto allocate = [&](DType dtype) {
      return backend_.allocate(dtype, declaration.rows, declaration.cols);
    };
    AdamWTensors tensors;
    tensors.master = allocate(master);
    if (working_ != master) tensors.working = allocate(working_);
    if (purpose == Purpose::training) {
      const bool by_gemm = is_written[parameters_.size()];
      tensors.gradient = allocate(backend_.storage(by_gemm ? optimizer.gradients : DType::f32));
      tensors.first_moment = allocate(backend_.storage(optimizer.first_moment));
      tensors.second_moment = allocate(backend_.storage(optimizer.second_moment));
    }
    parameters_.push_back({declaration, tensors});
  }
  hash_ = backend_.allocate(DType::u8, 1, sizeof(std::uint64_t));
}

void Parameters::initialize(std::uint64_t seed) {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const Parameter& parameter = parameters_[index];
    const auto [value, deviation] = parameter.declaration.initialization;
    std::vector<float> values(static_cast<std::size_t>(parameter.master().size()),
                              static_cast<float>(value));
    if (deviation > 0) {
      NormalSequence normal(seed, kInitializationStream + static_cast<std::uint32_t>(index));
      for (float& weight : values) weight = static_cast<float>(value + deviation * normal.next());
    }
    upload(parameter, values);
  }
}

const TensorView& Parameters::enqueue_hash() const {
  backend_.fill_zero(hash_);
  std::uint64_t first = 0;
  for (const Parameter& parameter : parameters_) {
    const ops::HashTensor op{parameter.master(), numerics::HashedPart::weights, first, hash_};
    backend_.run(op);
    first += op.words();
  }
  return hash_;
}

std::uint64_t Parameters::hash() const {
  std::uint64_t sum = 0;
  backend_.download(&sum, enqueue_hash());
  return sum;
}

void Parameters::zero_gradients() {
  std::vector<bool> is_written(parameters_.size());
  for (const LinearDeclaration& linear : declaration_.linears()) {
    is_written[static_cast<std::size_t>(linear.weight)] = true;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_written[i]) backend_.fill_zero(parameters_[i].gradient());
  }
}

void Parameters::reset_optimizer() {
  for (const Parameter& parameter : parameters_) {
    backend_.fill_zero(parameter.tensors.first_moment);
    backend_.fill_zero(parameter.tensors.second_moment);
  }
}

std::vector<float> Parameters::download(const Parameter& parameter) const {
  std::vector<float> values(static_cast<std::size_t>(parameter.master().size()));
  download(parameter, 0, values);
  return values;
}

void Parameters::download(const Parameter& parameter, std::int64_t first,
                          std::span<float> values) const {
  download_floats(backend_, range(parameter.master(), first, values.size()), values);
}

void Parameters::upload(const Parameter& parameter, const std::vector<float>& values) {
  FP8LAB_ASSERT(static_cast<std::int64_t>(values.size()) == parameter.master().size());
  upload(parameter, 0, values);
}

void Parameters::upload(const Parameter& parameter, std::int64_t first,
                        std::span<const float> values) {
  const TensorView master = range(parameter.master(), first, values.size());
  if (master.dtype == DType::f64) {
    const std::vector<double> wide(values.begin(), values.end());
    backend_.upload(master, wide.data());
  } else if (master.dtype == DType::bf16) {
    std::vector<std::uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(), numerics::to_bf16);
    backend_.upload(master, bits.data());
  } else {
    backend_.upload(master, values.data());
  }
  const TensorView& working = parameter.tensors.working;
  if (!working.empty()) backend_.run(ops::Copy{master, range(working, first, values.size())});
}

}  // namespace fp8lab
