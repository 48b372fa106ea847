"""One module per command of `fork`: its options, and what it prints."""
