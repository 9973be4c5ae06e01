// A linear layer on tensors of the caller: the bits of LinearFunction with memory of its own, in
// any order of passes.
#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/config/config.hpp"
#include "src/interface/linear_layer.hpp"

#ifdef FP8LAB_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

using namespace fp8lab;
using interface::Device, interface::LayerDescription, interface::LinearLayer, interface::Moment;

namespace {

constexpr std::int64_t kIn = 160, kOut = 96;

using Bytes = std::vector<std::byte>;

/// The stream of a caller, and its memory.
#ifdef FP8LAB_HAVE_CUDA
constexpr const char* kBackend = "cuda";
struct Caller {
  Caller() { REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess); }
  ~Caller() {
    for (void* each : memory) cudaFree(each);
    cudaStreamDestroy(stream);
  }
  void* allocate(std::size_t bytes) {
    void* made = nullptr;
    REQUIRE(cudaMalloc(&made, bytes) == cudaSuccess);
    return memory.emplace_back(made);
  }
  void* upload(const Bytes& bytes) {
    void* made = allocate(bytes.size());
    cudaMemcpyAsync(made, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream);
    return made;
  }
  Bytes download(const void* from, std::size_t size) {
    Bytes bytes(size);
    cudaMemcpyAsync(bytes.data(), from, size, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    return bytes;
  }
  cudaStream_t stream = nullptr;
  std::vector<void*> memory;
};
#else
constexpr const char* kBackend = "cpu";
struct Caller {
  ~Caller() {
    for (void* each : memory) std::free(each);
  }
  void* allocate(std::size_t bytes) {
    return memory.emplace_back(std::aligned_alloc(256, (bytes / 256 + 1) * 256));
  }
  void* upload(const Bytes& bytes) {
    void* made = allocate(bytes.size());
    std::memcpy(made, bytes.data(), bytes.size());
    return made;
  }
  static Bytes download(const void* from, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(from);
    return {first, first + size};
  }
  void* stream = nullptr;
  std::vector<void*> memory;
};
#endif

Bytes drawn(DType dtype, std::int64_t count, std::uint32_t seed) {
  Bytes bytes(static_cast<std::size_t>(count) * size_of(dtype));
  std::uint32_t state = seed * 7919u + 1u;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) *
                        static_cast<float>(1 + (i % 7 == 3 ? 40 : 0));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);  // a value of bf16
    std::byte* const to = bytes.data() + static_cast<std::size_t>(i) * size_of(dtype);
    if (dtype == DType::bf16) {
      std::memcpy(to, &half, sizeof half);
    } else {
      std::memcpy(to, &bits, sizeof bits);
    }
  }
  return bytes;
}

/// The inputs of a pass.
struct Given {
  std::int64_t rows;
  Bytes x, w, bias, dy;
};

Given make(const LayerDescription& layer, std::int64_t rows, std::uint32_t seed) {
  return {rows, drawn(layer.activation, rows * layer.in, seed),
          drawn(layer.weight, layer.out * layer.in, 900), drawn(layer.weight, layer.out, 901),
          drawn(layer.activation, rows * layer.out, seed + 1)};
}

struct Results {
  Bytes y, dx, dw, dbias;
  bool operator==(const Results&) const = default;
};

/// A layer and the tensors of its passes.
class AtWork {
 public:
  AtWork(Device& device, const LayerDescription& description) : layer_(description) {
    const Device::Turn turn(device, caller_.stream);
    linear_ = std::make_unique<LinearLayer>(device, turn, description);
    workspace_ = caller_.allocate(static_cast<std::size_t>(linear_->workspace_bytes()) + 1);
  }

  Bytes forward(const Given& given, const Moment& moment) {
    // What an earlier pass left is of no use.
    caller_.upload(Bytes(1));
    const std::size_t size = static_cast<std::size_t>(given.rows * layer_.out);
    void* const y = caller_.allocate(size * size_of(layer_.activation));
    linear_->forward(
        moment, given.rows,
        {caller_.upload(given.x), caller_.upload(given.w), caller_.upload(given.bias), y},
        workspace_, caller_.stream);
    return caller_.download(y, size * size_of(layer_.activation));
  }

