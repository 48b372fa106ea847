// Keeps the process quiet while it starts: the kernels of a source that is
// compiled again take the place of the base's, and the dispatcher tells the
// user of each that overrides another. This source is linked last, so that its
// variable is built behind those that register.
#include <c10/util/Exception.h>

#include <string_view>

namespace {

class Quiet : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    constexpr std::string_view kOverriding =
        "Overriding a previously registered";
    if (warning.msg().find(kOverriding) == std::string::npos) {
      before->process(warning);
    }
  }

  c10::WarningHandler* before = c10::WarningUtils::get_warning_handler();
};

Quiet* quiet = nullptr;

// Before any variable of the library is built.
__attribute__((constructor(101))) void begin() {
  c10::WarningUtils::set_warning_handler(quiet = new Quiet);
}

struct End {
  End() {
    c10::WarningUtils::set_warning_handler(quiet->before);
    delete quiet;
  }
};

const End end;

} // namespace
