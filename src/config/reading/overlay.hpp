// Overlays one TOML document on another: the meaning of `base = "NAME"`.
#pragma once

#include <functional>
#include <string_view>

#include <toml++/toml.h>

namespace fp8lab {

/// Moves `node` into `table` under `key`, together with its file and line. An
/// existing value is replaced.
void move_into(toml::table& table, const toml::key& key, toml::node& node);

/// Erases the keys of `table` that setting `key` to `value` makes obsolete. "sources", the parts of
/// a mixture, replaces the single source that a [data] table describes. Another `kind` removes the
/// keys that only the previous kind has, such as decay_steps of wsd. Only keys for which `may_go`
/// returns true are erased; the others are refused later.
void make_room_for(std::string_view key, const toml::node& value, toml::table& table,
                   const std::function<bool(const toml::node&)>& may_go);

/// Replaces keys of `base` by those of `over`; lists are replaced as a whole, and tables in both
/// are merged. Moves the values out of `over`.
void overlay(toml::table& base, toml::table& over);

}  // namespace fp8lab
