#include "src/replay/locate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "src/io/hash.hpp"
#include "src/replay/temporary_folder.hpp"

namespace fp8lab {
namespace {

using Where = LocatedDifference::Where;

/// Hashes of all tensors of a state. The recipe determines which working copies, delayed scales and
/// factors exist; if the two sides have different ones, the operations show it.
struct StateHash {
  std::uint64_t always = 0;  ///< hash of weights, moments, scalars
  std::uint64_t recipes = 0, recipes_names = 0;

  bool operator==(const StateHash& other) const {
    return always == other.always &&
           (recipes_names != other.recipes_names || recipes == other.recipes);
  }
};

bool belongs_to_recipe(const std::string& name) {
  return name.starts_with("working/") || name.starts_with("delayed/") ||
         name.starts_with("smoothing/");
}

StateHash hash_of(const std::vector<std::string>& names, const std::vector<std::uint64_t>& hashes) {
  Xxh3Stream always, recipes, recipes_names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool of_recipe = belongs_to_recipe(names[i]);
    (of_recipe ? recipes : always).update(&hashes[i], sizeof hashes[i]);
    if (of_recipe) recipes_names.update(names[i] + "\n");
  }
  return {always.digest(), recipes.digest(), recipes_names.digest()};
}

/// One side, executed up to a step.
struct Walk {
  std::vector<StepRecord> steps;
  std::vector<StateHash> states;          ///< state before each step
  std::vector<std::uint64_t> last_state;  ///< state before the last step, tensor by tensor
  std::vector<std::string> state_names;
  std::vector<TracedOutput> trace;  ///< outputs of the last step
  StartPoint before_last;
};

std::uint64_t bits_of(const TensorView& view, std::int64_t index) {
  std::uint64_t bits = 0;
  const std::size_t width = size_of(view.dtype);
  std::memcpy(&bits,
              static_cast<const std::byte*>(view.data) + static_cast<std::size_t>(index) * width,
              width);
  return bits;
}

double value_of(std::uint64_t bits, DType dtype, const std::optional<QuantSpec>& quantizer) {
  const auto word = static_cast<std::uint32_t>(bits);
  switch (dtype) {
    case DType::u8:
      return quantizer && !quantizer->has_codebooks() ? numerics::decode(quantizer->format, word)
                                                      : static_cast<double>(word);
    case DType::i32: return static_cast<std::int32_t>(word);
    case DType::bf16: return numerics::from_bf16(static_cast<std::uint16_t>(word));
    case DType::f32: return numerics::bits_float(word);
    case DType::f64: break;
  }
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::optional<ElementDifference> first_element(const HostCopy& a, const HostCopy& b,
                                               const std::optional<QuantSpec>& quantizer_a,
                                               const std::optional<QuantSpec>& quantizer_b) {
  ElementDifference found;
  found.of = a.view.size();
  for (std::int64_t i = 0; i < found.of; ++i) {
    const std::uint64_t x = bits_of(a.view, i), y = bits_of(b.view, i);
    if (x == y || found.count++ > 0) continue;
    found.dtype = a.view.dtype;
    found.row = i / a.view.cols;
    found.col = i % a.view.cols;
    found.bits_a = x;
    found.bits_b = y;
    found.value_a = value_of(x, a.view.dtype, quantizer_a);
    found.value_b = value_of(y, b.view.dtype, quantizer_b);
  }
  if (found.count == 0) return std::nullopt;
  return found;
}

TileOfElement tile_of(const QuantSpec& spec, bool is_scale, const ElementDifference& element) {
  const TileShape shape = spec.scale_tile();
  TileOfElement tile{element.row, element.col, shape.rows, shape.cols};
  if (is_scale) return tile;
  tile.row = shape.rows == 0 ? 0 : element.row / shape.rows;
  tile.col = shape.cols == 0 ? 0 : element.col / shape.cols;
  return tile;
}

/// Both sides, and the folder of their temporary files.
class Search {
 public:
  Search(const ReplaySource& a, const ReplaySource& b, const StartPoint& start, Execution::Say say)
      : sources_{a, b}, start_(start), say_(std::move(say)) {
    // Operations are compared one by one; how often they are repeated changes no bit.
    const MemoryConfig& own = sources_[0].config.memory;
    MemoryConfig& other = sources_[1].config.memory;
    other.recompute = own.recompute;
    other.weight_codes = own.weight_codes;
  }

  ExecutedAgain up_to(std::int64_t step);

 private:
  Walk walk(std::size_t side, std::int64_t last);
  void say(const std::string& phase) const {
    if (say_) say_(phase);
  }
  LocatedDifference in_trace(const Walk& a, const Walk& b) const;
  void look_at_operation(const Walk& a, const Walk& b, LocatedDifference& found) const;
  void look_at_state(const Walk& a, const Walk& b, LocatedDifference& found) const;

  std::array<ReplaySource, 2> sources_;
  StartPoint start_;
  Execution::Say say_;
  TemporaryFolder folder_;
};

Walk Search::walk(std::size_t side, std::int64_t last) {
  const ReplaySource& source = sources_[side];
  Replay replay(source, start_, say_);
  Walk walk;
  say(fmt::format("executing {} again up to step {}", source.name, last));
  for (std::int64_t step = replay.position().step + 1; step <= last; ++step) {
    if (replay.is_complete()) {
      throw InputError({.where = source.name,
                        .reason = fmt::format("has no step {}: its configuration ends after {}",
                                              step, replay.position().step)});
    }
    replay.prepare();
    std::vector<std::uint64_t> state = replay.state_hashes();
    walk.state_names = replay.state_names();
    walk.states.push_back(hash_of(walk.state_names, state));
    if (step < last) {
      walk.steps.push_back(replay.step().record);
      continue;
    }
    walk.last_state = std::move(state);
    const std::filesystem::path file = folder_ / (side == 0 ? "a.safetensors" : "b.safetensors");
    replay.save(file);
    walk.before_last.checkpoint = std::make_shared<const CheckpointFile>(file);
    walk.before_last.position = replay.position();
    TraceObserver trace(replay.hashes());
    walk.steps.push_back(replay.step(&trace).record);
    walk.trace = trace.take();
  }
  say("");
  return walk;
}

LocatedDifference Search::in_trace(const Walk& a, const Walk& b) const {
  LocatedDifference found;
  found.step = a.steps.back().step;
  const std::size_t both = std::min(a.trace.size(), b.trace.size());
  for (std::size_t i = 0; i < std::max(a.trace.size(), b.trace.size()); ++i) {
    const bool is_same = i < both && a.trace[i].is_same_as(b.trace[i]);
    if (is_same && a.trace[i].hash == b.trace[i].hash) continue;
    found.where = is_same ? Where::operation : Where::order;
    if (i < a.trace.size()) found.a = a.trace[i];
    if (i < b.trace.size()) found.b = b.trace[i];
    break;
  }
  return found;
}

void Search::look_at_operation(const Walk& a, const Walk& b, LocatedDifference& found) const {
  std::array<CapturedOperation, 2> captured;
  for (std::size_t side = 0; side < 2; ++side) {
    say("looking at the operation of " + sources_[side].name);
    Replay replay(sources_[side], (side == 0 ? a : b).before_last);
    replay.prepare();
    CaptureObserver capture(replay.backend(), (side == 0 ? found.a : found.b)->operation);
    replay.step(&capture);
    captured[side] = capture.take();
  }
  const auto output = static_cast<std::size_t>(found.a->index);
  const std::optional<QuantSpec>& quantizer = captured[0].quantizers[output];
  found.element = first_element(captured[0].outputs[output], captured[1].outputs[output], quantizer,
                                captured[1].quantizers[output]);
  if (!found.element) return;
  if (quantizer && found.a->name != "clamp bounds") {
    found.tile = tile_of(*quantizer, found.a->name == "scales", *found.element);
  }
  if (captured[0].gemm && captured[1].gemm) {
    const ElementDifference& at = *found.element;
    found.gemm = compare_gemm_element(*captured[0].gemm, *captured[1].gemm, at.row, at.col,
                                      at.bits_a, at.bits_b);
  }
}

void Search::look_at_state(const Walk& a, const Walk& b, LocatedDifference& found) const {
  found.where = Where::state;
  found.step = a.steps.back().step;
  std::array<std::size_t, 2> index{};
  for (std::size_t i = 0; i < a.state_names.size() && found.state.empty(); ++i) {
    const auto other = std::find(b.state_names.begin(), b.state_names.end(), a.state_names[i]);
    if (other == b.state_names.end()) continue;
    index = {i, static_cast<std::size_t>(other - b.state_names.begin())};
    if (a.last_state[i] != b.last_state[index[1]]) found.state = a.state_names[i];
  }
  if (found.state.empty()) {
    found.state = "the parameters are not the same ones";
    return;
  }
  std::array<HostCopy, 2> values;
  for (std::size_t side = 0; side < 2; ++side) {
    Replay replay(sources_[side], (side == 0 ? a : b).before_last);
    replay.prepare();
    values[side] = download(replay.backend(), replay.state(index[side]));
  }
  const TensorView &left = values[0].view, &right = values[1].view;
  if (left.dtype != right.dtype || left.rows != right.rows || left.cols != right.cols) return;
  found.element = first_element(values[0], values[1], {}, {});
}

ExecutedAgain Search::up_to(std::int64_t step) {
  ExecutedAgain again;
  // The step whose initial state is known to differ, although the step before it has equal outputs.
  std::int64_t begins_otherwise = start_.position.step + 1;
  for (std::int64_t last = step;;) {
    const Walk a = walk(0, last), b = walk(1, last);
    const auto [x, y] = std::mismatch(a.states.begin(), a.states.end(), b.states.begin());
    if (last == step) {
      again.a = a.steps;
      again.b = b.steps;
    }
    if (x == a.states.end()) {
      again.difference = in_trace(a, b);
      if (again.difference.where == Where::nowhere && last < step) {
        begins_otherwise = ++last;
        continue;
      }
      if (again.difference.where == Where::operation) look_at_operation(a, b, again.difference);
    } else {
      const std::int64_t differs = a.steps[static_cast<std::size_t>(x - a.states.begin())].step;
      const std::int64_t culprit = differs == begins_otherwise ? differs : differs - 1;
      if (culprit != last) {
        last = culprit;
        continue;
      }
      look_at_state(a, b, again.difference);
    }
    say("");
    return again;
  }
}

}  // namespace

ExecutedAgain locate_difference(const ReplaySource& a, const ReplaySource& b,
                                const StartPoint& start, std::int64_t step,
                                const Execution::Say& say) {
  return Search(a, b, start, say).up_to(step);
}

}  // namespace fp8lab
