// Small models of each family against what transformers and torch.optim.AdamW computed for them:
// logits, loss, every gradient and twenty optimizer steps. tests/reference/ made the records;
// weights and tokens follow from the formula of transformers_models.py, repeated here.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/model/weights/weight_names.hpp"
#include "src/train/step/session.hpp"

using namespace fp8lab;
using nlohmann::json;

namespace {

constexpr std::int64_t kSequences = 2, kLength = 24;
constexpr std::size_t kMasked = 3;  // targets of the first sequence that are not trained on

/// Doubles in [-1, 1) with 23 fraction bits: FNV-1a of the name, then SplitMix64.
std::vector<double> uniform(const std::string& name, std::size_t count) {
  std::uint64_t state = 0xCBF29CE484222325u;
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) {
    state += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z = z ^ (z >> 31);
    values.push_back(static_cast<double>(z >> 40) / 0x1p23 - 1.0);
  }
  return values;
}

Batch batch_of_step(std::int64_t vocabulary, int step) {
  std::vector<std::int32_t> tokens, targets;
  for (const double value : uniform("tokens " + std::to_string(step), kSequences * kLength)) {
    tokens.push_back(
        static_cast<std::int32_t>((value + 1.0) / 2.0 * static_cast<double>(vocabulary)));
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool last = (i + 1) % static_cast<std::size_t>(kLength) == 0;
    targets.push_back(last || i < kMasked ? -100 : tokens[i + 1]);
  }
  return make_batch(tokens, targets, kSequences, vocabulary);
}

/// The tensors that transformers has for values of a parameter, by name: visit(name, values) with
/// the order that they have there.
template <class Visit>
void for_each_part(const ModelSession& session, const Parameter& parameter,
                   const std::vector<float>& values, Visit visit) {
  for (const WeightPart& part : weight_parts(parameter.declaration, session.model())) {
    const auto first = values.begin() + part.first;
    std::vector<float> own(first, first + part.size());
    if (is_stored_transposed(part.name)) own = transposed(own, part.shape[0], part.shape[1]);
    visit(part.name, own);
  }
}

bool is_norm_weight(const std::string& name) {
  const bool is_norm =
      name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos;
  return is_norm && name.ends_with(".weight");
}

void set_formula_weights(ModelSession& session) {
  for (const Parameter& parameter : session.parameters().all()) {
    std::vector<float> values;
    for (const WeightPart& part : weight_parts(parameter.declaration, session.model())) {
      const double centre = is_norm_weight(part.name) ? 1.0 : 0.0;  // 1 + w if files hold w
      std::vector<float> own;
      for (const double drawn : uniform(part.name, static_cast<std::size_t>(part.size()))) {
        own.push_back(static_cast<float>(centre + 0.25 * drawn));
      }
      if (is_stored_transposed(part.name)) own = transposed(own, part.shape[1], part.shape[0]);
      values.insert(values.end(), own.begin(), own.end());
    }
    session.parameters().upload(parameter, values);
  }
}

/// Norm of a tensor, and its product with the vector of the formula for `name`.
struct Summary {
  double norm = 0, product = 0;
};
Summary summary(const std::string& name, const std::vector<float>& values) {
  const std::vector<double> probe = uniform("probe " + name, values.size());
  Summary result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<double>(values[i]);
    result.norm += value * value;
    result.product += value * probe[i];
  }
  result.norm = std::sqrt(result.norm);
  return result;
}

/// Compares with the record [norm, product] of `name`. The error vector of a tensor that is off by
/// `relative` of its norm has, in a random direction, a product of 0.58 times its own norm.
void check_summary(const json& record, const std::string& name, const std::vector<float>& values,
                   double relative) {
  const Summary found = summary(name, values);
  const double norm = record.at(name).at(0), product = record.at(name).at(1);
  INFO(name << ": norm " << found.norm << " for " << norm << ", product " << found.product
            << " for " << product << ", relative " << std::abs(found.norm - norm) / norm << " "
            << std::abs(found.product - product) / norm);
  CHECK(std::abs(found.norm - norm) <= relative * norm);
  CHECK(std::abs(found.product - product) <= 3.0 * relative * norm);
}