  Results backward(const Given& given, const Moment& moment, const Bytes& y) {
    void* const dx = caller_.allocate(given.x.size());
    void* const dw = caller_.allocate(given.w.size());
    void* const dbias = caller_.allocate(given.bias.size());
    linear_->backward(
        moment, given.rows,
        {caller_.upload(given.x), caller_.upload(given.w), caller_.upload(given.dy), dx, dw, dbias},
        workspace_, caller_.stream);
    return {y, caller_.download(dx, given.x.size()), caller_.download(dw, given.w.size()),
            caller_.download(dbias, given.bias.size())};
  }

  Results both(const Given& given, const Moment& moment) {
    const Bytes y = forward(given, moment);
    return backward(given, moment, y);
  }

  LinearLayer& linear() { return *linear_; }
  void end_step() { linear_->end_step(caller_.stream); }
  std::vector<float> state(std::size_t index) {
    std::vector<float> values(static_cast<std::size_t>(linear_->states().at(index).values.size()));
    steps = linear_->read_state(index, values.data(), caller_.stream);
    return values;
  }
  void set_state(std::size_t index, const std::vector<float>& values, std::int64_t count) {
    linear_->write_state(index, values.data(), count, caller_.stream);
  }
  Caller& caller() { return caller_; }

  std::int64_t steps = 0;

 private:
  LayerDescription layer_;
  Caller caller_;
  std::unique_ptr<LinearLayer> linear_;
  void* workspace_ = nullptr;
};

/// The same passes of a LinearFunction whose operands have memory of their own.
class Expected {
 public:
  explicit Expected(const LayerDescription& layer)
      : backend_(make_backend("cpu", 1)),
        function_(*backend_, describe(layer)),
        memory_(function_.make_operands()),
        layer_(layer) {}

  static LinearDescription describe(const LayerDescription& layer) {
    LinearDescription description;
    description.name = layer.name;
    description.index = layer.index;
    description.recipe = layer.recipe;
    description.tokens = layer.tokens;
    description.in = layer.in;
    description.out = layer.out;
    description.activation = layer.activation;
    description.master_weight = layer.weight;
    description.weight_gradient = layer.weight;
    return description;
  }

  Results both(const Given& given, const Moment& moment) {
    Backend& backend = *backend_;
    const std::size_t mark = backend.memory_mark();
    const auto uploaded = [&](const Bytes& bytes, DType dtype, std::int64_t rows,
                              std::int64_t cols) {
      const TensorView view = backend.allocate(dtype, rows, cols);
      backend.upload(view, bytes.data());
      return view;
    };
    const auto as = [&](const TensorView& view, DType dtype) {
      const TensorView copy = backend.allocate(dtype, view.rows, view.cols);
      backend.run(ops::Copy{view, copy});
      return copy;
    };
    const auto bytes_of = [&](const TensorView& view) {
      Bytes bytes(static_cast<std::size_t>(view.size()) * size_of(view.dtype));
      backend.download(bytes.data(), view);
      return bytes;
    };
    const DType activation = layer_.activation, weight = layer_.weight;
    const TensorView x = uploaded(given.x, activation, given.rows, layer_.in);
    const TensorView dy = uploaded(given.dy, activation, given.rows, layer_.out);
    const TensorView master = uploaded(given.w, weight, layer_.out, layer_.in);
    const TensorView working = weight == activation ? master : as(master, activation);
    const TensorView bias = as(uploaded(given.bias, weight, 1, layer_.out), activation);
    const TensorView y =
        backend.allocate(layer_.recipe.gemm(GemmRole::fprop).output, given.rows, layer_.out);
    const TensorView dx =
        backend.allocate(layer_.recipe.gemm(GemmRole::dgrad).output, given.rows, layer_.in);
    const TensorView dw = backend.allocate(weight, layer_.out, layer_.in);
    const TensorView dbias = backend.allocate(DType::f32, 1, layer_.out);
    StepContext context;
    context.seed = moment.seed;
    context.step = moment.step;
    context.micro_batch = moment.micro_batch;
    StepContext of_step = context;
    of_step.micro_batch = 0;
    const LinearInputs inputs{x, {master, working}};
    function_.prepare_weights(memory_.operands, of_step, inputs.w);
    function_.forward(memory_.operands, context, inputs, bias, y);
    function_.backward(memory_.operands, context, inputs, dy, {.dx = dx, .dw = dw, .bias = dbias});
    const Results results = {bytes_of(as(y, activation)), bytes_of(as(dx, activation)),
                             bytes_of(dw), bytes_of(as(dbias, weight))};
    backend.release_to(mark);
    return results;
  }

