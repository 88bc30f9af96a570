"""The quality ledger: append-only observations of candidates against baselines."""

from gradeline.ledger.quality import QualityLedger, QualityRow, observation_of, response_digest
from gradeline.model.observation import CALIBRATION_STATES, Observation, new_observation, prompt_key

__all__ = [
    "CALIBRATION_STATES",
    "Observation",
    "QualityLedger",
    "QualityRow",
    "new_observation",
    "observation_of",
    "prompt_key",
    "response_digest",
]
