"""Runs that the service works on: stopped, cancelled, resumed, retried and regraded."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import StoreError
from gradeline.model import Run
from gradeline.rest_types import EarlyStop
from gradeline.service import runner
from gradeline.service.auth import LOCAL_CALLER
from gradeline.service.errors import ServiceError
from gradeline.service.secrets import Binding
from gradeline.service.service import Service, build_service
from gradeline.service.settings import ServeSettings
from gradeline.service.suite_builder import EvaluationRequest
from gradeline.testing.fake_judge import FakeJudge
from gradeline.testing.fake_judge.server import BehaviourRule

sys.path.insert(0, str(Path(__file__).parent))

from live import PATIENCE_S, EchoAgent, suite_of

Start = Callable[..., str]


@pytest.fixture
def agent() -> Iterator[EchoAgent]:
    with EchoAgent() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServeSettings:
    if request.param == "sqlite":
        return ServeSettings(store=str(tmp_path / "store.db"), secret_key=b"a master key of the tests, long enough")
    url: str = request.getfixturevalue("postgres_url")
    return ServeSettings(store=url, secret_key=b"a master key of the tests, long enough")


@pytest.fixture
def service(settings: ServeSettings) -> Iterator[Service]:
    """A runner without a server."""
    built = build_service(settings)
    built.start()
    try:
        yield built
    finally:
        built.stop()


def start(service: Service, suite: dict[str, Any], **asked: Any) -> str:
    found: str = service.evaluations.start(EvaluationRequest(suite=suite, **asked), LOCAL_CALLER)[0].id
    return found


def ended(service: Service, run: str) -> Run:
    """The run, once it has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = service.storage.get_run(run)
        assert found is not None
        if found.status not in ("pending", "running"):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def outcomes(service: Service, run: str) -> dict[str, str]:
    """The outcome of each case by the first grader."""
    return {record.case: next(iter(record.grades.values())).outcome.value for record in service.storage.records(run)}


