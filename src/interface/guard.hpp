// Turns exceptions into statuses: none leaves the library.
#pragma once

#include <functional>
#include <string>

#include "src/interface/fp8lab.h"

namespace fp8lab::interface {

/// Calls `work` and returns the status of what it throws; fp8lab_last_error() then returns the
/// message. Every function of fp8lab.h that returns a status consists of this call.
fp8lab_status guarded(const std::function<void()>& work) noexcept;

/// Returns a text argument. Throws Error that names it if it is NULL.
std::string text_of(const char* text, const char* name);

}  // namespace fp8lab::interface
