#include "src/model/linear/operand_set.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/tables/size_limits.hpp"
#include "src/model/linear/operand.hpp"

namespace fp8lab {
namespace {

constexpr const char* kDequantized = "dequantized";  // the shared buffer of dequantized codes

constexpr std::uint32_t kMicroBatchBits = 20;  // of RandomKey::tensor, below the micro-batch
static_assert(kMostChunks <= std::int64_t{1} << (32 - kMicroBatchBits),
              "micro-batches would share random words");

bool is_delayed(const QuantSpec& spec) { return spec.scale_source == ScaleSource::delayed; }

bool is_from_codes(const OperandDeclaration& declaration) {
  return declaration.transpose &&
         declaration.spec.orientation_source != OrientationSource::high_precision;
}

std::string scales_name(const OperandMemory& memory) { return "scales." + memory.buffer; }

}  // namespace

std::uint32_t tensor_number(const RandomKey& key) {
  return key.tensor & ((1u << kMicroBatchBits) - 1);
}

bool share_history(const QuantSpec& first, const QuantSpec& second) {
  return is_delayed(first) && is_delayed(second) && first.format == second.format &&
         first.scale == second.scale && first.history_length == second.history_length &&
         first.amax_algorithm == second.amax_algorithm && !first.transform && !second.transform;
}

bool have_one_source(const QuantSpec& first, const QuantSpec& second) {
  // An operation on both orientations uses the history of the first.
  const bool has_own_history = is_delayed(second) && !share_history(first, second);
  // The orientations belong to different GEMMs, which draw different signs.
  const bool transforms = first.transform || second.transform;
  return !transforms && !has_own_history &&
         second.orientation_source == OrientationSource::high_precision;
}

OperandSet::OperandSet(Backend& backend, Workspace& workspace, const std::string& owner,
                       std::vector<OperandDeclaration> declarations)
    : backend_(backend), workspace_(workspace), states_(declarations.size()) {
  for (OperandDeclaration& declaration : declarations) {
    rows_.emplace_back().declaration = std::move(declaration);
  }
  pair_orientations();
  for (const OperandId id : ids()) {
    if (declaration(id).is_made) reserve(id, owner);
    if (declaration(id).is_inside) reserve_history(id);
  }
  statistics_ = backend_.allocate(DType::u8, static_cast<std::int64_t>(rows_.size()),
                                  sizeof(OperandStatistics));
  const OperandStatistics absent = OperandStatistics::absent();
  for (const OperandId id : ids()) {
    if (!declaration(id).is_made) backend_.upload(record_of(id), &absent);
  }
}

std::vector<OperandId> OperandSet::ids() const {
  std::vector<OperandId> ids;
  for (std::size_t i = 0; i < rows_.size(); ++i) ids.push_back(OperandId{i});
  return ids;
}

void OperandSet::pair_orientations() {
  for (Row& row : rows_) {
    const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& other) {
      return other.declaration.tensor == row.declaration.tensor &&
             other.declaration.transpose != row.declaration.transpose;
    });
    if (found != rows_.end()) {
      row.other = OperandId{static_cast<std::size_t>(found - rows_.begin())};
    }
  }
}

void OperandSet::reserve(OperandId id, const std::string& owner) {
  const OperandDeclaration& declaration = this->declaration(id);
  const QuantSpec& spec = declaration.spec;
  QuantizedOperand& target = row(id).operand;
  target = QuantizedOperand::without_memory(spec, declaration.rows(), declaration.k());
  target.is_right = declaration.is_right;
  target.name = declaration.name;
  if (spec.orientation_source == OrientationSource::transformed) {
    target.source_space.transform = this->declaration(row(id).other.value()).spec.transform;
  }
  if (is_source(id, declaration.source)) return be_source(id, declaration.source);
  const Support support = backend_.supports(ops::Quantize{
      .source = declaration.source, .transpose = declaration.transpose, .operand = target});
  if (!support) {
    throw InputError(
        {.where = fmt::format("{}: {}", owner, declaration.name), .reason = support.reason});
  }
  reserve_codes(id);
  reserve_transform(id);
  if (is_from_codes(declaration)) {
    workspace_.reserve(kDequantized, declaration.memory.dequantized, backend_.storage(DType::f32),
                       target.k, target.rows);
  }
  reserve_history(id);
}

