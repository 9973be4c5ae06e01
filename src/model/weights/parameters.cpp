#include "src/model/weights/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "emulation/base/input_error.hpp"
#include "emulation/base/processors.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/architecture/parts.hpp"
#include "src/data/random.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kInitializationStream = 0x1217;

constexpr std::int64_t kBlock = 512;  ///< numbers that are drawn at once
using Block = std::array<double, kBlock>;

/// Standard normal numbers 4 * `first` onwards of a stream, by Box and Muller in double precision.
/// Numbers 2 i and 2 i + 1 come from the uniform numbers 2 i and 2 i + 1. Only functions of this
/// project are used, so that every machine draws the same weights.
FP8LAB_FOR_EACH_PROCESSOR void draw_block(std::uint64_t seed, std::uint32_t stream,
                                          std::uint64_t first, Block& values) {
  constexpr std::size_t kPairs = kBlock / 2;
  std::array<double, kPairs> radius, angle, sine, cosine;
  for (std::size_t i = 0; i < kPairs; i += 2) {
    const auto bits = RandomSequence::block(seed, stream, first + i / 2);
    for (std::size_t j = 0; j < 2; ++j) {
      radius[i + j] = RandomSequence::open_unit(bits.word[2 * j]);
      angle[i + j] = 6.283185307179586 * RandomSequence::open_unit(bits.word[2 * j + 1]);
    }
  }
  for (double& r : radius) {
    r = __builtin_sqrt(-2.0 * (numerics::log2_f64(r) * 0x1.62E42FEFA39EFp-1));
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    const auto turn = numerics::sincos_f64(angle[i]);
    sine[i] = turn.sin;
    cosine[i] = turn.cos;
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    values[2 * i] = radius[i] * cosine[i];
    values[2 * i + 1] = radius[i] * sine[i];
  }
}

/// mean + deviation * N(0, 1) for the numbers of a stream from `first` on, a multiple of 4.
void draw_normal(std::uint64_t seed, std::uint32_t stream, std::int64_t first, double mean,
                 double deviation, std::span<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; i += kBlock) {
    Block block;
    draw_block(seed, stream, static_cast<std::uint64_t>(first + i) / 4, block);
    const std::int64_t end = std::min(kBlock, count - i);
    for (std::int64_t j = 0; j < end; ++j) {
      values[static_cast<std::size_t>(i + j)] =
          static_cast<float>(mean + deviation * block[static_cast<std::size_t>(j)]);
    }
  }
}

/// For each parameter: true if the GEMM of one linear layer writes its gradient and nothing adds to
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
    const auto count = static_cast<std::int64_t>(values.size());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      values[at] = numerics::from_bf16(bits[at]);
    }
  } else {
    FP8LAB_ASSERT(view.dtype == DType::f32);
    backend.download(values.data(), view);
  }
}

namespace {

/// The storage formats that apply on this backend: a backend with its own type for all tensors does
/// not round.
OptimizerConfig storage_on(const Backend& backend, OptimizerConfig optimizer) {
  if (backend.storage(DType::f32) == DType::f32) return optimizer;
  for (QuantSpec* spec : {&optimizer.weights, &optimizer.gradients, &optimizer.first_moment,
                          &optimizer.second_moment}) {
    *spec = plain_state(DType::f32);
  }
  return optimizer;
}

/// The rows of each part of a matrix.
std::vector<std::int64_t> rows_of_parts(const ParameterDeclaration& matrix) {
  std::vector<std::int64_t> rows;
  for (const OutputGroup& group : matrix.groups) rows.push_back(group.rows);
  if (rows.empty()) rows.push_back(matrix.rows);
  return rows;
}

/// Decay of the 1 + w of a norm would pull w to -1, not to 0.
void refuse_decay(const Parameter& parameter) {
  if (!parameter.declaration.is_zero_centered || parameter.group.frozen ||
      parameter.group.weight_decay <= 0.0f) {
    return;
  }
  throw InputError({.key = "optimizer.group.match",
                    .found = quoted_word(parameter.group.match),
                    .reason = fmt::format(", which names {}: its weight is 1 + w "
                                          "(zero_centered_norms), and weight_decay would pull w "
                                          "to -1",
                                          parameter.name()),
                    .accepted = "patterns without norms, or weight_decay = 0"});
}

/// Type of a state that is stored as values rather than codes.
DType value_type(const QuantSpec& spec) {
  return spec == plain_state(DType::bf16) ? DType::bf16 : DType::f32;
}

}  // namespace

