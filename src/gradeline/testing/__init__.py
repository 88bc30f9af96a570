"""Counterparts for tests: what a suite, an adapter or a target can be run against."""