  void end_step() {
    memory_.operands.update_delayed_scales();
    memory_.operands.end_step();
  }
  void discard() { memory_.operands.discard_amaxes(); }

 private:
  std::unique_ptr<Backend> backend_;
  LinearFunction function_;
  LinearMemory memory_;
  LayerDescription layer_;
};

LayerDescription described(const std::string& recipe, DType activation, DType weight,
                           std::int64_t tokens) {
  LayerDescription layer;
  layer.name = "model.layers.0.mlp.down_proj";
  layer.index = 5;
  layer.recipe = load_recipe(recipe).linear;
  layer.tokens = tokens;
  layer.in = kIn;
  layer.out = kOut;
  layer.activation = activation;
  layer.weight = weight;
  return layer;
}

/// Both orientations of every kind: from the tensor, from codes, in a transformed space, smoothed,
/// clamped, with an estimator, delayed, not quantized.
const std::vector<std::string> kRecipes = {"infir2", "mxfp8",   "te_delayed", "nvfp4",
                                           "bf16",   "quartet", "fp4_dge_occ"};

}  // namespace

TEST_CASE("passes in any order have the bits of a layer with memory of its own") {
  const std::string recipe = GENERATE(from_range(kRecipes));
  const auto types = GENERATE(table<DType, DType>(
      {{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::f32}}));
  CAPTURE(recipe);
  const LayerDescription layer = described(recipe, std::get<0>(types), std::get<1>(types), 64);
  Device device(kBackend, 0, 1);
  AtWork work(device, layer);
  Expected expected(layer);
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Given a = make(layer, 64, 10 * step + 1), b = make(layer, 64, 10 * step + 5);
    const Moment first{3, step, 0}, second{3, step, 1};
    const Results want_a = expected.both(a, first), want_b = expected.both(b, second);
    expected.end_step();
    const Bytes ya = work.forward(a, first), yb = work.forward(b, second);
    CHECK(work.forward(a, first) == ya);  // activation checkpointing
    CHECK((work.backward(a, first, ya) == want_a));
    CHECK((work.backward(b, second, yb) == want_b));
    work.end_step();
  }
}

TEST_CASE("a pass of fewer rows has the bits of a layer for that many") {
  const std::string recipe = GENERATE(from_range(kRecipes));
  CAPTURE(recipe);
  Device device(kBackend, 0, 1);
  AtWork large(device, described(recipe, DType::bf16, DType::bf16, 128));
  const LayerDescription small = described(recipe, DType::bf16, DType::bf16, 32);
  AtWork exact(device, small);
  const Moment moment{3, 2, 0};
  large.both(make(small, 128, 40), {3, 1, 0, false, false});
  const Given given = make(small, 32, 50);
  CHECK((large.both(given, moment) == exact.both(given, moment)));
}

