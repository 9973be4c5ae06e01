// The blocks `numbers` of emulation/specification.md, computed again.
// tests/python/test_specification.py does the same for the lines of Python.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/attention_weight.hpp"
#include "emulation/numerics/dynamic_tanh.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/gelu.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/relu2.hpp"
#include "emulation/numerics/tree_sum.hpp"
#include "emulation/numerics/xielu.hpp"
#include "tests/emulation/cpu/matrix.hpp"

namespace fp8lab {
namespace {

using Words = std::vector<std::string>;

/// One line "name: arguments -> result".
struct Line {
  std::string name;
  Words arguments;
  std::string result;
};

Words words_of(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<Line> lines_of_document() {
  std::ifstream file(FP8LAB_TEST_DATA "/../emulation/specification.md");
  REQUIRE(file.good());
  std::vector<Line> lines;
  bool inside = false;
  for (std::string text; std::getline(file, text);) {
    if (text.rfind("```", 0) == 0) {
      inside = text == "```numbers";
      continue;
    }
    if (!inside) continue;
    const std::size_t colon = text.find(": ");
    const std::size_t arrow = text.find(" -> ");
    INFO(text);
    REQUIRE(colon != std::string::npos);
    REQUIRE(arrow != std::string::npos);
    lines.push_back({text.substr(0, colon), words_of(text.substr(colon + 2, arrow - colon - 2)),
                     joined(words_of(text.substr(arrow + 4)))});
  }
  return lines;
}

float number(const std::string& word) {
  char* end = nullptr;
  const float value = std::strtof(word.c_str(), &end);
  INFO(word);
  REQUIRE(*end == '\0');
  return value;
}

std::uint32_t word32(const std::string& hexadecimal) {
  return static_cast<std::uint32_t>(std::stoul(hexadecimal, nullptr, 16));
}

/// fmt 10 prints a zero as 0x0p-1022.
std::string hexadecimal(float value) {
  if (value == 0.0f) return std::signbit(value) ? "-0x0p+0" : "0x0p+0";
  return fmt::format("{:a}", value);
}

std::string philox(const Words& arguments) {
  numerics::PhiloxCounter counter;
  for (std::size_t i = 0; i < 4; ++i) counter.word[i] = word32(arguments.at(i));
  REQUIRE(arguments.at(4) == "key");
  const auto block =
      numerics::philox4x32(counter, {{word32(arguments.at(5)), word32(arguments.at(6))}});
  return fmt::format("{:08X} {:08X} {:08X} {:08X}", block.word[0], block.word[1], block.word[2],
                     block.word[3]);
}

std::string random_word(const Words& arguments) {
  REQUIRE(arguments.at(0) == "seed");
  REQUIRE(arguments.at(2) == "index");
  return fmt::format("{:08X}", numerics::random_bits(std::stoull(arguments.at(1)), 0, 0, 0,
                                                     std::stoull(arguments.at(3))));
}

std::string tree_sum(const Words& arguments) {
  REQUIRE(arguments.at(0) == "harmonic");
  return hexadecimal(numerics::tree_sum(std::stoll(arguments.at(1)), [](std::int64_t i) {
    return 1.0f / static_cast<float>(i + 1);
  }));
}

template <float (*kFunction)(float)>
std::string function(const Words& arguments) {
  return hexadecimal(kFunction(number(arguments.at(0))));
}

/// One head of 16, all vectors zero beyond their first component: "q Q... k K... v V... kv_tile N",
/// and of the last token "out X lse Y".
std::string attention(const Words& arguments) {
  constexpr std::int64_t kHead = 16;
  const auto tokens = static_cast<std::int64_t>((arguments.size() - 5) / 3);
  test::Matrix q(DType::bf16, tokens, kHead), k(DType::bf16, tokens, kHead);
  test::Matrix v(DType::bf16, tokens, kHead), out(DType::f32, tokens, kHead);
  test::Matrix starts(DType::i32, 1, tokens), lse(DType::f32, 1, tokens);
  std::size_t at = 0;
  for (auto [name, matrix] : {std::pair{"q", &q}, std::pair{"k", &k}, std::pair{"v", &v}}) {
    REQUIRE(arguments.at(at++) == name);
    for (std::int64_t t = 0; t < tokens; ++t) {
      matrix->set(t * kHead, static_cast<double>(number(arguments.at(at++))));
    }
  }
  REQUIRE(arguments.at(at) == "kv_tile");
  AttentionShape shape{1, tokens, 1, 1, kHead};
  shape.kv_tile = std::stoll(arguments.at(at + 1));
  cpu::run(ops::AttentionForward{shape, q.view(), k.view(), v.view(), starts.view(), out.view(),
                                 lse.view()});
  return fmt::format("out {} lse {}", hexadecimal(static_cast<float>(out.at((tokens - 1) * kHead))),
                     hexadecimal(static_cast<float>(lse.at(tokens - 1))));
}

const std::map<std::string, std::string (*)(const Words&)> kFunctions = {
    {"philox", philox},
    {"random_word", random_word},
    {"tree_sum", tree_sum},
    {"exp2", function<numerics::exp2>},
    {"log2", function<numerics::log2>},
    {"log", function<numerics::log>},
    {"rsqrt", function<numerics::rsqrt>},
    {"sigmoid", function<numerics::sigmoid>},
    {"silu", function<numerics::silu>},
    {"gelu", function<numerics::gelu>},
    {"relu2", function<numerics::relu2>},
    {"softplus", function<numerics::softplus>},
    {"expm1_of_negative", function<numerics::expm1_of_negative>},
    {"tanh", function<numerics::tanh>},
    {"attention_weight", function<numerics::attention_weight>},
    {"attention", attention},
};

}  // namespace

TEST_CASE("the numbers of the specification are those of the headers", "[specification]") {
  std::map<std::string, int> seen;
  for (const Line& line : lines_of_document()) {
    INFO(line.name << ": " << joined(line.arguments));
    const auto found = kFunctions.find(line.name);
    REQUIRE(found != kFunctions.end());
    CHECK(found->second(line.arguments) == line.result);
    ++seen[line.name];
  }
  CHECK(seen.size() == kFunctions.size());
}

}  // namespace fp8lab
