#include "src/data/arithmetic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/data/random.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

constexpr std::array<std::string_view, 12> kNames = {"Ada",  "Ben",  "Cora", "Dan",  "Eva", "Finn",
                                                     "Gita", "Hugo", "Iris", "Jack", "Kim", "Leo"};
constexpr std::array<std::string_view, 8> kThings = {"pens",  "apples", "books", "stamps",
                                                     "cards", "shells", "coins", "beads"};

template <std::size_t N>
std::string_view pick(RandomSequence& random, const std::array<std::string_view, N>& list) {
  return list[random.below(static_cast<std::uint32_t>(N))];
}

/// Returns two distinct entries.
template <std::size_t N>
std::array<std::string_view, 2> pick_two(RandomSequence& random,
                                         const std::array<std::string_view, N>& list) {
  const auto first = random.below(static_cast<std::uint32_t>(N));
  const auto second = (first + 1 + random.below(static_cast<std::uint32_t>(N - 1))) % N;
  return {list[first], list[second]};
}

WordProblem sum(RandomSequence& random) {
  const auto name = pick(random, kNames);
  const auto thing = pick(random, kThings);
  const auto a = random.between(2, 60), b = random.between(2, 40);
  return {"sum",
          fmt::format("{0} has {1} {2}. {0} finds {3} more. How many {2} does {0} have?", name, a,
                      thing, b),
          fmt::format("{}+{}={}. #### {}", a, b, a + b, a + b), a + b};
}

WordProblem difference(RandomSequence& random) {
  const auto names = pick_two(random, kNames);
  const auto thing = pick(random, kThings);
  const auto b = random.between(2, 40), rest = random.between(1, 40);
  const auto a = b + rest;
  return {"difference",
          fmt::format("{} has {} {} and gives {} to {}. How many are left?", names[0], a, thing, b,
                      names[1]),
          fmt::format("{}-{}={}. #### {}", a, b, rest, rest), rest};
}

WordProblem shop(RandomSequence& random) {
  const auto name = pick(random, kNames);
  const auto things = pick_two(random, kThings);
  const auto n = random.between(2, 9), p = random.between(2, 9);
  const auto m = random.between(2, 9), q = random.between(2, 9);
  const auto total = n * p + m * q;
  return {"shop",
          fmt::format("{} buys {} {} at {} dollars each and {} {} at {} dollars each. What is the "
                      "price of all?",
                      name, n, things[0], p, m, things[1], q),
          fmt::format("{}*{}={}. {}*{}={}. {}+{}={}. #### {}", n, p, n * p, m, q, m * q, n * p,
                      m * q, total, total),
          total};
}

WordProblem share(RandomSequence& random) {
  const auto name = pick(random, kNames);
  const auto thing = pick(random, kThings);
  const auto people = random.between(2, 9), each = random.between(2, 12);
  return {"share",
          fmt::format("{} shares {} {} equally among {} friends. How many does each friend get?",
                      name, people * each, thing, people),
          fmt::format("{}/{}={}. #### {}", people * each, people, each, each), each};
}

WordProblem travel(RandomSequence& random) {
  const auto name = pick(random, kNames);
  const auto speed = random.between(3, 30), hours = random.between(2, 8);
  const auto already = random.between(2, 40);
  const auto total = speed * hours + already;
  return {"travel",
          fmt::format("{0} has gone {1} miles and rides on for {2} hours at {3} miles an hour. How "
                      "far has {0} gone in all?",
                      name, already, hours, speed),
          fmt::format("{}*{}={}. {}+{}={}. #### {}", speed, hours, speed * hours, speed * hours,
                      already, total, total),
          total};
}

WordProblem savings(RandomSequence& random) {
  const auto name = pick(random, kNames);
  const auto weekly = random.between(2, 20), weeks = random.between(3, 9);
  const auto spent = random.between(1, weekly * weeks - 1);
  const auto left = weekly * weeks - spent;
  return {"savings",
          fmt::format("{0} saves {1} dollars a week for {2} weeks and then spends {3} dollars. How "
                      "much does {0} have left?",
                      name, weekly, weeks, spent),
          fmt::format("{}*{}={}. {}-{}={}. #### {}", weekly, weeks, weekly * weeks, weekly * weeks,
                      spent, left, left),
          left};
}

struct Family {
  std::string_view name;
  WordProblem (*make)(RandomSequence&);
};

constexpr std::array<Family, 6> kFamilies = {
    Family{"sum", sum},     Family{"difference", difference}, Family{"shop", shop},
    Family{"share", share}, Family{"travel", travel},         Family{"savings", savings}};

std::vector<Family> selected_families(const std::vector<std::string>& names) {
  std::vector<Family> families;
  for (const std::string& name : names) {
    const auto found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&](const Family& family) { return family.name == name; });
    if (found == kFamilies.end()) {
      std::vector<std::string> known;
      for (const Family& family : kFamilies) known.emplace_back(family.name);
      throw InputError({.noun = "unknown problem family",
                        .key = name,
                        .nearest = did_you_mean(name, known),
                        .accepted = fmt::format("{}", fmt::join(known, " "))});
    }
    families.push_back(*found);
  }
  if (families.empty()) families.assign(kFamilies.begin(), kFamilies.end());
  return families;
}

}  // namespace

const std::vector<std::string>& arithmetic_families() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Family& family : kFamilies) list.emplace_back(family.name);
    return list;
  }();
  return names;
}

std::vector<WordProblem> generate_arithmetic(std::uint64_t seed, std::int64_t count,
                                             const std::vector<std::string>& families,
                                             bool held_out) {
  const std::vector<Family> chosen = selected_families(families);
  RandomSequence random(seed, held_out ? 1 : 0);
  std::vector<WordProblem> problems;
  problems.reserve(static_cast<std::size_t>(count));
  while (static_cast<std::int64_t>(problems.size()) < count) {
    const Family& family = chosen[random.below(static_cast<std::uint32_t>(chosen.size()))];
    WordProblem problem = family.make(random);
    const bool reserved = xxh3(problem.question.data(), problem.question.size()) % 10 == 0;
    if (reserved == held_out) problems.push_back(std::move(problem));
  }
  return problems;
}

}  // namespace fp8lab
