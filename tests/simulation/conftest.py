"""The simulations are modules of this folder, as ``make simulate`` runs them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
