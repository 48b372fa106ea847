"""The checks that an entry of `op_db` gets in PyTorch, one module per file of PyTorch's own test folder.

The torch wheel ships the infrastructure of these checks (`torch.testing._internal`) and not the test files, so the
checks themselves are written here. Class names and test names are PyTorch's: an OpInfo aims its skips, its expected
failures and its tolerances at them. `test/test_ops.py` turns the classes into test cases, one per device.
"""