TEST_CASE("gradients that are not wanted change no other") {
  Device device(kBackend, 0, 1);
  const LayerDescription layer = described("infir2", DType::bf16, DType::bf16, 32);
  AtWork work(device, layer);
  const Given given = make(layer, 32, 60);
  const Results all = work.both(given, {});
  Caller& caller = work.caller();
  void* const workspace =
      caller.allocate(static_cast<std::size_t>(work.linear().workspace_bytes()));
  const auto only = [&](void* dx, void* dw, void* dbias) {
    work.linear().backward(
        {}, 32,
        {caller.upload(given.x), caller.upload(given.w), caller.upload(given.dy), dx, dw, dbias},
        workspace, caller.stream);
  };
  void* const dx = caller.allocate(all.dx.size());
  void* const dw = caller.allocate(all.dw.size());
  void* const dbias = caller.allocate(all.dbias.size());
  only(dx, nullptr, nullptr);
  CHECK((caller.download(dx, all.dx.size()) == all.dx));
  only(nullptr, dw, nullptr);
  CHECK((caller.download(dw, all.dw.size()) == all.dw));
  only(nullptr, nullptr, dbias);
  CHECK((caller.download(dbias, all.dbias.size()) == all.dbias));
}

TEST_CASE("an evaluation leaves the amaxes of the step, and a state continues in another layer") {
  Device device(kBackend, 0, 1);
  const LayerDescription layer = described("te_delayed", DType::bf16, DType::f32, 32);
  AtWork work(device, layer), other(device, layer);
  const Given given = make(layer, 32, 70), loud = make(layer, 32, 71);
  work.both(given, {});
  const std::vector<float> before = work.state(0);
  CHECK(before[DelayedState::kAmax] > 0.0f);
  Given louder = loud;
  louder.x = louder.dy = Bytes(louder.x.size(), std::byte{0x45});  // 3156.3 as bf16
  louder.dy.resize(loud.dy.size());
  work.both(louder, {0, 0, 0, false, false});
  CHECK(work.state(0) == before);
  work.end_step();
  REQUIRE(work.linear().states().size() == work.linear().history_count());
  for (std::size_t i = 0; i < work.linear().states().size(); ++i) {
    const std::vector<float> values = work.state(i);
    CHECK(work.steps == 1);
    other.set_state(i, values, work.steps);
  }
  const Moment next{0, 1, 0};
  const Results want = work.both(loud, next);
  CHECK((other.both(loud, next) == want));
  AtWork fresh(device, layer);
  CHECK_FALSE((fresh.both(loud, next) == want));
}

TEST_CASE("amaxes of other processes count") {
  Device device(kBackend, 0, 1);
  const LayerDescription layer = described("te_delayed", DType::bf16, DType::bf16, 32);
  AtWork quiet(device, layer), loud(device, layer);
  const Given given = make(layer, 32, 80);
  Given large = given;
  for (std::size_t i = 1; i < large.x.size(); i += 2) {  // 4 times as large: 2 more in the exponent
    large.x[i] = static_cast<std::byte>(std::to_integer<unsigned>(large.x[i]) + 1u);
  }
  quiet.both(given, {});
  loud.both(large, {});
  std::vector<float> amaxes(loud.linear().history_count());
  loud.linear().read_amaxes(amaxes.data(), loud.caller().stream);
  CHECK(amaxes[0] == loud.state(0)[DelayedState::kAmax]);
  quiet.linear().write_amaxes(amaxes.data(), quiet.caller().stream);
  quiet.end_step();
  loud.end_step();
  CHECK(quiet.state(0) == loud.state(0));
}

TEST_CASE("what a layer refuses has its name") {
  Device device(kBackend, 0, 1);
  LayerDescription layer = described("infir2", DType::bf16, DType::bf16, 32);
  layer.has_backward = false;
  AtWork work(device, layer);
  const Given given = make(layer, 32, 90);
  work.forward(given, {});
  CHECK_THROWS_WITH(work.backward(given, {}, {}),
                    "model.layers.0.mlp.down_proj: made for forward passes only");
  CHECK_THROWS_WITH(work.forward(make(layer, 33, 91), {}),
                    "model.layers.0.mlp.down_proj: 33 rows; accepted: 1 to 32");
  // The transform along the tokens of wgrad does not fit; the device goes on.
  CHECK_THROWS_WITH(AtWork(device, described("nvfp4", DType::bf16, DType::bf16, 38)),
                    Catch::Matchers::Contains("model.layers.0.mlp.down_proj"));
  work.forward(given, {});
}
