"""Fixes of the bindings for Python, in torch/csrc."""

from __future__ import annotations

from bench.tool.fixes.edits import Edit, Fix

GUARDS = "torch/csrc/dynamo/guards.cpp"
SIZE_ADD = """static PyObject* THPSize_add(PyObject* left, PyObject* right) {
  if (!PyTuple_Check(left) || !PyTuple_Check(right)) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  return wrap_tuple_fn<decltype(&sq_concat), &sq_concat>(left, right);
}

static PyNumberMethods THPSize_as_number = {THPSize_add /* nb_add */};

"""

BINDINGS = (
    Fix(
        "size_add",
        152554,
        "a tuple plus a torch.Size is a tuple",
        "a static type of Python",
        (
            Edit("torch/csrc/Size.cpp", "static PyMappingMethods THPSize_as_mapping", r"\A", SIZE_ADD),
            Edit(
                "torch/csrc/Size.cpp",
                "PyTypeObject THPSizeType = {",
                r"nullptr(, /\* tp_as_number)",
                r"&THPSize_as_number\1",
            ),
        ),
    ),
    Fix(
        "storage_new",
        184032,
        "new() of a storage from a file ends the process",
        "a method of a Python type",
        (
            Edit(
                "torch/csrc/StorageMethods.cpp",
                "THPStorage_new(",
                r"(?=  auto new_storage)",
                "  if (!allocator) allocator = c10::GetDefaultCPUAllocator();\n",
            ),
        ),
    ),
    Fix(
        "stride_assert",
        151930,
        "assert_size_stride does not name the operator",
        "guards of dynamo",
        tuple(
            Edit(GUARDS, "static PyObject* assert_size_stride(", pattern, text)
            for pattern, text in (
                (r'PyArg_ParseTuple\(args, "OOO", (.*)\)\)', r'PyArg_ParseTuple(args, "OOO|z", \1, &op))'),
                (r"(?=  PyObject\* item = )", "  const char* op = nullptr;\n"),
                (
                    r'PyErr_SetString\((.*), "wrong number of dimensions"\)',
                    r'PyErr_Format(\1, "wrong number of dimensions%s%s", op ? " of " : "", op ? op : "")',
                ),
                (r"if \(num_errors\) \{\n", r'\g<0>    if (op) msg << " of " << op;\n'),
            )
        ),
    ),
    Fix(
        "insert_point",
        146775,
        "None as a graph's insert point ends the process",
        "bindings of TorchScript's graphs, a function of 1000 lines",
        (
            Edit(
                "torch/csrc/jit/python/python_ir.cpp",
                "      .GS(insertPoint)",
                r'\.def\("setInsertPoint", (\[\]\(Graph& g, (?:Node|Block)\* n\) \{ .*; \})\)',
                r'.def("setInsertPoint", \1, py::arg("place").none(false))',
            ),
        ),
    ),
    Fix(
        "int_or_tuple",
        136093,
        "a message asks for a tuple where a number is taken, too",
        "the parser of arguments, with all generated bindings as callers",
        (
            Edit(
                "torch/csrc/utils/python_arg_parser.cpp",
                "std::string FunctionParameter::type_name() const",
                r'return ("tuple of ints");',
                r'return size > 0 ? "int or tuple of ints" : \1;',
            ),
        ),
    ),
    Fix(
        "unused_input",
        73697,
        "autograd.grad does not say which input was not used",
        "autograd's engine, as Python calls it",
        (
            Edit(
                "torch/csrc/autograd/python_engine.cpp",
                "PyObject* THPEngine_run_backward(",
                r'"One of the "',
                '"Element ", i, " of the "',
            ),
        ),
    ),
)