Parameters::Parameters(Backend& backend, const ModelConfig& model, const OptimizerConfig& optimizer,
                       DType working, Purpose purpose)
    : backend_(backend),
      model_(model),
      optimizer_(storage_on(backend, optimizer)),
      declaration_(declaration_of(model)),
      working_(backend.storage(working)) {
  const DType master = backend_.storage(value_type(optimizer_.weights));
  if (master == DType::bf16 && working_ != master) {
    throw InputError(
        {.key = "optimizer.weights",
         .found = "'bf16'",
         .reason = ", but the recipe's activations are fp32, and its weights with them",
         .accepted = "fp32"});
  }
  for (const ParameterDeclaration& declaration : declaration_.parameters()) {
    Parameter& parameter = parameters_.emplace_back();
    parameter.declaration = declaration;
    parameter.index = static_cast<std::uint32_t>(parameters_.size() - 1);
  }
  if (model.zero_centered_norms && optimizer_.weights != plain_state(DType::f32)) {
    throw InputError({.key = "optimizer.weights",
                      .reason = "would round the 1 + w of the model's norms (zero_centered_norms)",
                      .accepted = "fp32"});
  }
  if (purpose == Purpose::training) {
    assign_groups();
    assign_rules();
  }
  const std::vector<bool> is_written = written_once(declaration_);
  for (Parameter& parameter : parameters_) {
    const auto allocate = [&](DType dtype) {
      return backend_.allocate(backend_.storage(dtype), parameter.declaration.rows,
                               parameter.declaration.cols);
    };
    ParameterTensors& tensors = parameter.tensors;
    tensors.master = allocate(master);
    if (working_ != master && !parameter.declaration.is_zero_centered) {
      tensors.working = allocate(working_);
    }
    if (purpose == Purpose::inference || !parameter.is_trained()) continue;
    const bool by_gemm = is_written[parameter.index];
    tensors.gradient = allocate(by_gemm ? value_type(optimizer_.gradients) : DType::f32);
    allocate_moments(parameter);
  }
  if (purpose == Purpose::training) {
    GradientSet& gradients = gradient_sets_.emplace_back();
    for (const Parameter& parameter : parameters_) gradients.push_back(parameter.gradient());
    add_discarded_gradients();
    allocate_loaded_moments();
    allocate_muon();
    allocate_rounding({&optimizer_.weights, &optimizer_.gradients});
  } else {
    allocate_rounding({&optimizer_.weights});
  }
  hash_ = backend_.allocate(DType::u8, 1, sizeof(std::uint64_t));
}

float Parameter::rate_factor() const {
  if (group.base_inputs == 0 || declaration.is_vector) return group.learning_rate;
  const auto base = static_cast<double>(group.base_inputs);
  const auto in = static_cast<double>(declaration.cols);
  return static_cast<float>(static_cast<double>(group.learning_rate) * std::sqrt(base / in));
}

void Parameters::assign_groups() {
  const auto layers = static_cast<int>(model_.layer_count());
  for (const OptimizerGroup& group : optimizer_.groups) {
    bool matches = false, counts = false, is_in_time = false;
    for (Parameter& parameter : parameters_) {
      if (!layer_pattern_matches(group.match, parameter.name(), layers)) continue;
      matches = true;
      if (!parameter.group.match.empty()) continue;
      parameter.group = group;
      is_in_time = true;
      counts = counts || group.frozen || !parameter.declaration.is_frozen;
    }
    if (!matches) {
      throw InputError({.key = "optimizer.group.match",
                        .found = quoted_word(group.match),
                        .reason = ", the name of no parameter of the model",
                        .accepted = "for example " + quoted_word(parameters_.front().name())});
    }
    if (is_in_time && !counts) {
      throw InputError({.key = "optimizer.group.match",
                        .found = quoted_word(group.match),
                        .reason = ", which changes nothing, since the model freezes all of its "
                                  "parameters (qk_norm_frozen)",
                        .accepted = "patterns of trained parameters"});
    }
    if (!counts) {
      throw InputError({.key = "optimizer.group.match",
                        .found = quoted_word(group.match),
                        .reason = ", which changes nothing, since groups before it have all of its "
                                  "parameters and the first group counts",
                        .accepted = "narrower groups before wider ones"});
    }
  }
  for (Parameter& parameter : parameters_) {
    if (parameter.declaration.is_frozen) parameter.group.frozen = true;
    refuse_decay(parameter);
  }
  if (model_.lora.rank > 0) freeze_all_but_adapters();
  if (std::none_of(parameters_.begin(), parameters_.end(),
                   [](const Parameter& parameter) { return parameter.is_trained(); })) {
    throw InputError({.where = "optimizer.group",
                      .reason = "all parameters of the model are frozen",
                      .accepted = "groups that leave some to train"});
  }
}

