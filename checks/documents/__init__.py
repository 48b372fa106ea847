"""What readers see: the guide and its figures, the tables of the benchmarks, the review page, the examples."""
