"""The review page of a stack."""
