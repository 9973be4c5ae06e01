// Every operation has random cases of every size.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "emulation/cases/list.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/recording/observed_backend.hpp"
#include "tests/emulation/cases/drawn_cases.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

TEST_CASE("every operation draws a case in every round") {
  for (const CaseSource& source : kCaseSources) {
    for (int round = 0; round < 5; ++round) {
      INFO(source.operation << " round " << round);
      CHECK(draws_a_case(source, round));
    }
  }
}

TEST_CASE("cases follow from operation, seed and round alone") {
  const auto words = [](const CaseSource& source, std::uint64_t seed) {
    std::vector<std::string> drawn;
    for_each_case(source, seed, 0, [&](const OperationCase& c) {
      drawn.push_back(c.name + " " + c.what);
      for (const HostTensor& tensor : c.tensors) {
        const auto* const bytes = reinterpret_cast<const char*>(tensor.data.data());
        drawn.emplace_back(bytes, tensor.data.size());
      }
    });
    return drawn;
  };
  for (const char* name : {"add", "update_delayed_scale", "rotate_back"}) {
    const CaseSource& source = source_of(name);
    const auto first = words(source, 1);
    CHECK((first == words(source, 1)));
    CHECK((first != words(source, 2)));
  }
}

TEST_CASE("every producer is quantized in one and in both orientations") {
  std::set<std::string> one, both;
  for_each_case(source_of("produce_quantize"), 1, 0, [&](const OperationCase& c) {
    const std::string producer = c.name.substr(0, c.name.find(' '));
    (c.what.find("both") == std::string::npos ? one : both).insert(producer);
  });
  CHECK(one.size() == std::variant_size_v<ops::Producer>);
  CHECK(both == one);
}

TEST_CASE("cases write their outputs and nothing else") {
  cpu::CpuBackend backend(0);
  for (const CaseSource& source : kCaseSources) {
    int writing = 0;
    for_each_case(source, 3, 0, [&](const OperationCase& c) {
      const std::vector<HostTensor> after = run_on_host(c, backend);
      for (std::size_t i = 0; i < after.size(); ++i) {
        const bool written = after[i].data != c.tensors[i].data;
        if (written && c.tensors[i].output) ++writing;
        if (!written || c.tensors[i].output) continue;
        FAIL(c.name << " " << c.what << ": wrote tensor " << i << ", which is no output");
      }
    });
    INFO(source.operation);
    CHECK(writing > 0);
  }
}

namespace {

/// Notes where operations say that they write.
class Writes final : public OperationObserver {
 public:
  void after(const AnyOperation& op, const Label&) override {
    for (const OperationTensor& output : outputs_of(op)) places.push_back(output.view.data);
  }
  std::vector<const void*> places;
};

bool contains(const HostTensor& tensor, const void* place) {
  const auto* const byte = static_cast<const std::byte*>(place);
  return byte >= tensor.data.data() && byte < tensor.data.data() + tensor.data.size();
}

}  // namespace

TEST_CASE("operations name all that they write and nothing else") {
  cpu::CpuBackend cpu(0);
  for (const CaseSource& source : kCaseSources) {
    for_each_case(source, 4, 0, [&](const OperationCase& c) {
      INFO(c.name << " " << c.what);
      Writes writes;
      ObservedBackend backend(cpu);
      backend.observe(&writes);
      const std::vector<HostTensor> after = run_on_host(c, backend);
      for (std::size_t i = 0; i < after.size(); ++i) {
        INFO("tensor " << i);
        const bool named =
            std::any_of(writes.places.begin(), writes.places.end(),
                        [&](const void* place) { return contains(after[i], place); });
        // Where codes or a sum alone are kept, what they are made of holds anything.
        const bool is_kept = c.what.find("alone") == std::string::npos;
        if (is_kept && after[i].data != c.tensors[i].data) CHECK(named);
        if (named) CHECK(after[i].output);
      }
    });
  }
}

namespace {

/// Notes the memory that operations say they read.
class Reads final : public OperationObserver {
 public:
  void after(const AnyOperation& op, const Label&) override {
    for (const OperationTensor& tensor : tensors_of(op)) {
      // What an earlier operation of the case has written is no input of the case.
      const bool is_input = written_.count(tensor.view.data) == 0;
      if (tensor.access != Access::write && is_input) places.push_back(tensor.view.data);
      if (tensor.is_output()) written_.insert(tensor.view.data);
    }
  }
  std::vector<const void*> places;

 private:
  std::set<const void*> written_;
};

}  // namespace

TEST_CASE("operations name all that they read") {
  cpu::CpuBackend cpu(0);
  int spoiled = 0;
  for (const CaseSource& source : kCaseSources) {
    for_each_case(source, 4, 0, [&](const OperationCase& c) {
      INFO(c.name << " " << c.what);
      Reads reads;
      ObservedBackend backend(cpu);
      backend.observe(&reads);
      const std::vector<HostTensor> expected = run_on_host(c, backend);
      OperationCase changed = c;
      std::vector<bool> is_spoiled(c.tensors.size());
      for (std::size_t i = 0; i < c.tensors.size(); ++i) {
        const bool is_read =
            std::any_of(reads.places.begin(), reads.places.end(),
                        [&](const void* place) { return contains(expected[i], place); });
        if (is_read) continue;
        for (std::byte& byte : changed.tensors[i].data) byte ^= std::byte{0x5a};
        is_spoiled[i] = true;
        ++spoiled;
      }
      const std::vector<HostTensor> after = run_on_host(changed, cpu);
      for (std::size_t i = 0; i < after.size(); ++i) {
        INFO("tensor " << i);
        std::vector<std::byte> want = expected[i].data;
        const std::vector<std::byte>& before = c.tensors[i].data;
        for (std::size_t at = 0; is_spoiled[i] && at < want.size(); ++at) {
          const bool is_kept = after[i].data[at] == changed.tensors[i].data[at];
          if (is_kept && want[at] == before[at]) want[at] = after[i].data[at];  // not written
        }
        CHECK(after[i].data == want);
      }
    });
  }
  CHECK(spoiled > 500);
}
