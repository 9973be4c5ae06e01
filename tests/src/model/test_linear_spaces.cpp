// Second orientations made from codes in the space of a transform: the products of a linear layer
// come out where the tensors are.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/config/config.hpp"
#include "src/model/linear/linear.hpp"

using namespace fp8lab;

namespace {

constexpr std::int64_t kTokens = 16, kIn = 64, kOut = 32;

/// A matrix of whole numbers, row by row.
using Numbers = std::vector<float>;

/// -8, 0 and 8, so that two Hadamard transforms with factors of at least 1/8 in all leave whole
/// numbers that int8 holds. Columns differ by powers of two where `uneven`.
Numbers drawn(std::int64_t rows, std::int64_t cols, std::uint32_t seed, bool uneven) {
  Numbers numbers;
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    state = state * 1664525u + 1013904223u;
    const auto step = static_cast<float>(static_cast<int>((state >> 20) % 3) - 1);
    numbers.push_back(8.0f * step * (uneven ? 1.0f / static_cast<float>(1 << (i % cols % 4)) : 1));
  }
  return numbers;
}

/// A (m, k) B (k, n), by strides, so that either may be a transpose.
Numbers product(const Numbers& a, std::int64_t m_step, std::int64_t ka_step, const Numbers& b,
                std::int64_t kb_step, std::int64_t n_step, std::int64_t m, std::int64_t n,
                std::int64_t k) {
  Numbers d;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<std::size_t>(i * m_step + l * ka_step)] *
               b[static_cast<std::size_t>(l * kb_step + j * n_step)];
      }
      d.push_back(sum);
    }
  }
  return d;
}

/// A layer of int8 operands with scale 1, which hold whole numbers without error, but for what
/// `slots` says.
class LayerAtWork {
 public:
  LayerAtWork(const std::string& backend_name, const std::string& slots, const Numbers& w)
      : backend_(make_backend(backend_name, 1)), workspace_(*backend_) {
    const Recipe recipe = parse_recipe(
        "name = \"spaces\"\n[slots.default]\nformat = \"int8\"\nscale_source = \"static\"\n"
        "static_scale = 1.0\n" +
            slots + "[gemm]\naccumulator = \"ideal_exact\"\noutput = \"fp32\"\n",
        "spaces.toml");
    weight_.tensors.master = uploaded(w, kOut, kIn);
    weight_.tensors.gradient = empty(kOut, kIn);
    linear_ = std::make_unique<Linear>(*backend_, workspace_, "spaces", 3, recipe.linear, weight_,
                                       nullptr, kTokens, Purpose::training, OperandLife{});
    workspace_.allocate();
  }

  /// A step of two micro-batches, both of them (x, dy).
  void step(const Numbers& x, const Numbers& dy) {
    const TensorView x_view = uploaded(x, kTokens, kIn), dy_view = uploaded(dy, kTokens, kOut);
    const TensorView y_view = empty(kTokens, kOut), dx_view = empty(kTokens, kIn);
    StepContext context;
    context.seed = 5;
    context.step = 7;
    context.log_statistics = backend_->name() == "cpu";
    linear_->prepare_weights(context);
    for (context.micro_batch = 0; context.micro_batch < 2; ++context.micro_batch) {
      context.adds_to_gradients = context.micro_batch > 0;
      linear_->forward(context, x_view, y_view);
      linear_->backward(context, x_view, dy_view, dx_view);
    }
    linear_->operands().update_delayed_scales();
    linear_->operands().end_step();
    y = downloaded(y_view);
    dx = downloaded(dx_view);
    dw = downloaded(weight_.gradient());
    if (!context.log_statistics) return;
    std::vector<std::byte> bytes(kSlots.size() * sizeof(OperandStatistics));
    backend_->download(bytes.data(), linear_->statistics());
    statistics.resize(kSlots.size());
    std::memcpy(statistics.data(), bytes.data(), bytes.size());
  }

