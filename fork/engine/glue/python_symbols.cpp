// What the generated Python bindings call and libtorch_python keeps hidden. It
// gives way to what leads to the base's own, for changed sources.
#include <Python.h>

#include <structmember.h>

#include <torch/csrc/utils/python_arg_parser.h>
#include <torch/csrc/utils/structseq.h>
#include <torch/csrc/utils/tensor_numpy.h>

namespace torch {

[[gnu::weak]] PyObject* handle_torch_function(
    PythonArgs& r,
    PyObject* self,
    PyObject* args,
    PyObject* kwargs,
    PyObject* torch_api,
    const char* module_name,
    const char* func_name_override) {
  const std::string name =
      func_name_override ? func_name_override : r.get_func_name();
  py::object function = py::reinterpret_steal<py::object>(
      PyObject_GetAttrString(torch_api, name.c_str()));
  TORCH_INTERNAL_ASSERT(function.ptr() != nullptr, "no function ", name);
  py::object arguments = py::reinterpret_borrow<py::object>(args);
  if (self != nullptr) {
    arguments = py::make_tuple(py::handle(self)) + arguments;
  }
  return handle_torch_function_no_python_arg_parser(
      r.overloaded_args,
      arguments.ptr(),
      kwargs,
      name.c_str(),
      function.ptr(),
      module_name);
}

[[gnu::weak]] PyObject* handle_torch_function(
    PythonArgs& r,
    PyObject* args,
    PyObject* kwargs,
    PyObject* torch_api,
    const char* module_name,
    const char* func_name_override) {
  return handle_torch_function(
      r, nullptr, args, kwargs, torch_api, module_name, func_name_override);
}

// Of methods without arguments
[[gnu::weak]] PyObject* handle_torch_function(
    PyObject* self,
    const std::string& name,
    PyObject* /*args*/,
    PyObject* kwargs,
    PyObject* torch_api,
    const std::string& module_name) {
  const py::object function = py::handle(torch_api).attr(name.c_str());
  return handle_torch_function_no_python_arg_parser(
      {self},
      py::make_tuple(py::handle(self)).ptr(),
      kwargs,
      name.c_str(),
      function.ptr(),
      module_name.c_str());
}

// Python's function consumes the flag too, where a release has it.
[[gnu::weak]] bool consume_should_skip_torch_function() {
  return false;
}

[[gnu::weak]] bool check_has_torch_function(PyObject* object, bool /*mode*/) {
  return py::module_::import("torch._C")
      .attr("_has_torch_function_unary")(py::handle(object))
      .cast<bool>();
}

namespace utils {

// What an `int[]` is asked for each of its elements.
[[gnu::weak]] bool is_numpy_int(PyObject* object) {
  PyObject* numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
  return numpy != nullptr &&
      py::isinstance(py::handle(object), py::handle(numpy).attr("integer"));
}

// torch.return_types.f(
// first=...,
// second=...)
[[gnu::weak]] PyObject* returned_structseq_repr(PyStructSequence* obj) {
  PyTypeObject* type = Py_TYPE(obj);
  std::string text = std::string(type->tp_name) + "(\n";
  const Py_ssize_t size = PyTuple_GET_SIZE(obj);
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* repr = PyObject_Repr(PyTuple_GET_ITEM(obj, i));
    if (repr == nullptr) {
      return nullptr;
    }
    text += std::string(type->tp_members[i].name) + "=" +
        PyUnicode_AsUTF8(repr) + (i + 1 < size ? ",\n" : ")");
    Py_DECREF(repr);
  }
  return PyUnicode_FromString(text.c_str());
}

} // namespace utils
} // namespace torch
