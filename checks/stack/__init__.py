"""The stack as a whole: on what a wheel ships, on a small PyTorch and back, through the tool's commands."""
