// Buffers share memory exactly where none of them is in use with another.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "emulation/recording/recording_backend.hpp"
#include "src/backend/factory.hpp"
#include "src/model/workspace.hpp"

using namespace fp8lab;

namespace {

constexpr PassPhase kPhases[] = {PassPhase::weights,           PassPhase::attention,
                                 PassPhase::feed_forward,      PassPhase::head,
                                 PassPhase::recompute,         PassPhase::feed_forward_backward,
                                 PassPhase::attention_backward};

struct Declared {
  std::string name;
  LiveRange live;
  std::int64_t bytes;
};

/// Some buffers of up to `most` bytes, each in use in one phase or more.
std::vector<Declared> draw(std::mt19937& random, std::int64_t most) {
  std::vector<Declared> all;
  for (int i = 0; i < 24; ++i) {
    LiveRange live = kPhases[random() % std::size(kPhases)];
    while (random() % 2 == 0) live = live | kPhases[random() % std::size(kPhases)];
    all.push_back({std::to_string(i), live, 1 + static_cast<std::int64_t>(random()) % most});
  }
  return all;
}

/// Notes the buffers that are given up.
class Discards final : public PassThrough {
 public:
  explicit Discards(Backend& original) : PassThrough(original) {}
  void discard(const TensorView& view) override { seen.insert(view.data); }
#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { original().run(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION
  std::multiset<const void*> seen;
};

std::int64_t bytes_of_phase(const std::vector<Declared>& all, PassPhase phase) {
  std::int64_t sum = 0;
  for (const Declared& buffer : all) {
    if (buffer.live.has(phase)) sum += (buffer.bytes + 255) / 256 * 256;
  }
  return sum;
}

}  // namespace

TEST_CASE("buffers that are in use together are apart, and the rest costs little") {
  const auto cpu = make_backend("cpu", 1);
  std::mt19937 random(GENERATE(1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u));
  const std::vector<Declared> all = draw(random, GENERATE(1, 300, 100000));
  RecordingBackend backend(*cpu);
  Workspace workspace(backend);
  for (const Declared& d : all) workspace.reserve(d.name, d.live, DType::u8, 1, d.bytes);
  workspace.allocate();
  const auto begin = [&](const Declared& d) {
    const TensorView view = workspace.view(d.name, d.live, DType::u8, 1, d.bytes);
    return reinterpret_cast<std::uintptr_t>(view.data);
  };
  for (const Declared& a : all) {
    CHECK(begin(a) % 256 == begin(all.front()) % 256);
    for (const Declared& b : all) {
      if (&a == &b || !a.live.meets(b.live)) continue;
      INFO(a.name << " and " << b.name);
      const auto bytes = static_cast<std::uintptr_t>(a.bytes);
      CHECK((begin(a) + bytes <= begin(b) || begin(b) < begin(a)));
    }
  }
  // No placement takes less than the fullest phase.
  std::int64_t fullest = 0;
  for (const PassPhase phase : kPhases) {
    fullest = std::max(fullest, bytes_of_phase(all, phase));
  }
  const auto held = static_cast<std::int64_t>(backend.memory_bytes());
  CHECK(held >= fullest - 255);
  CHECK(held < fullest + fullest / 2);
}

TEST_CASE("uses of one name and range share a buffer of the largest") {
  const auto cpu = make_backend("cpu", 1);
  Workspace workspace(*cpu);
  workspace.reserve("a", PassPhase::head, DType::bf16, 4, 100);
  workspace.reserve("a", PassPhase::head, DType::f32, 8, 100);
  workspace.reserve("a", PassPhase::attention, DType::u8, 1, 10);
  workspace.allocate();
  CHECK(cpu->memory_bytes() == cpu->allocation_bytes(DType::u8, 1, 3200));
  const TensorView view = workspace.view("a", PassPhase::head, DType::f32, 8, 100);
  CHECK((view.rows == 8 && view.cols == 100 && view.contiguous()));
  CHECK(view.data == workspace.view("a", PassPhase::head, DType::bf16, 3, 7).data);
}

TEST_CASE("contents go on from phase to phase where the buffer is in use in both") {
  const auto cpu = make_backend("cpu", 1);
  Discards backend(*cpu);
  Workspace workspace(backend);
  const LiveRange both = LiveRange::from_to(PassPhase::attention, PassPhase::feed_forward);
  workspace.reserve("both", both, DType::u8, 1, 1000);
  workspace.reserve("second", PassPhase::feed_forward, DType::u8, 1, 1000);
  workspace.reserve("head", PassPhase::head, DType::u8, 1, 3000);
  workspace.allocate();
  const auto at = [&](const char* name, LiveRange live) {
    return workspace.view(name, live, DType::u8, 1, 1000).data;
  };
  const void *of_both = at("both", both), *of_second = at("second", PassPhase::feed_forward);
  const void* of_head = at("head", PassPhase::head);
  const auto enter = [&](PassPhase next) {
    backend.seen.clear();
    workspace.enter(next);
    return backend.seen;
  };
  using Seen = std::multiset<const void*>;
  CHECK(workspace.is_live(both));  // whoever uses it without phases may use all
  CHECK(enter(PassPhase::attention) == Seen{of_both});
  CHECK(enter(PassPhase::attention).empty());
  CHECK(at("both", both) == of_both);
  CHECK(workspace.is_live(both));
  CHECK_FALSE(workspace.is_live(PassPhase::feed_forward));
  CHECK(enter(PassPhase::feed_forward) == Seen{of_second});
  CHECK(workspace.is_live(both));
  CHECK(enter(PassPhase::head) == Seen{of_head});
  CHECK_FALSE(workspace.is_live(both));
  CHECK(enter(PassPhase::attention) == Seen{of_both});
}
