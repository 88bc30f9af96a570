"""The pages under docs/ that are made from the program itself, one a module."""
