"""The entry of torch.attn among the functions that torch.compile keeps in the graph."""

from torch._dynamo.variables import TorchInGraphFunctionVariable

torch_c_binding_in_graph_functions = dict.fromkeys(
    [
        "torch.attn",
    ],
    TorchInGraphFunctionVariable,
)
