"""The files that ``gradeline init`` writes: a suite for an agent, a pipeline, and entries of ``.gitignore``."""
