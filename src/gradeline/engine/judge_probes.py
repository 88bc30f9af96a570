"""The stored findings of probes, for showing them where a judge is used."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gradeline.model import Run, Storage
from gradeline.model.probe import PROBE_NAMES, ProbeFinding, ProbeName, ProbeReport
from gradeline.store.database import SharedStorage
from gradeline.store.trust_records import TrustRecord, put_record, records

KIND = "probe"


def save_probe_report(storage: Storage, report: ProbeReport) -> int:
    """Add the report to the records about its judge."""
    body = msgspec.json.encode(report).decode()
    return put_record(storage, TrustRecord(KIND, report.suite, report.grader, report.judge, report.at, body))


def probe_reports(storage: Storage, judge: str) -> list[ProbeReport]:
    """All reports on the judge with this fingerprint, oldest first."""
    if not isinstance(storage, SharedStorage):
        return []
    found = (read_probe_report(one) for one in records(storage, KIND, judge=judge))
    return [report for report in found if report is not None]


def read_probe_report(record: TrustRecord) -> ProbeReport | None:
    """The report in a record of the store; None for one of a later version that this one cannot read."""
    try:
        return msgspec.json.decode(record.body, type=ProbeReport)
    except msgspec.MsgspecError:
        return None


def latest_findings(reports: Iterable[ProbeReport]) -> tuple[ProbeFinding, ...]:
    """The latest finding of each probe: a report may be of some probes only."""
    found: dict[ProbeName, ProbeFinding] = {}
    for report in reports:
        found.update({one.probe: one for one in report.findings})
    return tuple(found[name] for name in PROBE_NAMES if name in found)


def probe_findings(storage: Storage, run: Run) -> dict[str, tuple[ProbeFinding, ...]]:
    """By grader of a run, what is known of its judge; graders whose judge was never probed are left out."""
    known = {
        key: latest_findings(probe_reports(storage, grader.calibrated_as))
        for key, grader in run.graders.items()
        if grader.judges
    }
    return {key: findings for key, findings in known.items() if findings}


def flagged_sentences(findings: Iterable[ProbeFinding]) -> tuple[str, ...]:
    """The biases that probes flagged."""
    return tuple(f"probe {one.probe}: flagged: {one.sentence}" for one in findings if one.verdict == "flagged")


def probes_in_words(findings: Iterable[ProbeFinding]) -> tuple[str, ...]:
    """The biases that probes flagged, or in one line what they found otherwise."""
    known = list(findings)
    flagged = flagged_sentences(known)
    if flagged:
        return flagged
    passed = [one.probe for one in known if one.verdict == "not_flagged"]
    unknown = [one.probe for one in known if one.verdict == "not_enough_data"]
    parts = [f"nothing flagged by {', '.join(passed)}"] if passed else []
    parts += [f"not enough data for {', '.join(unknown)}"] if unknown else []
    return (f"probes: {'; '.join(parts)}",) if parts else ()
