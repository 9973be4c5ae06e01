// The weights of a model on their way between files and parameters, under Hugging Face names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/io/tensors/safetensors_header.hpp"
#include "src/model/weights/parameters.hpp"

namespace fp8lab {

/// What the values of tensors are where a file holds others than the parameter: the weights of
/// zero-centered norms, w in files and 1 + w as parameters.
enum class ValuesOf : std::uint8_t { files, parameters };

/// Tensors that can be read as FP32 values, wherever they come from.
class ModelTensors {
 public:
  explicit ModelTensors(ValuesOf values_of) : values_of_(values_of) {}
  virtual ~ModelTensors() = default;

  ValuesOf values_of() const { return values_of_; }

  /// Names, shapes, and the type of each where it comes from.
  const std::vector<TensorHeader>& headers() const { return headers_; }
  /// Elements of tensor `index` from number `first` on. From files and from callers: throws Error
  /// naming the tensor and the element for one that is not finite, as no trained weight is.
  virtual void read(std::size_t index, std::int64_t first, std::span<float> destination) const = 0;

 protected:
  std::vector<TensorHeader> headers_;

 private:
  ValuesOf values_of_;
};

/// The tensors of a Hugging Face folder or of one safetensors file. FP8 weights with scales
/// (fp8_storage.hpp) read as scale * code, all of them oriented(); tensors that say nothing about
/// the weights (rotary frequencies and causal masks of old files, scales of activations) are left
/// out. Throws Error as TensorStore does, and for scales that do not fit or are not above 0.
std::unique_ptr<ModelTensors> open_model_tensors(const std::filesystem::path& path);

/// `tensors` of files as our parameters have them: weights of linear layers as (out, in) also where
/// the family's files hold (in, out), and today's names for those of older files. Throws Error
/// naming `origin` for two tensors that are one parameter and differ; of equal ones the first
/// counts.
std::unique_ptr<ModelTensors> oriented(std::unique_ptr<ModelTensors> tensors,
                                       const std::string& origin);

/// `tensors` with the values of files: the weights of zero-centered norms of `model` less 1, in
/// FP32. That is exact for weights from 0.5 on, and a rounding to a multiple of 2^-24 or a coarser
/// one for others. `tensors` must outlive the result.
std::unique_ptr<ModelTensors> as_in_files(const ModelTensors& tensors, const ModelConfig& model);

/// The master weights of `parameters`, which must outlive the result.
std::unique_ptr<ModelTensors> tensors_of(const Parameters& parameters);

/// Reads every element, for what read() refuses.
void require_finite(const ModelTensors& tensors);

/// The elements `values` of tensor `name` of `shape` from number `first` on. Throws Error naming
/// `origin` and the first that is not finite.
void require_finite(std::span<const float> values, const std::string& origin,
                    const std::string& name, const std::vector<std::int64_t>& shape,
                    std::int64_t first);

/// The tensors of `model` among `tensors`, in the order of its parameters. Throws Error naming
/// `origin` and the tensor when one is missing, has another shape, or has no place in the model.
std::unique_ptr<ModelTensors> fit_to_model(std::unique_ptr<ModelTensors> tensors,
                                           const std::string& origin, const ModelConfig& model);

/// Sets every master weight and refreshes the working copies. To a file's weights of zero-centered
/// norms 1 is added in FP32, as transformers does: a sum of 24 bits, so that of a w below 2^-16 in
/// BF16, or any in FP32, low bits are lost. Throws Error as fit_to_model does.
void load_parameters(const ModelTensors& tensors, const std::string& origin,
                     Parameters& parameters);

}  // namespace fp8lab
