"""Retention: which runs are deleted, which stay, and why."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.model.label import HumanVerdict
from gradeline.service import retention
from gradeline.service.retention import RetentionTask, decide, prune
from gradeline.service.service import Service, build_service
from gradeline.service.settings import RetentionRules, ServeSettings, age_of

sys.path.insert(0, str(Path(__file__).parent))

from live import Server

NOW = datetime(2026, 6, 1, tzinfo=UTC)
OLD, RECENT = "2026-01-01T00:00:00Z", "2026-05-31T00:00:00Z"
RULES = RetentionRules(older_than_s=90 * 86400)


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    if request.param == "sqlite":
        url = str(request.getfixturevalue("tmp_path") / "store.db")
    else:
        url = str(request.getfixturevalue("postgres_url"))
    built = build_service(ServeSettings(store=url))
    yield built
    built.stop()


def add(
    service: Service, name: str, ended: str | None = OLD, *, asked: dict[str, object] | None = None, **fields: object
) -> str:
    run = Run(
        id=name, name=f"the {name}", suite="s", completed_at=ended, graders={"exact": RunGrader("exact", "f")},
        **{"status": "completed", **fields},  # type: ignore[arg-type]
    )  # fmt: skip
    service.storage.save_run(run)
    key = ResponseKey(name, "a")
    service.storage.put_response(key, Response(text="x"), Sample("a", "q"))
    service.storage.put_grade(GradeKey(*key, "exact"), Grade("exact", "f", Outcome.PASS, 1.0, True))
    if asked is not None:
        service.database.transact(lambda transaction: service.runner.queue.add(transaction, run, json.dumps(asked)))
        service.database.transact(lambda transaction: transaction.run("UPDATE jobs SET state = 'done'"))
    return name


def definition(**fields: object) -> str:
    return json.dumps({"suite": "s.yaml", "options": [], **fields})


def reasons(service: Service, rules: RetentionRules = RULES) -> dict[str, str]:
    """Each run with the reason to retain it; runs to delete have an empty reason."""
    return {one.id: "" if one.deleted else one.reason for one in decide(service.database, rules, NOW)}


def test_old_runs_go_and_recent_ones_stay(service: Service) -> None:
    add(service, "old"), add(service, "recent", RECENT), add(service, "no-end", None, started_at=OLD)
    assert reasons(service) == {
        "old": "",
        "recent": f"it ended {RECENT}, which is not long enough ago",
        "no-end": "",
    }


def test_the_newest_stay_whatever_their_age(service: Service) -> None:
    for number in range(4):
        add(service, f"run-{number}")
    assert reasons(service, RetentionRules(keep=2)) == {
        "run-3": "it is one of the newest 2",
        "run-2": "it is one of the newest 2",
        "run-1": "",
        "run-0": "",
    }


def test_a_run_that_is_recent_goes_where_only_the_number_counts(service: Service) -> None:
    add(service, "first", RECENT), add(service, "second", RECENT)
    assert reasons(service, RetentionRules(keep=1))["first"] == ""
    both = RetentionRules(keep=1, older_than_s=90 * 86400)
    assert reasons(service, both)["first"].endswith("not long enough ago")


def test_runs_that_others_need_stay_with_the_reason(service: Service) -> None:
    for name in ("parent", "baseline", "compared", "replayed", "labelled", "tagged", "suite-tagged", "asked-tag"):
        fields = {
            "tagged": {"definition": definition(options=[None, ["release"]])},
            "suite-tagged": {"definition": definition(document={"tags": ["release"]})},
            "asked-tag": {"asked": {"tag": "release"}},
        }.get(name, {})
        add(service, name, **fields)  # type: ignore[arg-type]
    run = service.storage.get_run("labelled")
    record = service.storage.get_record(ResponseKey("labelled", "a"))
    assert run is not None
    assert record is not None
    service.labels.put(run, record, "exact", HumanVerdict("pass", "right"), None)
    add(service, "child", RECENT, parent="parent")
    add(service, "candidate", RECENT, asked={"baseline_id": "baseline"})
    add(service, "pairwise", RECENT, definition=definition(baselines={"judge": "compared"}))
    add(service, "replay", RECENT, target={"kind": "replay", "run": "the replayed"})
    found = reasons(service, RetentionRules(older_than_s=90 * 86400, keep_tags=("release",)))
    assert {name: reason for name, reason in found.items() if not reason.endswith("ago")} == {
        "parent": "it is the parent of child",
        "baseline": "it is the baseline of candidate",
        "compared": "it is the baseline of pairwise",
        "replayed": "its responses are used by replay",
        "labelled": "it has labels",
        "tagged": "it has the tag 'release'",
        "suite-tagged": "it has the tag 'release'",
        "asked-tag": "it has the tag 'release'",
    }
    assert reasons(service)["tagged"] == ""


def test_runs_that_have_not_ended_stay(service: Service) -> None:
    run = Run(id="waiting", name="n", suite="s", status="completed", completed_at=OLD)
    service.storage.save_run(run)
    service.database.transact(lambda transaction: service.runner.queue.add(transaction, run, "{}"))
    add(service, "pending", status="pending")
    assert reasons(service) == {"waiting": "it waits in the queue", "pending": "it is pending"}


def test_a_family_of_old_runs_goes_together_and_each_deletion_is_in_the_audit_log(service: Service) -> None:
    add(service, "parent"), add(service, "child", parent="parent"), add(service, "recent", RECENT)
    done = {one.id: one.deleted for one in prune(service.storage, RULES, now=NOW)}
    assert done == {"parent": True, "child": True, "recent": False}
    assert [run.id for run in service.storage.list_runs()] == ["recent"]
    assert service.database.read("SELECT run FROM responses") == [("recent",)]
    noted = service.database.read("SELECT action, subject FROM audit_log ORDER BY n")
    assert noted == [("evaluation.delete", "child"), ("evaluation.delete", "parent")]


def test_a_run_that_is_needed_again_meanwhile_is_not_deleted(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    add(service, "old")
    before = decide(service.database, RULES, NOW)

    def decided(*_: object) -> object:
        found = list(before)
        add(service, "child", RECENT, parent="old")
        return found

    monkeypatch.setattr(retention, "decide", decided)
    (kept,) = prune(service.storage, RULES, now=NOW)
    assert not kept.deleted
    assert "child" in kept.reason


def test_the_service_applies_its_rules_by_itself(tmp_path: Path) -> None:
    rules = RetentionRules(older_than_s=90 * 86400)
    service = build_service(ServeSettings(store=str(tmp_path / "store.db"), retention=rules))
    try:
        add(service, "old"), add(service, "recent", datetime.now(UTC).isoformat())
        gone = Event()
        delete = service.storage.delete_run

        def noted(run: str) -> bool:
            deleted = delete(run)
            gone.set()
            return deleted

        service.storage.delete_run = noted  # type: ignore[method-assign]
        service.start()
        assert gone.wait(60)
        assert [run.id for run in service.storage.list_runs()] == ["recent"]
    finally:
        service.stop()


def test_the_command_line_sets_the_rules(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    service = build_service(ServeSettings(store=str(store)))
    add(service, "old"), add(service, "tagged", definition=definition(options=[None, ["release"]]))
    service.stop()
    with Server(store, "--delete-older-than", "90d", "--keep-runs", "0", "--keep-tag", "release") as server:
        while server.call("GET", "/api/evaluations/old")[0] != 404:
            time.sleep(0.05)
        assert server.call("GET", "/api/evaluations/tagged")[0] == 200


def test_a_task_that_fails_tries_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    twice = Event()

    def fails(*_: object, **__: object) -> Iterator[object]:
        tries.append(1)
        if len(tries) == 2:
            twice.set()
        raise RuntimeError("unexpected")

    monkeypatch.setattr(retention, "prune", fails)
    task = RetentionTask(service.storage, RULES, interval_s=0.01)
    task.start()
    assert twice.wait(60)
    task.stop()


@pytest.mark.parametrize("text", ["", "90", "d", "0d", "1y", "-1d", "1.5d", "٣d"])
def test_an_age_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid age"):
        age_of(text, "--older-than")


def test_without_a_rule_nothing_is_deleted() -> None:
    with pytest.raises(ConfigError, match="set an age, a number to keep, or both"):
        RetentionRules(keep_tags=("release",))
