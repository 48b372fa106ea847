// The fork's torch._C where the stack adds no operator: PyTorch's own module.
// It is linked so that the fork's libtorch.so is looked up before the base's
// libraries.
#include <Python.h>

extern "C" PyObject* initModule();

PyMODINIT_FUNC PyInit__C() {
  return initModule();
}
