#include "src/model/weights/new_adapters.hpp"

#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/architecture/parts.hpp"
#include "src/model/weights/weight_names.hpp"

namespace fp8lab {
namespace {

class AdaptedTensors : public ModelTensors {
 public:
  AdaptedTensors(std::unique_ptr<ModelTensors> tensors, const ModelConfig& model,
                 std::uint64_t seed)
      : ModelTensors(tensors->values_of()),
        tensors_(std::move(tensors)),
        declaration_(declaration_of(model)),
        seed_(seed) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < declaration_.parameters().size(); ++i) {
      const ParameterDeclaration& parameter = declaration_.parameters()[i];
      for (WeightPart& part : weight_parts(parameter, model)) {
        if (parameter.is_adapter) {
          headers_.push_back({std::move(part.name), StoredType::f32, std::move(part.shape)});
          sources_.push_back({i, true});
        } else {
          headers_.push_back(tensors_->headers()[next]);
          sources_.push_back({next++, false});
        }
      }
    }
    FP8LAB_ASSERT(next == tensors_->headers().size());
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const Source& source = sources_[index];
    if (!source.is_new) return tensors_->read(source.index, first, destination);
    draw_initial_values(declaration_.parameters()[source.index], source.index, seed_, first,
                        destination);
  }

 private:
  struct Source {
    std::size_t index = 0;  ///< of a tensor of the start, or of a parameter
    bool is_new = false;
  };

  std::unique_ptr<ModelTensors> tensors_;
  Declaration declaration_;
  std::uint64_t seed_;
  std::vector<Source> sources_;
};

}  // namespace

ModelConfig without_adapters(ModelConfig model) {
  model.lora = {};
  return model;
}

std::unique_ptr<ModelTensors> with_new_adapters(std::unique_ptr<ModelTensors> tensors,
                                                const ModelConfig& model, std::uint64_t seed) {
  return std::make_unique<AdaptedTensors>(std::move(tensors), model, seed);
}

}  // namespace fp8lab
