"""Decisions over scores: gates, with pass, fail and undecided told apart."""
