// Stands in for the JSON library, which the wheel does not ship. functorch's
// headers use it in members that a fork never calls, so declarations are
// enough, and a call would not link.
#pragma once

#include <string>

namespace nlohmann {

struct json {
  json();
  template <typename T>
  json(const T&);
  static json parse(const std::string&);
  std::string dump() const;
  bool contains(const char*) const;
  template <typename T>
  T get() const;
  template <typename T>
  T value(const char*, T) const;
  template <typename T>
  operator T() const;
  json& operator[](const char*);
  const json& operator[](const char*) const;
};

} // namespace nlohmann
