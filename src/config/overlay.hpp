// Documents on top of one another: what `base = "NAME"` means.
#pragma once

#include <functional>
#include <string_view>

#include <toml++/toml.h>

namespace fp8lab {

/// Moves `node` into `table` under `key`, with the file and line that it came from; a value that
/// was there is gone.
void move_into(toml::table& table, const toml::key& key, toml::node& node);

/// Erases what `value` of `key` stands in place of: the parts of a mixture ("sources") replace the
/// one source that a [data] table describes, and another `kind` the keys that are of the kind that
/// was there alone, such as decay_steps of wsd. `may_go` says which of these may be erased; the
/// others are refused later.
void make_room_for(std::string_view key, const toml::node& value, toml::table& table,
                   const std::function<bool(const toml::node&)>& may_go);

/// Keys of `over` replace those of `base`, lists as a whole; tables in both are joined. `over` is
/// left without its values.
void overlay(toml::table& base, toml::table& over);

}  // namespace fp8lab