  const OperandStatistics& of(Slot slot) const {
    return statistics[static_cast<std::size_t>(slot)];
  }

  Numbers y, dx, dw;                          ///< of the last step
  std::vector<OperandStatistics> statistics;  ///< by slot; empty on the truth path

 private:
  TensorView empty(std::int64_t rows, std::int64_t cols) {
    return backend_->allocate(backend_->storage(DType::f32), rows, cols);
  }
  TensorView uploaded(const Numbers& numbers, std::int64_t rows, std::int64_t cols) {
    const TensorView view = empty(rows, cols);
    const std::vector<double> wide(numbers.begin(), numbers.end());
    backend_->upload(view, view.dtype == DType::f64 ? static_cast<const void*>(wide.data())
                                                    : static_cast<const void*>(numbers.data()));
    return view;
  }
  Numbers downloaded(const TensorView& view) {
    Numbers numbers(static_cast<std::size_t>(view.size()));
    download_floats(*backend_, view, numbers);
    return numbers;
  }

  std::unique_ptr<Backend> backend_;
  Workspace workspace_;
  Parameter weight_;
  std::unique_ptr<Linear> linear_;
};

struct Case {
  const char* what;
  const char* slots;
  bool uneven = false;  ///< for smoothing: channels of different ranges
};

const Case kCases[] = {
    {"both operands of the backward pass, each behind a transform of its own",
     "[slots.fprop]\nx.transform = \"hadamard:4:drawn\"\nw.transform = \"hadamard:4:drawn\"\n"
     "[slots.dgrad]\ndy.transform = \"hadamard:16:drawn\"\nw.transform = \"hadamard:16:drawn\"\n"
     "w.orientation_source = \"transformed\"\n"
     "[slots.wgrad]\ndy.transform = \"hadamard:4:+-\"\nx.transform = \"hadamard:4:+-\"\n"
     "x.orientation_source = \"transformed\"\n"},
    {"all of K, signs after it, codes as they are",
     "[slots.fprop]\nx.transform = \"hadamard:full:drawn:after\"\n"
     "w.transform = \"hadamard:full:drawn:after\"\n"
     "[slots.x]\norientation_source = \"transformed\"\n"
     "[slots.w]\norientation_source = \"transformed\"\n"},
    {"the left operand of wgrad",
     "[slots.dgrad]\ndy.transform = \"hadamard:16:+--+:after\"\n"
     "w.transform = \"hadamard:16:+--+:after\"\n"
     "[slots.wgrad.dy]\norientation_source = \"transformed\"\n"},
    {"all three tensors, both sides of wgrad",
     "[slots.fprop]\nx.transform = \"hadamard:16\"\nw.transform = \"hadamard:16\"\n"
     "[slots.dgrad]\ndy.transform = \"hadamard:4:drawn\"\nw.transform = \"hadamard:4:drawn\"\n"
     "[slots.x]\norientation_source = \"transformed\"\n"
     "[slots.w]\norientation_source = \"transformed\"\n"
     "[slots.dy]\norientation_source = \"transformed\"\n"},
    {"left transforms beside spaces",
     "[slots.fprop]\nx.transform = \"hadamard:4\"\nw.transform = \"hadamard:4\"\n"
     "[slots.dgrad]\ndy.transform = \"left:hadamard:full\"\nw.orientation_source = "
     "\"transformed\"\n"
     "[slots.wgrad]\ndy.transform = \"left:hadamard:16:drawn\"\nx.orientation_source = "
     "\"transformed\"\n"},
    {"smoothed x and w",
     "[slots.fprop]\nx.transform = \"smooth:1\"\nw.transform = \"smooth:1\"\n"
     "[slots.dgrad.w]\norientation_source = \"transformed\"\n"
     "[slots.wgrad.x]\norientation_source = \"transformed\"\n",
     true},
    {"smoothed dy and w",
     "[slots.dgrad]\ndy.transform = \"smooth:1:static\"\nw.transform = \"smooth:1:static\"\n"
     "[slots.wgrad.dy]\norientation_source = \"transformed\"\n",
     true},
};

}  // namespace

