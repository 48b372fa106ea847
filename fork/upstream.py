"""Files of PyTorch that the tool knows by name, and how their YAML is read."""

from __future__ import annotations

import yaml

NATIVE_FUNCTIONS = "aten/src/ATen/native/native_functions.yaml"
DERIVATIVES = "tools/autograd/derivatives.yaml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # The one in C takes a tenth of the time.
