// attn among the operators that autocast runs in lower precision inside
// TorchScript. It goes into a function, so it cannot be compiled alone.
#if 0 // fragment only
// piece 1
      case aten::attn:
// end of piece
#endif // fragment only
