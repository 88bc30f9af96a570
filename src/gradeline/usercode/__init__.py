"""Users' own Python code: decorators, loading, worker processes and the calls of its functions."""