void Parameters::freeze_all_but_adapters() {
  for (Parameter& parameter : parameters_) {
    if (parameter.declaration.is_adapter) continue;
    if (!parameter.group.match.empty() && !parameter.group.frozen) {
      throw InputError({.key = "optimizer.group.match",
                        .found = quoted_word(parameter.group.match),
                        .reason = fmt::format(", which names {}: with lora_rank > 0 only adapters "
                                              "are trained",
                                              parameter.name()),
                        .accepted = "patterns of adapters, such as \"*.lora_b\""});
    }
    parameter.group.frozen = true;
  }
}

void Parameters::assign_rules() {
  const bool is_muon = optimizer_.update.rule == UpdateRule::muon;
  for (Parameter& parameter : parameters_) {
    parameter.rule = is_muon ? UpdateRule::adamw : optimizer_.update.rule;
  }
  if (!is_muon) return;
  for (const LinearDeclaration& linear : declaration_.linears()) {
    Parameter& weight = parameters_[static_cast<std::size_t>(linear.weight)];
    if (linear.block != fp8lab::Block::head && weight.group.rule == GroupRule::automatic) {
      weight.rule = UpdateRule::muon;
    }
  }
  for (const OptimizerGroup& group : optimizer_.groups) {
    if (group.rule != GroupRule::muon) continue;
    bool has_matrix = false;
    for (Parameter& parameter : parameters_) {
      if (!(parameter.group == group) || parameter.declaration.is_vector) continue;
      parameter.rule = UpdateRule::muon;
      has_matrix = true;
    }
    if (has_matrix) continue;
    throw InputError({.key = "optimizer.group.match",
                      .found = quoted_word(group.match),
                      .reason = ", which names no matrix for kind = \"muon\"",
                      .accepted = "kind = \"adamw\", which updates vectors"});
  }
}

void Parameters::add_discarded_gradients() {
  std::vector<bool> is_of_linear(parameters_.size());
  for (const LinearDeclaration& linear : declaration_.linears()) {
    if (linear.bias) is_of_linear[static_cast<std::size_t>(*linear.bias)] = true;
  }
  const auto is_discarded = [&](const Parameter& parameter) {
    return !parameter.is_trained() && parameter.declaration.is_vector &&
           !is_of_linear[parameter.index];
  };
  std::int64_t largest = 0;
  for (const Parameter& parameter : parameters_) {
    if (is_discarded(parameter)) largest = std::max(largest, parameter.declaration.size());
  }
  if (largest == 0) return;
  discarded_gradient_ = backend_.allocate(backend_.storage(DType::f32), 1, largest);
  for (Parameter& parameter : parameters_) {
    if (!is_discarded(parameter)) continue;
    parameter.tensors.gradient = discarded_gradient_.columns(0, parameter.declaration.size());
  }
}

void Parameters::allocate_moments(Parameter& parameter) {
  const ParameterDeclaration& shape = parameter.declaration;
  const auto allocate = [&](const QuantSpec& spec) {
    StoredState state{spec, {}, {}};
    if (is_plain_state(spec)) {
      state.codes = backend_.allocate(backend_.storage(value_type(spec)), shape.rows, shape.cols);
      return state;
    }
    state.codes = backend_.allocate(DType::u8, shape.rows, shape.cols * state_code_bytes(spec));
    if (const std::int64_t tiles = stored_tiles(spec, shape.size()); tiles > 0) {
      state.scales = backend_.allocate(DType::f32, spec.tile_numbers(), tiles);
    }
    return state;
  };
  UpdateSpec rule = optimizer_.update;
  rule.rule = parameter.rule;
  if (rule.has_first_moment()) parameter.tensors.first_moment = allocate(optimizer_.first_moment);
  if (rule.has_second_moment()) {
    parameter.tensors.second_moment = allocate(optimizer_.second_moment);
  }
  if (rule.rule == UpdateRule::madam) {
    parameter.tensors.weight_bound = backend_.allocate(backend_.storage(DType::f32), 1, 1);
  }
}

bool Parameters::is_in_place(const StoredState& state) const {
  return state.empty() ||
         (is_plain_state(state.spec) && state.codes.dtype == backend_.storage(DType::f32));
}

