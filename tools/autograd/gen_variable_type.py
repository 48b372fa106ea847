"""attn and its backward among the operators whose gradient is right for complex numbers."""

GRADIENT_IMPLEMENTED_FOR_COMPLEX = {
    "attn",
    "_attn_backward",
}