void OperandSet::reserve_history(OperandId id) {
  const QuantSpec& spec = declaration(id).spec;
  if (!is_delayed(spec)) return;
  TensorView& state = states_[index(history_owner(id))];
  if (state.empty()) state = backend_.allocate(DType::f32, 1, DelayedState::length(spec));
}

void OperandSet::reserve_codes(OperandId id) {
  Row& row = this->row(id);
  QuantizedOperand& target = row.operand;
  const OperandMemory& memory = row.declaration.memory;
  if (is_kept(id)) {
    allocate_memory(backend_, target);
    row.codes = target.codes;
    row.scales = target.scales;
    return;
  }
  workspace_.reserve(memory.buffer, *memory.live, backend_.storage(target.spec.storage()),
                     target.rows, target.k);
  if (!target.spec.has_scale()) return;
  workspace_.reserve(scales_name(memory), *memory.live, DType::f32,
                     target.spec.tile_rows(target.rows), target.spec.scale_cols(target.k));
}

void OperandSet::reserve_transform(OperandId id) {
  QuantizedOperand& target = row(id).operand;
  const Transform& transform = target.spec.transform;
  if (transform.is<Clamp>()) target.clamp_bounds = backend_.allocate(DType::f32, 1, 2);
  if (!transform.is<Smoothing>()) return;
  for (const Row& other : rows_) {
    const bool is_partner = other.declaration.gemm == declaration(id).gemm;
    if (is_partner && !other.factors.empty()) row(id).factors = other.factors;
  }
  if (row(id).factors.empty()) row(id).factors = backend_.allocate(DType::f32, 1, target.k);
  target.channel_factors = row(id).factors;
}

bool OperandSet::is_source(OperandId id, const TensorView& source) const {
  const QuantSpec& spec = declaration(id).spec;
  return !spec.is_cast() && !spec.transform &&
         spec.orientation_source == OrientationSource::high_precision &&
         source.dtype == backend_.storage(spec.storage());
}

void OperandSet::be_source(OperandId id, const TensorView& source) {
  row(id).operand.codes = source;
  row(id).operand.order =
      declaration(id).transpose ? StorageOrder::rows_contiguous : StorageOrder::k_contiguous;
}

void OperandSet::fit(Row& row, const TensorView& source) {
  const bool transpose = row.declaration.transpose;
  QuantizedOperand& operand = row.operand;
  operand.rows = transpose ? source.cols : source.rows;
  operand.k = transpose ? source.rows : source.cols;
  const auto part = [](const TensorView& whole, std::int64_t rows, std::int64_t cols) {
    FP8LAB_ASSERT(rows * cols <= whole.size());
    return TensorView{whole.data, whole.dtype, rows, cols, cols};
  };
  if (!row.codes.empty()) operand.codes = part(row.codes, operand.rows, operand.k);
  if (!row.factors.empty()) operand.channel_factors = part(row.factors, 1, operand.k);
  if (row.scales.empty()) return;
  operand.scales =
      part(row.scales, operand.spec.tile_rows(operand.rows), operand.spec.scale_cols(operand.k));
}

bool OperandSet::bind(const StepContext& context, OperandId id, const TensorView& source) {
  const OperandDeclaration& declaration = this->declaration(id);
  FP8LAB_ASSERT(declaration.is_made);
  QuantizedOperand& target = row(id).operand;
  target.spec = declaration.spec;
  target.key = key_of(context, id);
  fit(row(id), source);
  if (is_source(id, source)) {
    be_source(id, source);
    return false;
  }
  if (is_kept(id)) return true;
  const OperandMemory& memory = declaration.memory;
  const DType dtype = backend_.storage(target.spec.storage());
  target.codes = workspace_.view(memory.buffer, *memory.live, dtype, target.rows, target.k);
  if (target.spec.has_scale()) {
    target.scales =
        workspace_.view(scales_name(memory), *memory.live, DType::f32,
                        target.spec.tile_rows(target.rows), target.spec.scale_cols(target.k));
  }
  return true;
}

