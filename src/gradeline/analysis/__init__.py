"""Analyses of stored runs: ranking several runs, the trend of a suite, and the size of the next run."""
