"""The tables of the service, by the name under which the store keeps their versions."""

from __future__ import annotations

from gradeline.service import (
    audit,
    audit_list,
    event_log,
    histograms,
    idempotency,
    keys,
    labels,
    queue,
    readiness,
    result_blocks,
    secrets,
    sessions,
    stored_graders,
    summaries,
    test_cases,
)
from gradeline.store.copying import Parts

PARTS: Parts = {
    "audit": audit.STEPS,
    "audit_list": audit_list.STEPS,
    "events": event_log.STEPS,
    "graders": stored_graders.STEPS,
    "histograms": histograms.STEPS,
    "idempotency": idempotency.STEPS,
    "keys": keys.STEPS,
    "labels": labels.STEPS,
    "queue": queue.STEPS,
    "readiness": readiness.STEPS,
    "result_blocks": result_blocks.STEPS,
    "secrets": secrets.STEPS,
    "sessions": sessions.STEPS,
    "summaries": summaries.STEPS,
    "test_cases": test_cases.STEPS,
}
"""For what copies a whole store; a test compares it with what a service creates."""
