"""The client against a real service: cases, graders, evaluations, results, files."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from gradeline.client import ApiError, AsyncClient, Client, Evaluation, ServiceUnreachableError, WaitTimeoutError
from gradeline.errors import ConfigError
from gradeline.model import Run

pytestmark = pytest.mark.usefixtures("served")


@pytest.fixture
def client(served: Any) -> Client:
    return Client(served.url)


def evaluated(client: Client, agent: Any, texts: dict[str, str], **more: Any) -> Evaluation:
    """A completed evaluation of an echoing agent."""
    ids = [client.create_test_case(text, expected).id for text, expected in texts.items()]
    graders = more.pop("grader_ids", ["exact_match"])
    run = client.start_evaluation(test_case_ids=ids, agent_endpoint_url=agent.url, grader_ids=graders, **more)
    return client.wait(run.id, timeout_s=30)


def test_life_cycle_of_test_cases(client: Client) -> None:
    case = client.create_test_case("2 + 2?", "4", description="sums", tags=["math"])
    assert (case.input, case.expected_output, case.description, case.tags) == ("2 + 2?", "4", "sums", ("math",))
    assert client.get_test_case(case.id) == case
    checks = [{"condition": "contains", "value": "4"}]
    assert (case.checks, client.update_test_case(case.id, checks=checks).checks) == (None, checks)
    assert client.create_test_case("2 + 2?", "4", checks=checks).checks == checks
    changed = client.update_test_case(case.id, expected_output="four", description=None)
    assert changed.checks == checks
    assert (changed.input, changed.expected_output, changed.description) == ("2 + 2?", "four", None)
    client.delete_test_case(case.id)
    with pytest.raises(ApiError) as refused:
        client.get_test_case(case.id)
    assert (refused.value.status, refused.value.code) == (404, "NOT_FOUND")


def test_lists_are_paged(client: Client) -> None:
    made = [client.create_test_case(f"q{number}", "a", tags=["even"] if number % 2 == 0 else []) for number in range(7)]
    assert list(client.test_cases(limit=2)) == made
    assert [case.input for case in client.test_cases(tag="even", limit=3)] == ["q0", "q2", "q4", "q6"]


def test_test_cases_are_imported_and_exported(client: Client) -> None:
    lines = b'{"input": "a", "expected_output": "=1"}\n{"input": "b", "expected_output": "2"}\n'
    assert client.import_test_cases(lines) == 2
    assert client.import_test_cases(io.BytesIO(b"input,expected_output\nc,3\n"), "csv") == 1
    assert [json.loads(line)["input"] for line in client.export_test_cases().splitlines()] == ["a", "b", "c"]
    assert b"'=1" in client.export_test_cases("csv")
    with pytest.raises(ApiError) as refused:
        client.import_test_cases(b'{"input": "a"}\n')
    assert refused.value.details is not None
    assert refused.value.details["errors"][0]["line"] == 1


def test_graders_are_stored_previewed_and_deleted(client: Client) -> None:
    definition = {"name": "polite", "type": "contains", "config": {}}
    made = client.create_grader(definition)
    assert client.get_grader(made.id).name == "polite"
    assert client.update_grader(made.id, {"name": "kind"}).name == "kind"
    score = client.preview_grader(made.id, {"agent_response": "yes please", "expected_output": "please"})
    assert (score.score_status, score.score_value) == ("pass", 1.0)
    assert made.id in {grader.id for grader in client.graders()}
    client.delete_grader(made.id)
    assert made.id not in {grader.id for grader in client.graders()}


def test_life_cycle_of_an_evaluation(client: Client, agent: Any, tmp_path: Path) -> None:
    run = evaluated(client, agent, {"Paris": "Paris", "Lyon": "Paris"}, name="capitals")
    assert (run.status, run.name, run.result_count) == ("completed", "capitals", 2)
    results = list(client.results(run.id, limit=1))
    assert [(one.agent_response, one.scores[0].score_status) for one in results] == [
        ("Paris", "pass"),
        ("Lyon", "fail"),
    ]
    assert [one.agent_response for one in client.results(run.id, outcome="fail")] == ["Lyon"]
    spread = client.histograms(run.id)
    assert [column.count for column in spread.scores["exact_match"]] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert sum(column.count for column in spread.latency_ms) == 2
    best = spread.scores["exact_match"][-1]
    good = client.results(run.id, grader="exact_match", score_min=best.low, score_max=best.high, latency_min=0)
    assert [one.agent_response for one in good] == ["Paris"]
    assert list(client.results(run.id, latency_min=spread.latency_ms[-1].high + 1)) == []
    single = client.get_result(run.id, results[1].result_id)
    assert (single.test_case_id, single.response.text) == (results[1].test_case_id, "Lyon")
    summary = client.summary(run.id)
    assert (summary.sentence, summary.pass_rates["exact_match"].value) == ("2 responses graded, 0 grader errors", 0.5)
    assert client.export(run.id, "csv").startswith(b"run,case,")
    place = client.download(run.id, tmp_path / "run.json")
    assert [one["result_id"] for one in json.loads(place.read_bytes())["results"]] == [one.result_id for one in results]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    assert "capitals" in client.suite_of(run.id)
    (listed,) = client.evaluations(status="completed")
    assert listed.pass_rates is not None
    rate = listed.pass_rates["exact_match"]
    assert (listed.id, rate.value, rate.scored, rate.total) == (run.id, 0.5, 2, 2)


def test_an_agent_can_be_tried_before_an_evaluation(client: Client, agent: Any) -> None:
    trial = client.try_agent(agent_endpoint_url=agent.url, input="Paris", timeout_s=5)
    assert (trial.response_status, trial.agent_response, trial.error_type) == ("success", "Paris", None)
    (exchange,) = trial.exchanges
    assert (exchange.request.method, exchange.request.url) == ("POST", agent.url)
    assert exchange.answer is not None
    assert (exchange.answer.status, exchange.answer.body) == (200, '{"response": "Paris"}')
    agent.failing = {"Lyon"}
    assert client.try_agent(target={"kind": "http", "url": agent.url}, input="Lyon").error_type == "status"
    assert list(client.evaluations()) == []


def test_an_agent_can_be_tried_in_an_event_loop(served: Any, agent: Any) -> None:
    async def tried() -> str | None:
        async with AsyncClient(served.url) as client:
            return (await client.try_agent(agent_endpoint_url=agent.url, input="Paris")).agent_response

    assert asyncio.run(tried()) == "Paris"


def test_scores_have_the_name_of_the_grader_at_that_time(client: Client, agent: Any) -> None:
    made = client.create_grader({"name": "Says it", "type": "contains", "config": {}})
    run = evaluated(client, agent, {"It is Paris": "Paris"}, grader_ids=[made.id])
    client.update_grader(made.id, {"name": "Another name"})
    [result] = client.results(run.id)
    assert (result.scores[0].grader_id, result.scores[0].grader_name) == (made.id, "Says it")


def test_events_end_with_done_and_continue_after_an_id(client: Client, agent: Any) -> None:
    run = evaluated(client, agent, {"a": "a", "b": "b"})
    whole = list(client.events(run.id))
    assert (whole[0].type, whole[-1].type) == ("snapshot", "done")
    assert list(client.events(run.id, after=whole[-1].id)) == []


def test_the_same_key_is_the_same_evaluation(client: Client, agent: Any) -> None:
    case = client.create_test_case("a", "a")
    asked: dict[str, Any] = {
        "test_case_ids": [case.id],
        "agent_endpoint_url": agent.url,
        "grader_ids": ["exact_match"],
        "idempotency_key": "once",
    }
    first, second = client.start_evaluation(**asked), client.start_evaluation(**asked)
    assert first.id == second.id
    with pytest.raises(ApiError) as refused:
        client.start_evaluation(**asked, name="another")
    assert (refused.value.status, refused.value.code) == (422, "IDEMPOTENCY_KEY_REUSED")
    client.wait(first.id, timeout_s=30)


def test_regrading_compares_with_its_parent_without_calling_the_agent(client: Client, agent: Any) -> None:
    run = evaluated(client, agent, {"Paris": "Paris", "It is Paris": "Paris"})
    asked = agent.total
    again = client.wait(client.regrade(run.id, [{"id": "contains", "name": "exact_match"}]).id, timeout_s=30)
    assert (again.parent, agent.total) == (run.id, asked)
    assert [one.scores[0].score_status for one in client.results(again.id)] == ["pass", "pass"]
    refused = client.compare(run.id, again.id)
    assert (refused.comparability.comparable, refused.graders) == (False, {})
    forced = client.compare(run.id, again.id, force=True)
    assert [case.change for case in forced.cases] == ["same", "improved"]
    assert forced.graders["exact_match"].n == 2
    assert (forced.graders["exact_match"].noise, forced.graders["exact_match"].within_noise) == (0.0, 0)
    assert [case.changes for case in forced.cases] == [{"exact_match": "same"}, {"exact_match": "improved"}]
    with pytest.raises(ApiError, match="CONFLICT"):
        client.delete_evaluation(run.id)
    third = client.wait(client.regrade(run.id, [{"id": "contains", "name": "exact_match"}]).id, timeout_s=30)
    ranking = client.rank(run.id, again.id, third.id, force=True)
    assert (ranking.cases, [len(pairs) for pairs in ranking.pairs.values()]) == (2, [3])
    assert {one.evaluation_id for one in ranking.evaluations} == {run.id, again.id, third.id}
    assert ranking.noise == {"exact_match": 0.0}
    series = client.trend(run.name, last=2)
    assert [point.evaluation_id for point in series.points] == [again.id, third.id]
    client.delete_evaluation(third.id)
    client.delete_evaluation(again.id)
    client.delete_evaluation(run.id)
    assert list(client.evaluations()) == []


def test_a_failed_call_is_tried_again_on_request(client: Client, agent: Any) -> None:
    agent.failing.add("b")
    run = evaluated(client, agent, {"a": "a", "b": "b"})
    assert [one.response_status for one in client.results(run.id)] == ["success", "error"]
    agent.failing.clear()
    assert client.retry_failed(run.id).id == run.id
    client.wait(run.id, timeout_s=30)
    results = list(client.results(run.id))
    assert [one.response_status for one in results] == ["success", "success"]
    assert len(client.get_result(run.id, results[1].result_id).history) == 1


def test_cancelling_and_resuming(client: Client, agent: Any) -> None:
    agent.may_answer.clear()
    cases = [client.create_test_case(text, text).id for text in "abc"]
    run = client.start_evaluation(
        test_case_ids=cases, agent_endpoint_url=agent.url, grader_ids=["exact_match"], timeout_s=60, concurrency=1
    )
    agent.wait_for(1)
    with pytest.raises(WaitTimeoutError, match="is still"):
        client.wait(run.id, timeout_s=0.01)
    client.cancel(run.id)
    cancelled = client.wait(run.id, timeout_s=30)
    assert cancelled.status == "cancelled", cancelled.error_message
    agent.may_answer.set()
    client.resume(run.id)
    assert client.wait(run.id, timeout_s=30).status == "completed"
    assert [one.agent_response for one in client.results(run.id)] == ["a", "b", "c"]


def test_the_cases_skipped_by_an_early_end_are_run(client: Client, served: Any, agent: Any) -> None:
    texts = {f"q {number}": f"q {number}" for number in range(120)}
    before = evaluated(client, agent, texts)
    agent.says = "not {}"
    ids = [case.id for case in client.test_cases()]
    asked: dict[str, Any] = {"agent_endpoint_url": agent.url, "grader_ids": ["exact_match"], "test_case_ids": ids}
    run = client.start_evaluation(**asked, baseline_id=before.id, stop_early=True)
    stopped = client.wait(run.id, timeout_s=30)
    assert stopped.stopped is not None
    assert (stopped.stopped.of, stopped.calls_saved) == (120, 120 - stopped.result_count)
    assert (before.stop_early, stopped.stop_early) == (False, True)
    assert stopped.warnings == before.warnings
    with pytest.raises(ApiError, match=r'send {"all": true}'):
        client.resume(run.id)

    async def finished() -> Evaluation:
        async with AsyncClient(served.url) as opened:
            await opened.resume(run.id, all=True)
            return await opened.wait(run.id, timeout_s=30)

    done = asyncio.run(finished())
    assert (done.status, done.stopped, done.calls_saved, done.result_count) == ("completed", None, 0, 120)


class TestAnInterruptedRun:
    """A run of the command line whose process is gone: the service does not resume it."""

    @pytest.fixture
    def killed(self, served: Any) -> str:
        run: str = served.service.storage.save_run(Run(name="killed", suite="s", status="running", owner=None))
        return run

    def test_waiting_for_an_interrupted_run_ends(self, client: Client, killed: str) -> None:
        assert client.wait(killed, timeout_s=30).status == "interrupted"
        assert [event.type for event in client.events(killed)] == ["snapshot", "done"]

    def test_waiting_ends_in_an_event_loop_too(self, served: Any, killed: str) -> None:
        async def waited() -> str:
            async with AsyncClient(served.url) as client:
                return (await client.wait(killed, timeout_s=30)).status

        assert asyncio.run(waited()) == "interrupted"

    def test_a_run_that_the_service_resumes_itself_has_not_ended(self, client: Client, killed: str) -> None:
        killed_run = client.get_evaluation(killed)
        assert killed_run.ended
        assert not replace(killed_run, held_by_service=True).ended
        assert not replace(killed_run, held_by_service=UNSET).ended  # unknown, as in lists


def test_a_key_gives_access(served: Any) -> None:
    key = served.key("run")
    with pytest.raises(ApiError) as refused:
        list(Client(served.url).test_cases())
    assert (refused.value.status, refused.value.code) == (401, "UNAUTHORIZED")
    with Client(served.url, key) as client:
        case = client.create_test_case("a", "b")
        with pytest.raises(ApiError, match="FORBIDDEN"):
            client.create_grader({"name": "x", "type": "contains", "config": {}})
        assert key not in repr(client)
    assert [one.id for one in Client(served.url, key).test_cases()] == [case.id]


async def _async_round(url: str, agent_url: str, folder: Path) -> None:
    async with AsyncClient(url) as client:
        case = await client.create_test_case("Paris", "Paris")
        await client.import_test_cases(io.BytesIO(b'{"input": "x", "expected_output": "y"}\n'))
        assert [one.input async for one in client.test_cases(limit=1)] == ["Paris", "x"]
        run = await client.start_evaluation(
            test_case_ids=[case.id], agent_endpoint_url=agent_url, grader_ids=["exact_match"]
        )
        kinds = [event.type async for event in client.events(run.id)]
        assert kinds[-1] == "done"
        assert (await client.wait(run.id, timeout_s=30)).status == "completed"
        [result] = [one async for one in client.results(run.id)]
        assert result.scores[0].score_status == "pass"
        assert (await client.get_result(run.id, result.result_id)).agent_response == "Paris"
        assert (await client.summary(run.id)).total_results == 1
        assert [column.count for column in (await client.histograms(run.id)).latency_ms].count(1) == 1
        place = await client.download(run.id, folder / "run.jsonl", "jsonl")
        assert place.read_bytes() == await client.export(run.id, "jsonl")
        with pytest.raises(ApiError, match="NOT_FOUND"):
            await client.get_evaluation("nope")
        await client.delete_test_case(case.id)


def test_the_asynchronous_client_does_the_same(served: Any, agent: Any, tmp_path: Path) -> None:
    import asyncio

    asyncio.run(_async_round(served.url, agent.url, tmp_path))


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        methods = {name: value for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"}
        return {name: list(inspect.signature(value).parameters) for name, value in methods.items()}

    ours, theirs = surface(Client), surface(AsyncClient)
    del ours["close"], theirs["aclose"]
    assert ours == theirs
    assert ours["get_result"] == ["self", "id", "result_id"]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://x", "http://", "http://a:b@x", "http://x/?a=b", "http://x:99999"]
)
def test_an_invalid_url_is_reported_at_once_without_its_password(url: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ConfigError, match="base_url") as refused:
            kind(url)
        assert "a:b" not in str(refused.value)


def test_an_unreachable_service_is_reported_with_its_address() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
    with pytest.raises(ServiceUnreachableError, match=f"no response from http://127.0.0.1:{port}"):
        Client(f"http://127.0.0.1:{port}").create_test_case("a", "b")


def test_a_client_loads_neither_the_service_nor_the_engine() -> None:
    import subprocess
    import sys

    script = "import sys, gradeline.client; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith("gradeline.") and name.count(".") == 1}
    shared = {"gradeline.errors", "gradeline.model", "gradeline.rest_types", "gradeline.stats", "gradeline.verdict"}
    assert ours == {"gradeline.client", "gradeline.lazy_exports", *shared}
    assert not loaded & {"aiohttp", "fastapi", "pydantic", "sqlite3"}
