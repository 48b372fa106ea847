"""One run of a compiler after another: with what, with which flags, and what is kept."""
