"""People's own Python: the marks they put on functions, and how marked functions are found."""