bool OperandSet::bind_both(const StepContext& context, OperandId first, const TensorView& source) {
  const OperandId second = second_of(first);
  return have_one_source(declaration(first).spec, declaration(second).spec) &&
         bind(context, first, source) && bind(context, second, source);
}

TensorView OperandSet::source_of(OperandId id, const TensorView& source) {
  const OperandDeclaration& declaration = this->declaration(id);
  if (!is_from_codes(declaration)) return source;
  const QuantSpec& spec = declaration.spec;
  const QuantizedOperand& first = operand(row(id).other.value());
  const bool keeps_space = spec.orientation_source == OrientationSource::transformed;
  const DType dtype = spec.orientation_source == OrientationSource::dequantized
                          ? backend_.storage(spec.storage())
                          : backend_.storage(DType::f32);
  const TensorView dequantized =
      workspace_.view(kDequantized, declaration.memory.dequantized, dtype, first.rows, first.k);
  backend_.run(ops::Dequantize{first, false, dequantized, keeps_space});
  if (keeps_space) row(id).operand.source_space = first.own_space();
  return dequantized;
}

void OperandSet::rescale_in_warmup(OperandId id, const TensorView& source) {
  if (!is_warming_up(id)) return;
  QuantizedOperand& target = row(id).operand;
  target.spec.scale_source = ScaleSource::current;
  backend_.run(
      ops::Quantize{.source = source, .transpose = declaration(id).transpose, .operand = target});
}

RandomKey OperandSet::key_of(const StepContext& context, OperandId id) const {
  const OperandDeclaration& declaration = this->declaration(id);
  RandomKey key;
  key.seed = context.seed;
  key.step = context.step;
  key.step_counter = context.step_counter;
  key.tensor = (context.micro_batch << kMicroBatchBits) + declaration.tensor;
  key.orientation = declaration.transpose ? 1 : 0;
  key.rotation = declaration.gemm;
  return key;
}

Label OperandSet::label(OperandId id) const {
  return backend_.label().on_tensor(declaration(id).tensor_name);
}

TensorView OperandSet::record_of(OperandId id) const {
  return statistics_.row_range(static_cast<std::int64_t>(index(id)), 1);
}

void OperandSet::measure(const StepContext& context, OperandId id, const TensorView& source) {
  if (!context.log_statistics) return;
  const LabelScope scope(backend_, label(id));
  backend_.run(ops::MeasureOperand{.source = source,
                                   .transpose = declaration(id).transpose,
                                   .operand = operand(id),
                                   .record = record_of(id)});
}

void OperandSet::measure_both(const StepContext& context, OperandId first,
                              const TensorView& source) {
  if (!context.log_statistics) return;
  const LabelScope scope(backend_, label(first));
  const OperandId second = second_of(first);
  backend_.run(ops::MeasureBoth{.source = source,
                                .first = operand(first),
                                .second = operand(second),
                                .first_record = record_of(first),
                                .second_record = record_of(second)});
}

void OperandSet::make(const StepContext& context, OperandId id, const TensorView& source) {
  const LabelScope scope(backend_, label(id));
  const TensorView quantized = source_of(id, source);
  if (!bind(context, id, quantized)) return;
  backend_.run(ops::Quantize{.source = quantized,
                             .transpose = declaration(id).transpose,
                             .state = state_of(id),
                             .operand = row(id).operand});
  rescale_in_warmup(id, quantized);
}

void OperandSet::quantize(const StepContext& context, OperandId id, const TensorView& source) {
  make(context, id, source);
  measure(context, id, source);
}