def test_a_run_logs_one_record_per_phase(service: Service, agent: EchoAgent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gradeline.run"):
        run = ended(service, start(service, suite_of(agent, 3))).id
        deadline = time.monotonic() + PATIENCE_S
        found: list[dict[str, Any]] = []
        while len(found) < 4:  # the last is written when the run has ended
            assert time.monotonic() < deadline, caplog.messages
            time.sleep(0.01)
            found = [record.gradeline_phase for record in caplog.records if hasattr(record, "gradeline_phase")]
    assert [(one["run"], one["phase"]) for one in found] == [
        (run, phase) for phase in ("initialise", "execute", "grade", "aggregate")
    ]
    assert (found[1]["called"], found[3]["responses"], found[3]["status"]) == (3, 3, "completed")


def test_a_run_is_answered_and_graded(service: Service, agent: EchoAgent) -> None:
    run = start(service, suite_of(agent, 3, wrong=1))
    assert ended(service, run).status == "completed"
    assert outcomes(service, run) == {"q0": "fail", "q1": "pass", "q2": "pass"}
    assert agent.calls == {"q 0": 1, "q 1": 1, "q 2": 1}


def test_no_more_runs_are_worked_on_at_once_than_allowed(service: Service, agent: EchoAgent) -> None:
    agent.may_answer.clear()
    runs = [start(service, suite_of(agent, 1, prefix=f"p{n}")) for n in range(6)]
    agent.wait_for(service.settings.runs_at_once)
    assert service.runner.running == service.settings.runs_at_once
    assert service.runner.queue.waiting() == 6 - service.settings.runs_at_once
    agent.may_answer.set()
    assert [ended(service, run).status for run in runs] == ["completed"] * 6


def test_a_failed_call_is_a_result_and_the_run_is_complete(service: Service, agent: EchoAgent) -> None:
    agent.failing = {"q 1"}
    run = start(service, suite_of(agent, 3))
    assert ended(service, run).status == "completed"
    assert outcomes(service, run) == {"q0": "pass", "q1": "skipped", "q2": "pass"}


def test_a_run_continues_in_the_next_process_after_a_stop(settings: ServeSettings, agent: EchoAgent) -> None:
    agent.failing = {"q 0"}
    first = build_service(settings)
    first.start()
    run = start(first, suite_of(agent, 40, concurrency=2))
    agent.seconds = 0.02
    agent.wait_for(10)
    first.stop()
    second = build_service(settings)
    try:
        stored = second.storage.get_run(run)
        assert stored is not None
        assert (stored.status, stored.owner) == ("pending", None)
        second.start()
        assert ended(second, run).status == "completed"
        assert set(agent.calls.values()) == {1}, "what failed was an answer too: nobody asked to try it again"
        assert len(outcomes(second, run)) == 40
    finally:
        second.stop()


def test_a_cancelled_run_is_resumed_with_the_missing_results(service: Service, agent: EchoAgent) -> None:
    agent.seconds = 0.02
    run = start(service, suite_of(agent, 50, concurrency=2))
    agent.wait_for(5)
    service.evaluations.cancel(run)
    stopped = ended(service, run)
    assert (stopped.status, stopped.error_message) == ("cancelled", "cancelled by request")
    assert agent.total < 50
    agent.seconds = 0.0
    assert service.evaluations.resume(run, LOCAL_CALLER).status in ("pending", "running")
    assert ended(service, run).status == "completed"
    assert set(agent.calls.values()) == {1}
    assert len(outcomes(service, run)) == 50


def test_a_judge_that_refuses_every_call_fails_the_run_and_resume_finishes_it(
    service: Service, agent: EchoAgent
) -> None:
    with FakeJudge("perfect").in_thread() as judge:
        judge.rules = (BehaviourRule(behaviour="403"),)
        suite = suite_of(agent, 6)
        options = {"prompt": "{submission}", "model": "m", "base_url": judge.base_url(), "max_retries": 0}
        suite["graders"] = {"quality": {"kind": "model_judge", "config": options}}
        run = start(service, suite)
        stopped = ended(service, run)
        assert stopped.status == "failed"
        assert "HTTP 403" in str(stopped.error_message)
        judge.rules = (BehaviourRule(behaviour="403", contains="q 3"),)
        service.evaluations.resume(run, LOCAL_CALLER)
        assert ended(service, run).status == "completed"
        assert sorted(outcomes(service, run).values()) == ["error", *["pass"] * 5]


def test_a_cancelled_run_does_not_wait_for_an_agent_that_hangs(service: Service, agent: EchoAgent) -> None:
    agent.may_answer.clear()
    run = start(service, suite_of(agent, 2))
    agent.wait_for(2)
    service.evaluations.cancel(run)
    stopped = ended(service, run)
    assert (stopped.status, stopped.error_message) == ("cancelled", "cancelled by request")
    assert outcomes(service, run) == {}


def test_failed_cases_are_retried_and_stay_in_the_history(service: Service, agent: EchoAgent) -> None:
    agent.failing = {"q 1"}
    run = start(service, suite_of(agent, 3))
    ended(service, run)
    agent.failing = set()
    service.evaluations.retry_failed(run, LOCAL_CALLER)
    assert ended(service, run).status == "completed"
    assert outcomes(service, run) == {"q0": "pass", "q1": "pass", "q2": "pass"}
    assert agent.calls == {"q 0": 1, "q 1": 2, "q 2": 1}
    history = service.database.read("SELECT case_key, repeat, attempt, response FROM response_history")
    assert [(*row[:3], '"status":"error"' in row[3]) for row in history] == [("q1", 0, 1, True)]
    graded = service.database.read("SELECT case_key, attempt, grader, grade FROM grade_history")
    assert [(*row[:3], '"outcome":"skipped"' in row[3]) for row in graded] == [("q1", 1, "exact", True)]


def test_a_regrade_never_calls_the_agent_even_with_missing_answers(service: Service, agent: EchoAgent) -> None:
    agent.seconds = 0.02
    run = start(service, suite_of(agent, 100, concurrency=1), repeats=2)
    agent.wait_for(3)
    service.evaluations.cancel(run)
    ended(service, run)
    calls = agent.total
    answered = service.evaluations.get(run).result_count
    regraded = service.evaluations.regrade(run, [{"id": "contains", "name": "has it"}], LOCAL_CALLER)
    done = ended(service, regraded.id)
    assert (done.status, done.parent, done.total) == ("completed", run, answered)
    assert set(outcomes(service, regraded.id).values()) == {"pass"}
    assert agent.total == calls


def test_a_run_of_the_command_line_can_be_regraded_here(service: Service, tmp_path: Path, agent: EchoAgent) -> None:
    import json

    from gradeline.cli import run_cli as gradeline

    file = tmp_path / "suite.json"
    file.write_text(json.dumps(suite_of(agent, 2)))
    gradeline(["--store", service.settings.store, "run", str(file), "--quiet"])
    (made,) = service.storage.list_runs()
    regraded = service.evaluations.regrade(made.id, ["contains"], LOCAL_CALLER)
    assert ended(service, regraded.id).status == "completed"
    assert agent.total == 2
    assert regraded.target == service.evaluations.get(made.id).target


def test_a_queued_run_can_be_resumed_by_the_command_line(settings: ServeSettings, agent: EchoAgent) -> None:
    from gradeline.cli import run_cli as gradeline

    idle = build_service(settings)
    try:
        run = start(idle, suite_of(agent, 3))
        assert gradeline(["--store", settings.store, "resume", run, "--quiet"]) == 0
        assert agent.calls == {"q 0": 1, "q 1": 1, "q 2": 1}
        idle.start()
        assert ended(idle, run).status == "completed"
        assert agent.total == 3
    finally:
        idle.stop()


def test_an_address_that_is_refused_by_then_is_not_dialled(
    settings: ServeSettings, service: Service, agent: EchoAgent
) -> None:
    from gradeline.service.auth import KeyScope

    service.runner.stop(0)
    run = start(service, suite_of(agent, 2))
    service.keys.create(KeyScope.ADMIN)  # key mode: loopback is out of bounds from now on
    service.runner.start()
    assert ended(service, run).status == "completed"
    assert outcomes(service, run) == {"q0": "skipped", "q1": "skipped"}
    assert agent.total == 0


def test_a_secret_reaches_the_agent_and_nothing_else(
    service: Service, settings: ServeSettings, agent: EchoAgent
) -> None:
    value = "Bearer the-very-secret-value"
    host = agent.url.split("/")[2]
    service.secrets.put("AGENT", value, Binding((host,)))
    suite = suite_of(agent, 2)
    suite["target"]["headers"] = {"Authorization": {"secret": "AGENT"}}
    run = start(service, suite)
    assert ended(service, run).status == "completed"
    assert agent.authorization == {value}
    assert "${AGENT}" in service.evaluations.suite(run)
    kept = service.storage.get_run(run)
    assert kept is not None
    assert "very-secret" not in repr(kept) + repr(list(service.storage.records(run)))
    if settings.store.endswith(".db"):
        folder = Path(settings.store).parent
        assert not any(b"very-secret" in file.read_bytes() for file in folder.iterdir() if file.is_file())


def test_a_secret_echoed_by_the_agent_is_not_stored(
    service: Service, settings: ServeSettings, agent: EchoAgent
) -> None:
    value = "Bearer the-very-secret-value"
    service.secrets.put("AGENT", value, Binding((agent.url.split("/")[2],)))
    suite = suite_of(agent, 2)
    suite["target"]["headers"] = {"Authorization": {"secret": "AGENT"}}
    agent.says = f"{{}}: I was sent {value}"
    run = start(service, suite)
    assert ended(service, run).status == "completed"
    texts = [record.response.text or "" for record in service.storage.records(run)]
    assert [text.startswith("q ") and "very-secret" not in text for text in texts] == [True, True]
    events = service.database.read("SELECT data FROM run_events WHERE run = ?", run)
    assert "very-secret" not in repr(events)
    if settings.store.endswith(".db"):
        folder = Path(settings.store).parent
        assert not any(b"very-secret" in file.read_bytes() for file in folder.iterdir() if file.is_file())


def test_the_expected_output_is_never_sent_to_the_agent(service: Service, agent: EchoAgent) -> None:
    suite = suite_of(agent, 5)
    for n, case in enumerate(suite["dataset"]):
        case |= {"ground_truth": f"ANSWER-KEY-{n}", "metadata": {"hint": f"ANSWER-KEY-{n}"}}
    assert ended(service, start(service, suite)).status == "completed"
    assert len(agent.received) == 5
    assert not any("ANSWER-KEY" in request for request in agent.received)


def test_a_run_that_can_never_be_stored_fails(service: Service, agent: EchoAgent) -> None:
    service.runner.stop(0)
    run = start(service, suite_of(agent, 1))
    service.database.transact(lambda transaction: transaction.run("UPDATE jobs SET tries = 5"))
    service.runner.start()
    given_up = ended(service, run)
    assert given_up.status == "failed"
    assert given_up.error_message is not None
    assert given_up.error_message.startswith("failed after 5 attempts")
    assert agent.total == 0


def test_a_run_continues_when_the_store_works_again(
    service: Service, agent: EchoAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_BACKOFF_BASE_S", 0.01)
    broken = [StoreError("the disk is full")] * 2
    commit = type(service.storage)._commit  # type: ignore[attr-defined]

    def failing(*arguments: Any, **options: Any) -> Any:
        if broken:
            raise broken.pop()
        return commit(*arguments, **options)

    monkeypatch.setattr(type(service.storage), "_commit", failing)
    run = start(service, suite_of(agent, 3))
    assert ended(service, run).status == "completed"
    assert outcomes(service, run) == {"q0": "pass", "q1": "pass", "q2": "pass"}
    assert broken == []


def test_a_run_ends_as_soon_as_its_comparison_is_decided(service: Service, agent: EchoAgent) -> None:
    before = start(service, suite_of(agent, 120))
    ended(service, before)
    agent.says = "not {}"
    after = start(service, suite_of(agent, 120), baseline_id=before, stop_early=True)
    assert ended(service, after).status == "completed"
    shown = service.evaluations.get(after)
    assert shown.stopped == EarlyStop(look=1, n=6, of=120)
    assert shown.result_count < 120
    assert shown.comparison["graders"]["exact"]["test"] == "repeated_looks"
    assert shown.comparison["decision"] == "worse"
    assert shown.verdict["result"] == "fail"
    assert shown.verdict["reasons"][0].startswith("decided after 6 of 120 cases; ")
    assert service.evaluations.get(before).stopped is None


def stopped_run(service: Service, agent: EchoAgent) -> tuple[str, str]:
    """A baseline, and a run that ended early because it is worse."""
    before = start(service, suite_of(agent, 120))
    ended(service, before)
    agent.says = "not {}"
    after = start(service, suite_of(agent, 120), baseline_id=before, stop_early=True)
    ended(service, after)
    return before, after


def test_resume_with_all_runs_the_cases_that_an_early_end_skipped(service: Service, agent: EchoAgent) -> None:
    before, after = stopped_run(service, agent)
    stopped = service.evaluations.get(after)
    calls = agent.total
    assert stopped.calls_saved == 240 - calls == 120 - stopped.result_count
    resumed = service.evaluations.resume(after, LOCAL_CALLER, all_cases=True)
    assert (resumed.status in ("pending", "running"), resumed.stopped, resumed.calls_saved) == (True, None, 0)
    assert resumed.progress.total == 120
    assert ended(service, after).status == "completed"
    shown = service.evaluations.get(after)
    assert agent.total - calls == stopped.calls_saved  # no case is asked twice
    assert (shown.stopped, shown.calls_saved, shown.result_count) == (None, 0, 120)
    assert shown.verdict["reasons"][0] == "all 120 cases have run: this verdict replaces the one after 6 of them"
    assert (shown.verdict["result"], shown.comparison["graders"]["exact"]["test"]) == ("fail", "mcnemar_mid_p")
    assert service.evaluations.get(before).calls_saved == 0
    with pytest.raises(ServiceError, match="did not end early: no case is left to run"):
        service.evaluations.resume(after, LOCAL_CALLER, all_cases=True)


def test_a_run_that_ended_early_is_not_resumed_without_all(service: Service, agent: EchoAgent) -> None:
    before, after = stopped_run(service, agent)
    with pytest.raises(ServiceError, match=r'it ended early, so send {"all": true} to run its other cases'):
        service.evaluations.resume(after, LOCAL_CALLER)
    with pytest.raises(ServiceError, match="is completed and did not end early: no case is left to run"):
        service.evaluations.resume(before, LOCAL_CALLER, all_cases=True)
    assert service.evaluations.get(after).stopped is not None


def test_all_cases_of_a_cancelled_run_are_run_without_interim_looks(service: Service, agent: EchoAgent) -> None:
    before = start(service, suite_of(agent, 120))
    ended(service, before)
    agent.says = "not {}"
    agent.may_answer.clear()
    after = start(service, suite_of(agent, 120), baseline_id=before, stop_early=True)
    agent.wait_for(121)
    service.evaluations.cancel(after)
    assert ended(service, after).status == "cancelled"
    agent.may_answer.set()
    service.evaluations.resume(after, LOCAL_CALLER, all_cases=True)
    assert ended(service, after).status == "completed"
    shown = service.evaluations.get(after)
    assert (shown.stopped, shown.result_count) == (None, 120)


def test_a_regrade_of_a_run_that_ended_early_is_compared_by_its_look_and_has_no_cases_left(
    service: Service, agent: EchoAgent
) -> None:
    _, after = stopped_run(service, agent)
    again = service.evaluations.regrade(after, ["contains"], LOCAL_CALLER)
    ended(service, again.id)
    shown = service.evaluations.get(again.id)
    assert (shown.stopped, shown.calls_saved) == (EarlyStop(look=1, n=6, of=120), 0)
    message = f"grades the responses of '{after}'; resume that evaluation with all its cases, then regrade it"
    with pytest.raises(ServiceError, match=message):
        service.evaluations.resume(again.id, LOCAL_CALLER, all_cases=True)


def test_a_run_that_cannot_end_early_has_a_reason(service: Service, agent: EchoAgent) -> None:
    before = start(service, suite_of(agent, 20))
    ended(service, before)
    agent.may_answer.clear()
    after = start(service, suite_of(agent, 20), baseline_id=before, stop_early=True)
    (warning,) = service.evaluations.get(after).warnings
    assert warning.startswith("all cases are run, without an early stop: 20 cases in common with the baseline")
    agent.may_answer.set()
    ended(service, after)
    shown = service.evaluations.get(after)
    assert (shown.stopped, shown.result_count, shown.warnings) == (None, 20, ())
    assert "20 cases in common with the baseline are fewer than the 100" in shown.verdict["reasons"][0]


def test_an_early_end_needs_a_baseline(service: Service, agent: EchoAgent) -> None:
    with pytest.raises(ServiceError) as refused:
        start(service, suite_of(agent, 20), stop_early=True)
    reason = "needs a run to compare with: name one with 'baseline_id', or give the suite a regression gate"
    assert refused.value.message == f"Field 'stop_early': {reason}"
    assert refused.value.details == {"errors": [{"field": "stop_early", "message": reason}]}


def test_an_early_end_needs_a_baseline_with_the_same_cases(service: Service, agent: EchoAgent) -> None:
    before = start(service, suite_of(agent, 3))
    with pytest.raises(ServiceError) as refused:
        start(service, suite_of(agent, 3, prefix="other"), baseline_id=before, stop_early=True)
    reason = "has no case in common with this run; name a run of this suite as the baseline, or leave out 'stop_early'"
    assert refused.value.message == f"Field 'stop_early': the baseline {before} {reason}"


def test_the_finished_run_carries_the_comparison_with_its_baseline(service: Service, agent: EchoAgent) -> None:
    before = start(service, suite_of(agent, 20))
    ended(service, before)
    agent.says = "not {}"
    after = start(service, suite_of(agent, 20), baseline_id=before)
    ended(service, after)
    shown = service.evaluations.get(after)
    assert (shown.baseline_id, shown.comparison["baseline"]["id"], shown.comparison["comparable"]) == (
        before,
        before,
        True,
    )
    assert shown.comparison["graders"]["exact"]["decision"] == "worse"
    assert shown.verdict["result"] == "fail"


def test_several_models_make_one_run_each_in_one_group(service: Service, agent: EchoAgent) -> None:
    suite = suite_of(agent, 1)
    suite["target"] |= {"models": ["small", "large"]}
    run = start(service, suite)
    runs = service.storage.list_runs()
    assert [one.name for one in runs] == ["q [large]", "q [small]"]
    assert len({one.group for one in runs}) == 1
    assert run == runs[1].id
    assert [ended(service, one.id).status for one in runs] == ["completed"] * 2


def test_variants_make_one_run_each_in_one_group(service: Service, agent: EchoAgent) -> None:
    suite = suite_of(agent, 2)
    suite["variants"] = [{"name": "plain"}, {"name": "other", "set": {"target.request": {"input": "other {{input}}"}}}]
    run = start(service, suite)
    runs = service.storage.list_runs()
    assert [(one.name, one.variant) for one in runs] == [("q [other]", "other"), ("q [plain]", "plain")]
    assert len({one.group for one in runs}) == 1
    assert (run, service.evaluations.get(run).variant) == (runs[1].id, "plain")
    assert [ended(service, one.id).status for one in runs] == ["completed"] * 2
    regraded = service.evaluations.regrade(runs[0].id, ["contains"], LOCAL_CALLER)
    assert (regraded.variant, regraded.target["request"]) == ("other", {"input": "other {{input}}"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"kind": "command", "command": ["id"]}}, "Field 'suite.variants.v.target.kind': 'command' is not"),
        ({"target.url": "http://10.9.8.7/"}, "Field 'suite.variants.v.target.url'"),
        ({"target.headers.Authorization": "Bearer abcdefghij"}, "'suite.variants.v.target.headers' contains a secret"),
        ({"target.request": {"input": "${HOME}"}}, "variables are not read over REST"),
        ({"target.headers.X": {"secret": "absent"}}, "absent"),
        ({"graders.exact.kind": "contains"}, "only values of the target can be set"),
    ],
)
def test_a_variant_is_checked_as_the_target_is(
    service: Service, agent: EchoAgent, changes: dict[str, Any], message: str
) -> None:
    suite = suite_of(agent, 1) | {"variants": [{"name": "v", "set": changes}]}
    with pytest.raises(ServiceError, match=re.escape(message)):
        start(service, suite)
    assert service.storage.list_runs() == []


@pytest.mark.parametrize("prompt", ["suite.yaml", "../secret.txt", {"file": "a b"}])
def test_a_prompt_is_no_file_of_the_server(service: Service, agent: EchoAgent, prompt: object) -> None:
    with pytest.raises(ServiceError, match="files are not read over REST"):
        start(service, suite_of(agent, 1) | {"prompts": [prompt]})
