"""Fingerprints: digests of the configuration that determines a result."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from gradeline.model.sample import Sample

_LENGTH = 32
_canonical = msgspec.json.Encoder(order="deterministic")


def canonical_json(value: object) -> bytes:
    """The same bytes for equal data: keys sorted, no spaces."""
    return _canonical.encode(value)


def fingerprint(*parts: object) -> str:
    """128 bits of SHA-256 over the canonical JSON of the parts. Never pass secrets."""
    return sha256(canonical_json(parts)).hexdigest()[:_LENGTH]


def case_digest(sample: Sample) -> str:
    """Digest of the content of a case, without id and tags; changes when the case is edited."""
    return fingerprint(
        "case",
        1,
        sample.input,
        sample.ground_truth,
        sample.metadata,
        sample.agent_args,
        sample.rubric_vars,
        sample.extra_vars,
        sample.rubric,
        sample.rubric_path,
    )