void Parameters::allocate_loaded_moments() {
  std::int64_t largest = 0;
  bool first = false, second = false;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.is_trained() || is_updated_at_once(parameter)) continue;
    largest = std::max(largest, parameter.declaration.size());
    first = first || !is_in_place(parameter.tensors.first_moment);
    second = second || !is_in_place(parameter.tensors.second_moment);
  }
  const DType real = backend_.storage(DType::f32);
  if (first) loaded_first_ = backend_.allocate(real, 1, largest);
  if (second) loaded_second_ = backend_.allocate(real, 1, largest);
}

bool Parameters::is_updated_at_once(const Parameter& parameter) const {
  return parameter.rule == UpdateRule::adamw && optimizer_.update.moments == MomentUse::rounded &&
         is_plain_state(optimizer_.first_moment) && is_plain_state(optimizer_.second_moment) &&
         is_plain_state(optimizer_.weights);
}

void Parameters::allocate_muon() {
  std::int64_t largest = 0, gram = 0;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.is_trained() || parameter.rule != UpdateRule::muon) continue;
    const std::int64_t cols = parameter.declaration.cols;
    for (const std::int64_t rows : rows_of_parts(parameter.declaration)) {
      const std::int64_t small = std::min(rows, cols);
      largest = std::max(largest, rows * cols);
      gram = std::max(gram, small * small);
    }
  }
  if (largest == 0) return;
  const DType real = backend_.storage(DType::f32), narrow = backend_.storage(DType::bf16);
  muon_update_ = backend_.allocate(real, 1, largest);
  muon_x_ = backend_.allocate(narrow, 1, largest);
  muon_gram_ = backend_.allocate(narrow, 1, gram);
  muon_squares_ = backend_.allocate(real, 1, StepScalar::kCount);
}

void Parameters::for_each_muon_part(const Parameter& parameter, const UpdateSpec& spec,
                                    const TensorView& scalars, const TensorView& momentum,
                                    const VisitPart& visit) const {
  const ParameterTensors& tensors = parameter.tensors;
  const std::int64_t cols = parameter.declaration.cols;
  const auto shaped = [](const TensorView& memory, std::int64_t rows, std::int64_t columns) {
    return TensorView{memory.data, memory.dtype, rows, columns, columns};
  };
  std::int64_t first = 0;
  for (const std::int64_t rows : rows_of_parts(parameter.declaration)) {
    const std::int64_t small = std::min(rows, cols);
    UpdateSpec own = spec;
    own.update_factor = update_factor(spec.update_scale, rows, cols);
    visit({own, scalars, tensors.gradient.row_range(first, rows),
           momentum.columns(first * cols, rows * cols), shaped(muon_update_, rows, cols),
           shaped(muon_x_, rows, cols), shaped(muon_gram_, small, small), muon_squares_},
          tensors.master.row_range(first, rows),
          tensors.working.empty() ? TensorView{} : tensors.working.row_range(first, rows));
    first += rows;
  }
}

void Parameters::allocate_rounding(std::initializer_list<const QuantSpec*> storages) {
  std::int64_t codes = 0, numbers = 0;
  for (const Parameter& parameter : parameters_) {
    const std::int64_t n = parameter.declaration.size();
    for (const QuantSpec* spec : storages) {
      if (is_plain_state(*spec)) continue;
      codes = std::max(codes, n * state_code_bytes(*spec));
      numbers = std::max(numbers, stored_tiles(*spec, n) * spec->tile_numbers());
    }
  }
  if (codes > 0) rounded_codes_ = backend_.allocate(DType::u8, 1, codes);
  if (numbers > 0) rounded_scales_ = backend_.allocate(DType::f32, 1, numbers);
}

RandomKey Parameters::key_of(const Parameter& parameter, StateRole role, RandomKey key) {
  constexpr std::uint32_t kRoles = 4, kOrientationOfStates = 3;
  key.tensor = kRoles * parameter.index + static_cast<std::uint32_t>(role);
  key.orientation = kOrientationOfStates;  // operands have 0 to 2
  return key;
}

void Parameters::round(const Parameter& parameter, StateRole role, const TensorView& tensor,
                       const QuantSpec& storage, const RandomKey& key) const {
  if (is_plain_state(storage)) return;
  const std::int64_t n = tensor.size(), tiles = stored_tiles(storage, n);
  StoredState state{storage, rounded_codes_.columns(0, n * state_code_bytes(storage)), {}};
  if (tiles > 0) {
    state.scales = {rounded_scales_.data, DType::f32, storage.tile_numbers(), tiles, tiles};
  }
  backend_.run(ops::StoreState{tensor.flat(), key_of(parameter, role, key), state});
  backend_.run(ops::LoadState{state, tensor.flat()});
}

