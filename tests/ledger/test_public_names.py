"""The public names of the ledger."""

from __future__ import annotations

import subprocess
import sys

import gradeline.ledger


def test_the_public_names_of_the_ledger() -> None:
    assert gradeline.ledger.__all__ == [
        "CALIBRATION_STATES",
        "Observation",
        "QualityLedger",
        "QualityRow",
        "new_observation",
        "observation_of",
        "prompt_key",
        "response_digest",
    ]
    assert [name for name in gradeline.ledger.__all__ if not hasattr(gradeline.ledger, name)] == []


def test_a_ledger_in_memory_loads_no_postgresql_driver_no_network_and_no_event_loop() -> None:
    script = (
        "import sys\nfrom gradeline.ledger import QualityLedger\nQualityLedger('memory://').query()\n"
        "print(*sorted({'asyncpg', 'aiohttp', 'asyncio', 'click', 'rich', 'gradeline.engine'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
