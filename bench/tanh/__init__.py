"""The tanh of the CPU kernels: its coefficients and its error."""