void check_logits(const json& record, ModelSession& session) {
  const auto vocabulary = static_cast<std::size_t>(session.model().vocab_size);
  const std::vector<float> logits = session.logits(batch_of_step(session.model().vocab_size, 0));
  const std::vector<double> probe = uniform("probe logits", vocabulary);
  for (std::size_t row = 0; row < logits.size() / vocabulary; ++row) {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * vocabulary);
    const Summary found =
        summary("logits", {first, first + static_cast<std::ptrdiff_t>(vocabulary)});
    INFO("token " << row);
    CHECK(std::abs(found.product - record.at("logit_products").at(row).get<double>()) <=
          1e-5 * found.norm);
    if ((row + 1) % static_cast<std::size_t>(kLength) != 0) continue;
    double squares = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) {
      const double expected = record.at("last_logits").at(row / kLength).at(i);
      squares += std::pow(static_cast<double>(logits[row * vocabulary + i]) - expected, 2);
    }
    CHECK(std::sqrt(squares) <= 1e-5 * found.norm);
  }
}

void check_gradients(const json& record, Backend& backend, ModelSession& session) {
  const double loss = session.gradients(batch_of_step(session.model().vocab_size, 0));
  CHECK(std::abs(loss - record.at("loss").get<double>()) <= 1e-6 * loss);
  std::size_t tensors = 0;
  for (const Parameter& parameter : session.parameters().all()) {
    std::vector<float> gradient(static_cast<std::size_t>(parameter.gradient().size()));
    download_floats(backend, parameter.gradient(), gradient);
    for_each_part(session, parameter, gradient,
                  [&](const std::string& name, const std::vector<float>& values) {
                    check_summary(record.at("gradients"), name, values, 1e-5);
                    ++tensors;
                  });
  }
  CHECK(tensors == record.at("gradients").size());
}

void check_steps(const json& record, ModelSession& session) {
  std::vector<std::vector<float>> before;
  for (const Parameter& parameter : session.parameters().all()) {
    before.push_back(session.parameters().download(parameter));
  }
  const auto count = record.at("step_losses").size();
  for (std::size_t i = 0; i < count; ++i) {
    const double rate = 1e-3 * (1.0 - static_cast<double>(i) / (2.0 * static_cast<double>(count)));
    const ModelSession::Step step =
        session.step(batch_of_step(session.model().vocab_size, static_cast<int>(i)), rate);
    const double loss = record.at("step_losses").at(i);
    const double norm = record.at("step_gradient_norms").at(i);
    INFO("step " << i);
    CHECK(std::abs(step.loss - loss) <= 1e-5 * loss);
    CHECK(std::abs(step.gradient_norm - norm) <= 1e-4 * norm);
  }
  for (std::size_t p = 0; p < before.size(); ++p) {
    const Parameter& parameter = session.parameters().all()[p];
    std::vector<float> update = session.parameters().download(parameter);
    for (std::size_t i = 0; i < update.size(); ++i) update[i] -= before[p][i];
    for_each_part(session, parameter, update,
                  [&](const std::string& name, const std::vector<float>& values) {
                    // A bias of k adds the same to all scores of a query but for the rotation: its
                    // gradient nearly cancels, and AdamW makes the rest as large as any other.
                    // Without a rotation (a third of c_attn.bias) the rest is roundings alone.
                    const bool cancels = name.find("k_proj.bias") != std::string::npos;
                    const bool vanishes = name.find("c_attn.bias") != std::string::npos;
                    const double bound = vanishes ? 5e-2 : cancels ? 1e-2 : 1e-3;
                    check_summary(record.at("updates"), name, values, bound);
                  });
  }
}

}  // namespace

TEST_CASE("models of transformers have its logits, gradients and optimizer steps") {
  const std::string backend_name = GENERATE("cpu", "truth");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FP8LAB_TRANSFORMERS_RECORDS)) {
    std::ifstream stream(entry.path());
    const json record = json::parse(stream);
    INFO(entry.path().stem().string() << " on " << backend_name);
    const auto backend = make_backend(backend_name, 1);
    SessionConfig config;
    config.recipe = load_recipe("fp32");
    ModelSession session(
        *backend, parse_hugging_face_config(record.at("config").dump(), entry.path()), config);
    set_formula_weights(session);
    check_logits(record, session);
    check_gradients(record, *backend, session);
    check_steps(record, session);
    ++files;
  }
  CHECK(files == 21);
}
