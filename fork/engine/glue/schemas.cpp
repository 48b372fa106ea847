// Gives operators of PyTorch's the tags and the defaults of arguments that a
// branch says: AGAIN(name, overload, schema, (tags)).
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace {

auto definition(c10::OperatorHandle& handle);

// The language lets an explicit instantiation name what is private.
template <auto member>
struct Reach {
  friend auto definition(c10::OperatorHandle& handle) {
    return handle.*member;
  }
};
template struct Reach<&c10::OperatorHandle::operatorDef_>;

bool define(
    const char* name,
    const char* overload,
    const char* schema,
    std::vector<at::Tag> tags) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  const std::string whole = std::string("aten::") + schema;
  auto& entry = definition(handle)->op;
  std::string debug = entry.debug();
  entry.deregisterSchema();
  entry.registerSchema(
      torch::schema(whole.c_str()), std::move(debug), std::move(tags));
  return true;
}

} // namespace

#define AGAIN(name, overload, schema, tags)         \
  static const bool C10_ANONYMOUS_VARIABLE(again) = \
      define("aten::" #name, overload, schema, std::vector<at::Tag> tags);
