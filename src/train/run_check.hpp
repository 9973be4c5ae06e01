// What can be wrong with a run, found before it is started.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulation/api/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/mixture.hpp"

namespace fp8lab {

/// Checks one run after another, and keeps what they have in common.
class RunCheck {
 public:
  using MakeBackend = std::function<std::unique_ptr<Backend>(const std::string& name)>;
  explicit RunCheck(MakeBackend make_backend) : make_backend_(std::move(make_backend)) {}

  /// Throws Error when there is no such backend here, when a stage's recipe fits neither model nor
  /// backend, when data are missing or of another vocabulary, and when initial weights are missing.
  void operator()(const RunConfig& config);

 private:
  Backend& backend(const std::string& name);
  const DataSources& sources(const DataConfig& config, std::int64_t vocab_size,
                             const std::string& where);

  MakeBackend make_backend_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
  struct Opened {
    DataConfig config;
    std::int64_t vocab_size;
    std::unique_ptr<DataSources> sources;
  };
  std::vector<Opened> opened_;
};

}  // namespace fp8lab
