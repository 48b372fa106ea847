// The fork's torch._C: PyTorch's own module, then the stack's Python bindings,
// added before torch/__init__.py reads the names it re-exports. Below this the
// tool writes what is added, in `extend` and `add_nodes`.
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

extern "C" PyObject* initModule();

namespace {

namespace py = pybind11;

void extend(py::handle module);
void add_nodes(PyObject* nodes);

py::object owned(PyObject* made) {
  if (made == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(made);
}

// Calls PyTorch's function of a name and, with arguments that it rejects, the
// stack's, which takes those of the overloads that the stack adds to it.
PyObject* call_either(PyObject* both, PyObject* args, PyObject* kwargs) {
  PyObject* result = PyObject_Call(PyTuple_GET_ITEM(both, 0), args, kwargs);
  if (result != nullptr || !PyErr_ExceptionMatches(PyExc_TypeError)) {
    return result;
  }
  py::error_already_set error;
  result = PyObject_Call(PyTuple_GET_ITEM(both, 1), args, kwargs);
  if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {
    // Both reject them, and PyTorch's message names most overloads.
    error.restore();
  }
  return result;
}

// A function of this name that stands for both. It lives as long as Python.
// (pybind11's would free the docstring that torch gives it.)
py::object either(const char* name, py::object theirs, py::object ours) {
  auto* definition = new PyMethodDef{
      name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_either)),
      METH_VARARGS | METH_KEYWORDS,
      nullptr};
  const py::tuple both = py::make_tuple(theirs, ours);
  return owned(PyCFunction_New(definition, both.ptr()));
}

// `init` makes a module of its own of this name. What PyTorch's module lacks
// moves into it, and a function that both have becomes one for both.
void merge(py::handle module, const char* name, void (*init)(PyObject*)) {
  const py::object scratch = owned(PyModule_New("torch._C"));
  init(scratch.ptr());
  const py::object target = module.attr(name);
  for (auto [key, value] : py::dict(scratch.attr(name).attr("__dict__"))) {
    if (!py::hasattr(target, key)) {
      target.attr(key) = value;
    } else if (PyCFunction_Check(value.ptr())) {
      const auto ours = py::reinterpret_borrow<py::object>(value);
      target.attr(key) =
          either(PyUnicode_AsUTF8(key.ptr()), target.attr(key), ours);
    }
  }
}

// Puts methods of the class of all tensors into its dictionary, static ones of
// torch's functions into that of their class, neither of which Python can
// assign to, and others into their module, as `torch._C._nn` is that of
// python_nn_functions.cpp. One of the stack's comes beside that of PyTorch of
// the same name, which has other overloads.
void add_rows(py::handle module, const std::string& file, PyMethodDef* rows) {
  const bool methods = file.rfind("python_variable_methods", 0) == 0;
  const bool of_stack = file.find("_own") != std::string::npos;
  std::string name = methods ? "TensorBase" : "_VariableFunctionsClass";
  if (!methods && file.rfind("python_torch_functions", 0) != 0) {
    name = file.substr(6, file.rfind('_') - 6); // of python_nn_functions, _nn
  }
  const py::object owner = module.attr(name.c_str());
  for (; rows->ml_name != nullptr; ++rows) {
    const char* row = rows->ml_name;
    if (PyModule_Check(owner.ptr())) {
      owner.attr(row) = owned(PyCFunction_New(rows, owner.ptr()));
      continue;
    }
    auto* type = reinterpret_cast<PyTypeObject*>(owner.ptr());
    py::object made = owned(
        methods ? PyDescr_NewMethod(type, rows)
                : PyCFunction_New(rows, owner.ptr()));
    const bool both = of_stack && PyDict_GetItemString(type->tp_dict, row);
    if (both) {
      made = either(row, owner.attr(row), made);
    }
    if (both || !methods) {
      const auto wrap = methods ? PyInstanceMethod_New : PyStaticMethod_New;
      made = owned(wrap(made.ptr()));
    }
    py::handle(type->tp_dict)[row] = made;
    PyType_Modified(type);
  }
}

// The stack's own functions of torch.
void add_functions(
    py::handle module,
    void (*gather)(std::vector<PyMethodDef>&)) {
  static std::vector<PyMethodDef> rows;
  gather(rows);
  rows.push_back({nullptr});
  add_rows(module, "python_torch_functions_own", rows.data());
}

// torch._C._functions, where the backward nodes go, exists only once
// torch/autograd/__init__.py has called this.
void add_backward_nodes(py::handle module) {
  const char* name = "_autograd_init";
  const py::object begin = module.attr(name);
  module.attr(name) = py::cpp_function([module, begin] {
    py::object result = begin();
    add_nodes(py::object(module.attr("_functions")).ptr());
    return result;
  });
}

} // namespace

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = initModule();
  try {
    if (module != nullptr) {
      extend(module);
      add_backward_nodes(module);
    }
    return module;
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}