TEST_CASE("weight gradients in BF16 are rounded one by one and added in FP32") {
  // 257 in each micro-batch lies between the BF16 values 256 and 258.
  Numbers x(kTokens * kIn, 16.0f), dy(kTokens * kOut, 1.0f);
  std::fill_n(x.begin(), kIn, 17.0f);
  const Numbers w(kOut * kIn, 1.0f);
  LayerAtWork wide("cpu", "", w), narrow("cpu", "[gemm.wgrad]\noutput = \"bf16\"\n", w);
  wide.step(x, dy);
  narrow.step(x, dy);
  CHECK(wide.dw == Numbers(kOut * kIn, 514.0f));
  CHECK(narrow.dw == Numbers(kOut * kIn, 512.0f));
  CHECK(narrow.dx == wide.dx);
}

TEST_CASE(
    "products of operands in a space are those of the tensors, exactly where nothing rounds") {
  for (const Case& c : kCases) {
    const Numbers x = drawn(kTokens, kIn, 1, c.uneven), w = drawn(kOut, kIn, 2, false),
                  dy = drawn(kTokens, kOut, 3, c.uneven);
    const Numbers y = product(x, kIn, 1, w, 1, kIn, kTokens, kOut, kIn);
    const Numbers dx = product(dy, kOut, 1, w, kIn, 1, kTokens, kIn, kOut);
    Numbers dw = product(dy, 1, kOut, x, kIn, 1, kOut, kIn, kTokens);
    for (float& value : dw) value *= 2;  // two micro-batches
    for (const char* backend : {"cpu", "truth"}) {
      INFO(c.what << " on " << backend);
      LayerAtWork layer(backend, c.slots, w);
      layer.step(x, dy);
      CHECK(layer.y == y);
      CHECK(layer.dx == dx);
      CHECK(layer.dw == dw);
      for (const OperandStatistics& operand : layer.statistics)
        CHECK(operand.sqnr_db == std::numeric_limits<double>::infinity());
    }
  }
}

TEST_CASE("behind a smoothing a delayed scale follows channels that grow, without it does not") {
  const std::string delayed =
      "[slots.x]\nformat = \"e4m3fn\"\nscale_source = \"delayed\"\nhistory = 1\n"
      "[slots.w]\nformat = \"e4m3fn\"\nscale_source = \"current\"\n";
  const std::string smoothed =
      "[slots.wgrad.x]\norientation_source = \"transformed\"\n"
      "[slots.fprop]\nx.transform = \"smooth:1\"\nw.transform = \"smooth:1\"\n";
  const Numbers w = drawn(kOut, kIn, 2, false), dy = drawn(kTokens, kOut, 3, false);
  const Numbers before = drawn(kTokens, kIn, 1, false);
  Numbers after = before;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (i % kIn == 5) after[i] *= 1024.0f;
  }
  const auto saturated = [&](const std::string& slots, Slot slot) {
    LayerAtWork layer("cpu", slots, w);
    for (int step = 0; step < 2; ++step) {
      layer.step(before, dy);
      CHECK((step == 0 || layer.of(slot).saturation_fraction == 0.0));
    }
    layer.step(after, dy);
    return layer.of(slot).saturation_fraction;
  };
  for (const Slot slot : {Slot::fprop_x, Slot::wgrad_x}) {
    INFO(slot_name(slot));
    CHECK(saturated(delayed, slot) > 0.005);
    CHECK(saturated(delayed + smoothed, slot) == 0.0);
  }
  // A weight that the factors are in would saturate under the scale of the step before.
  const std::string late = "w.scale_source = \"delayed\"\nw.history = 1\n";
  CHECK(saturated(delayed + smoothed + late, Slot::fprop_w) > 0.005);
  CHECK(saturated(delayed + smoothed, Slot::fprop_w) == 0.0);
}
