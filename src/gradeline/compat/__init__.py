"""Stand-ins for ``letta_evals``, ``letta_client`` and ``llm_connect``: code written for them runs without them.

Nothing is put in place before `install` is called, and a real package that is installed always wins.
"""

from gradeline.compat.stand_ins import install, uninstall

__all__ = ["install", "uninstall"]
