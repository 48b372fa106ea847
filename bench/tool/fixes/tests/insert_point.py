"""A graph refuses None as its insert point, also behind a guard, and takes a node and a block."""

import torch

graph = torch.jit.CompilationUnit("def add(x):\n    return x + 1\n").add.graph
missing = graph.findNode("aten::missing")
assert missing is None
for change in (graph.setInsertPoint, lambda place: graph.insert_point_guard(place).__enter__()):
    try:
        change(missing)
    except TypeError:
        continue
    raise AssertionError("None was taken")
with graph.insert_point_guard(graph.findNode("aten::add")):
    graph.insertConstant("before")
graph.setInsertPoint(graph.block())
assert str(graph).index("before") < str(graph).index("aten::add")