void Parameters::round_weights(std::uint64_t seed) {
  if (is_plain_state(optimizer_.weights)) return;
  RandomKey key;
  key.seed = seed;
  for (const Parameter& parameter : parameters_) {
    const LabelScope scope(backend_, backend_.label().in_layer(parameter.name()));
    round(parameter, StateRole::weights, parameter.master(), optimizer_.weights, key);
    const TensorView& working = parameter.tensors.working;
    if (!working.empty()) backend_.run(ops::Copy{parameter.master(), working});
  }
}

TensorView Parameters::load(StateRole role, const StoredState& state) const {
  if (is_in_place(state)) return state.empty() ? TensorView{} : state.codes.flat();
  const TensorView& memory = role == StateRole::first_moment ? loaded_first_ : loaded_second_;
  const TensorView values = memory.columns(0, state.elements());
  backend_.run(ops::LoadState{state, values});
  return values;
}

void Parameters::store(const Parameter& parameter, StateRole role, const StoredState& state,
                       const RandomKey& key) const {
  if (is_in_place(state)) return;
  const TensorView& memory = role == StateRole::first_moment ? loaded_first_ : loaded_second_;
  backend_.run(
      ops::StoreState{memory.columns(0, state.elements()), key_of(parameter, role, key), state});
}

void draw_initial_values(const ParameterDeclaration& parameter, std::size_t index,
                         std::uint64_t seed, std::int64_t first, std::span<float> values) {
  const auto [value, deviation] = parameter.initialization;
  if (deviation > 0) {
    const std::uint32_t stream = kInitializationStream + static_cast<std::uint32_t>(index);
    draw_normal(seed, stream, first, value, deviation, values);
  } else {
    std::fill(values.begin(), values.end(), static_cast<float>(value));
  }
}

void Parameters::initialize(std::uint64_t seed) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;
  std::vector<float> values;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const Parameter& parameter = parameters_[index];
    const std::int64_t size = parameter.master().size();
    for (std::int64_t first = 0; first < size; first += kPiece) {
      values.resize(static_cast<std::size_t>(std::min(kPiece, size - first)));
      draw_initial_values(parameter.declaration, index, seed, first, values);
      upload(parameter, first, values);
    }
  }
}

const TensorView& Parameters::enqueue_hash() const {
  backend_.fill_zero(hash_);
  std::vector<TensorView> masters;
  for (const Parameter& parameter : parameters_) masters.push_back(parameter.master());
  backend_.run(ops::HashTensors{masters, numerics::HashedPart::weights, 0, hash_});
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
    const Parameter& parameter = parameters_[i];
    if (!is_written[i] && parameter.is_trained()) backend_.fill_zero(parameter.gradient());
  }
  if (!discarded_gradient_.empty()) backend_.fill_zero(discarded_gradient_);
}

void Parameters::add_gradient_set() {
  GradientSet set;
  for (const TensorView& first : gradient_sets_.front()) {
    set.push_back(first.empty() ? TensorView{}
                                : backend_.allocate(first.dtype, first.rows, first.cols));
  }
  gradient_sets_.push_back(std::move(set));
}

void Parameters::use_gradient_set(std::size_t index) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].is_trained()) continue;
    parameters_[i].tensors.gradient = gradient_sets_.at(index)[i];
  }
}

void Parameters::reset_optimizer() {
  for (const Parameter& parameter : parameters_) {
    const ParameterTensors& tensors = parameter.tensors;
    for (const StoredState* state : {&tensors.first_moment, &tensors.second_moment}) {
      if (!state->empty()) backend_.fill_zero(state->codes);
      if (!state->scales.empty()) backend_.fill_zero(state->scales);
    }
    if (!tensors.weight_bound.empty()) set_weight_bound(parameter);
  }
}

void Parameters::set_weight_bound(const Parameter& parameter) const {
  double squares = 0;
  const std::vector<float> weights = download(parameter);
  for (const float weight : weights) squares += static_cast<double>(weight) * weight;
  const double mean = squares / static_cast<double>(weights.size());
  const double bound = static_cast<double>(optimizer_.update.weight_bound) * std::sqrt(mean);
  const auto single = static_cast<float>(bound);
  const TensorView& view = parameter.tensors.weight_bound;
  const void* const value = view.dtype == DType::f64 ? static_cast<const void*>(&bound) : &single;
  backend_.upload(view, value);
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
