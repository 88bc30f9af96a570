"""Stand-ins for ``letta_evals``, ``letta_client`` and ``llm_connect``: code for them runs without them.

They are importable after `install` is called. A real package that is installed always has priority.
"""

from gradeline.compat.stand_ins import install, uninstall

__all__ = ["install", "uninstall"]
