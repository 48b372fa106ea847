"""One module per kind of file; each turns a fragment into insertions at its anchors."""
