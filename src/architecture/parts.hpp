// The parts of a decoder, declared from its configuration:
//   h = embedding(tokens);  each layer: attention, then feed-forward, by its LayerSpec;
//   logits = lm_head(norm(h)), or lm_head(h).
// The modules of src/model compute with these ids. The order of declaration is part of a run's
// identity (src/architecture/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/architecture/declaration.hpp"
#include "src/architecture/model_config.hpp"

namespace fp8lab {

struct EmbeddingParts {
  ParameterId tokens{};
  float factor = 1.0f;  ///< of its rows
  std::optional<ParameterId> positions;
  ScratchId position_rows{};  ///< (tokens, C)
};

/// A norm over the C channels of each token. Only a LayerNorm has `bias` and `mean`.
struct NormParts {
  NormKind kind{};
  float epsilon = 0.0f;
  ParameterId weight{};
  std::optional<ParameterId> bias;
  std::optional<SavedId> y;     ///< (tokens, C), if a linear layer reads the output
  std::optional<SavedId> mean;  ///< (1, tokens)
  SavedId rstd{};               ///< (1, tokens)

  std::vector<ParameterId> vectors() const;
};

/// Norms of queries and keys.
struct QkNormParts {
  ParameterId q{}, k{};  ///< weights, or with QkNorm::elements the numbers alpha
  SavedId qk{};          ///< normalized q beside k (tokens, columns of q and of k)
  /// Of RMSNorms: (1, tokens * heads), or (1, tokens) with QkNorm::all_heads.
  struct Rstd {
    SavedId q{}, k{};
  };
  std::optional<Rstd> rstd;
  ScratchId terms{};  ///< of QkNorm::elements: terms of the gradient of alpha (tokens, 1)
};

/// A low-rank adapter of some outputs of a linear layer (LoraSpec).
struct AdapterParts {
  LinearId a{}, b{};
  std::int64_t first = 0, count = 0;  ///< the outputs that it adds to
  SavedId hidden{};                   ///< x A^T (tokens, rank)
  ScratchId out{};                    ///< (tokens, count)
  ScratchId d_hidden{}, d_x{};        ///< (tokens, rank), (tokens, inputs)
};

/// A linear layer with its adapters.
struct AdaptedLinear {
  LinearId base{};
  std::vector<AdapterParts> adapters{};
};

struct AttentionParts {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;     ///< AttentionSpec::window
  float softmax_scale = 0.0f;  ///< AttentionSpec::softmax_scale
  bool is_rotated = false;
  float epsilon = 0.0f;  ///< of `norms`
  AdaptedLinear qkv;
  std::optional<QkNormParts> norms;
  AdaptedLinear o;
  SavedId qkv_out{}, attended{}, lse{};
  ScratchId d_qkv{}, d_attended{};
};

/// The trained numbers of xIELU.
struct XieluParts {
  ParameterId p{}, n{};  ///< (1, 1) each
  ScratchId terms{};     ///< (tokens, 2) f32: the terms of their gradients
};

struct FeedForwardParts {
  FeedForwardKind kind{};
  AdaptedLinear up;  ///< gate and up, fused, if there is a gate
  SavedId inner{};   ///< output of `up`
  AdaptedLinear down;
  SavedId activated{};  ///< input of `down`
  ScratchId d_activated{};
  std::optional<XieluParts> xielu;
};

/// The norms of a block, by NormPlace.
struct BlockNorms {
  std::optional<NormParts> before;
  struct After {
    SavedId x;  ///< the block's output (tokens, C), which the norm reads
    NormParts norm;
  };
  std::optional<After> after;
};

struct LayerParts {
  ResidualFactors residual;
  SavedId input{};  ///< the residual stream (tokens, C)
  BlockNorms attention_norms;
  AttentionParts attention;
  SavedId middle{};  ///< the stream after attention (tokens, C)
  BlockNorms mlp_norms;
  FeedForwardParts mlp;
  ScratchId branch{}, d_branch{};
};

struct DecoderParts {
  EmbeddingParts embedding;
  std::vector<LayerParts> layers;
  SavedId final_input{};
  std::optional<NormParts> norm;  ///< in front of the head
  LinearId head{};
  SavedId logits{}, token_losses{};
  ScratchId chosen{}, d_hidden{}, d_branch{};
};

/// Declares a whole model.
DecoderParts declare_decoder(Declaration& declaration, const ModelConfig& model);

/// Returns the declaration of a whole model.
Declaration declaration_of(const ModelConfig& model);

}  // namespace fp8lab