void OperandSet::quantize_both(const StepContext& context, OperandId first,
                               const TensorView& source) {
  const LabelScope scope(backend_, label(first));
  const OperandId second = second_of(first);
  if (bind_both(context, first, source)) {
    backend_.run(ops::QuantizeBoth{.source = source,
                                   .state = state_of(first),
                                   .first = row(first).operand,
                                   .second = row(second).operand});
    rescale_in_warmup(first, source);
    rescale_in_warmup(second, source);
  } else if (!is_from_codes(declaration(second))) {
    make(context, first, source);
    make(context, second, source);
  } else {
    // Measure the first orientation before the second is made from its codes: a fault shows there.
    quantize(context, first, source);
    quantize(context, second, source);
    return;
  }
  measure_both(context, first, source);
}

bool OperandSet::produce(const StepContext& context, OperandId id, const ops::Producer& producer) {
  const TensorView& output = ops::output_of(producer);
  if (!bind(context, id, output)) return false;
  const LabelScope scope(backend_, label(id));
  backend_.run(
      ops::ProduceQuantize{.producer = producer, .state = state_of(id), .first = row(id).operand});
  rescale_in_warmup(id, output);
  measure(context, id, output);
  return true;
}

bool OperandSet::produce_both(const StepContext& context, OperandId first,
                              const ops::Producer& producer, bool is_read) {
  const OperandId second = second_of(first);
  const TensorView& output = ops::output_of(producer);
  if (!bind_both(context, first, output)) return false;
  const LabelScope scope(backend_, label(first));
  const bool keeps_output =
      is_read || context.log_statistics || is_warming_up(first) || is_warming_up(second);
  backend_.run(ops::ProduceQuantize{.producer = producer,
                                    .state = state_of(first),
                                    .first = row(first).operand,
                                    .second = &row(second).operand,
                                    .keeps_output = keeps_output});
  rescale_in_warmup(first, output);
  rescale_in_warmup(second, output);
  measure_both(context, first, output);
  return true;
}

void OperandSet::smooth(OperandId left, OperandId right, const TensorView& a, const TensorView& b) {
  const auto* const smoothing = declaration(left).spec.transform.as<Smoothing>();
  if (smoothing == nullptr) return;
  const std::int64_t k = declaration(left).transpose ? a.rows : a.cols;
  backend_.run(ops::SmoothingFactors{.smoothing = *smoothing,
                                     .a = a,
                                     .transpose_a = declaration(left).transpose,
                                     .b = b,
                                     .transpose_b = declaration(right).transpose,
                                     .factors = smoothing_factors(left).columns(0, k)});
}

OperandId OperandSet::history_owner(OperandId id) const {
  const std::optional<OperandId>& other = row(id).other;
  const bool shares = declaration(id).transpose && other &&
                      share_history(declaration(*other).spec, declaration(id).spec);
  return shares ? *other : id;
}

bool OperandSet::is_warming_up(OperandId id) const {
  const QuantSpec& spec = declaration(id).spec;
  return declaration(id).is_made && is_delayed(spec) &&
         row(history_owner(id)).history_steps < spec.warmup_steps;
}

bool OperandSet::is_warming_up() const {
  const std::vector<OperandId> all = ids();
  return std::any_of(all.begin(), all.end(), [&](OperandId id) { return is_warming_up(id); });
}

bool OperandSet::is_without_history(OperandId id) const {
  const QuantSpec& spec = declaration(id).spec;
  const bool has_history = declaration(id).is_made || declaration(id).is_inside;
  if (!has_history || !is_delayed(spec) || is_warming_up(id)) return false;
  const int first_scale = spec.amax_algorithm == AmaxAlgorithm::window ? spec.history_length : 1;
  return row(history_owner(id)).history_steps < first_scale;
}

void OperandSet::update_delayed_scales() {
  for (const OperandId id : ids()) {
    if (delayed_state(id).empty()) continue;
    const LabelScope scope(backend_, label(id));
    backend_.run(ops::UpdateDelayedScale{declaration(id).spec, delayed_state(id)});
  }
}

void OperandSet::end_step() {
  for (const OperandId id : ids()) {
    if (!delayed_state(id).empty()) ++row(id).history_steps;
  }
}

void OperandSet::discard_amaxes() {
  for (const TensorView& state : states_) {
    if (!state.empty()) backend_.fill_zero(state.columns(DelayedState::kAmax, 1));
  }
}

}  // namespace fp8lab
