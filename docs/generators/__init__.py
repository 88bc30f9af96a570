"""Pages and images under docs/ that are generated from the program, one module for each kind."""
