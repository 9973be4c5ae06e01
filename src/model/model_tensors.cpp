#include "src/model/model_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <unordered_map>

#include "emulation/api/error.hpp"
#include "src/io/tensor_store.hpp"
#include "src/model/weight_names.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;  // elements read at a time

/// Calls visit(first, count) for pieces of [0, size).
void for_each_piece(std::int64_t size,
                    const std::function<void(std::int64_t, std::size_t)>& visit) {
  for (std::int64_t first = 0; first < size; first += static_cast<std::int64_t>(kPiece)) {
    visit(first, std::min(kPiece, static_cast<std::size_t>(size - first)));
  }
}

class FileTensors : public ModelTensors {
 public:
  explicit FileTensors(const std::filesystem::path& path) : store_(path) {
    for (const StoredTensor* tensor : store_.tensors()) {
      if (tensor->name.ends_with(".rotary_emb.inv_freq")) continue;
      headers_.push_back(*tensor);
      tensors_.push_back(tensor);
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    read_elements(*tensors_[index], first, destination);
  }

 private:
  TensorStore store_;
  std::vector<const StoredTensor*> tensors_;
};

class ParameterTensors : public ModelTensors {
 public:
  explicit ParameterTensors(const Parameters& parameters) : parameters_(parameters) {
    for (const Parameter& parameter : parameters.all()) {
      const TensorView& master = parameter.master();
      for (WeightPart& part :
           weight_parts(parameter.name, master.rows, master.cols, parameters.model())) {
        headers_.push_back({std::move(part.name), StoredType::f32, std::move(part.shape)});
        places_.push_back({&parameter, part.first});
      }
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const Place& place = places_[index];
    parameters_.download(*place.parameter, place.first + first, destination);
  }

 private:
  struct Place {
    const Parameter* parameter;
    std::int64_t first;
  };

  const Parameters& parameters_;
  std::vector<Place> places_;
};

/// Some files keep the head that a tied model does not use.
void check_tied_head(const ModelTensors& tensors, std::size_t head, std::size_t embedding,
                     const std::string& origin) {
  const std::int64_t size = tensors.headers()[head].size();
  bool equal = tensors.headers()[embedding].size() == size;
  std::vector<float> a, b;
  for_each_piece(equal ? size : 0, [&](std::int64_t first, std::size_t count) {
    a.resize(count);
    b.resize(count);
    tensors.read(head, first, a);
    tensors.read(embedding, first, b);
    equal = equal && std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
  });
  if (equal) return;
  throw Error(
      fmt::format("{}: tensor 'lm_head.weight' differs from 'model.embed_tokens.weight', "
                  "but the model ties the two (tie_word_embeddings)",
                  origin));
}

}  // namespace

std::unique_ptr<ModelTensors> open_model_tensors(const std::filesystem::path& path) {
  return std::make_unique<FileTensors>(path);
}

std::unique_ptr<ModelTensors> tensors_of(const Parameters& parameters) {
  return std::make_unique<ParameterTensors>(parameters);
}

void load_parameters(const ModelTensors& tensors, const std::string& origin,
                     Parameters& parameters) {
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < tensors.headers().size(); ++i) index[tensors.headers()[i].name] = i;
  std::vector<float> values;
  std::size_t embedding = 0;
  for (const Parameter& parameter : parameters.all()) {
    const TensorView& master = parameter.master();
    for (const WeightPart& part :
         weight_parts(parameter.name, master.rows, master.cols, parameters.model())) {
      const auto found = index.find(part.name);
      if (found == index.end()) throw Error(fmt::format("{}: no tensor '{}'", origin, part.name));
      const std::size_t i = found->second;
      const TensorHeader& header = tensors.headers()[i];
      if (header.shape != part.shape) {
        throw Error(fmt::format("{}: tensor '{}' is {}, the model needs ({})", origin, part.name,
                                shape_text(header), fmt::join(part.shape, ", ")));
      }
      for_each_piece(part.size(), [&](std::int64_t first, std::size_t count) {
        values.resize(count);
        tensors.read(i, first, values);
        parameters.upload(parameter, part.first + first, values);
      });
      if (&parameter == &parameters.embedding()) embedding = i;
      index.erase(found);
    }
  }
  for (std::size_t i = 0; i < tensors.headers().size(); ++i) {
    const std::string& name = tensors.headers()[i].name;
    if (index.count(name) == 0) continue;
    if (name != "lm_head.weight" || !parameters.model().tie_word_embeddings) {
      throw Error(fmt::format("{}: tensor '{}' has no place in the model", origin, name));
    }
    check_tied_head(tensors, i, embedding, origin);
  }
}

}  // namespace fp8lab
