"""A cost limit counts known costs, reports what it does not count, and never counts an unknown cost as 0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.api import run_suite
from gradeline.cli import run_cli as gradeline
from gradeline.errors import ConfigError
from gradeline.testing.fake_judge import FakeJudge

CASES = 12
AGENTS = {
    "silent": "def answer(question):\n    return question\n",
    "tokens": (
        "from gradeline import Response, Usage\n\n"
        "def answer(question):\n    return Response(text=question, usage=Usage(1_000_000, 500_000))\n"
    ),
    "cost": (
        "from gradeline import Response, Usage\n\n"
        "def answer(question):\n    return Response(text=question, usage=Usage(cost=1.0))\n"
    ),
}
MODEL = "{{kind: openai, model: m, base_url: '{url}', api_key: none, retries: 0}}"
JUDGE = "{{kind: model_judge, prompt: '{{submission}}', model: j, base_url: '{url}', max_retries: 0}}"


class BudgetProject:
    """Suites with a limit on the cost, run as a script would."""

    def __init__(self, folder: Path, server: FakeJudge, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.server = server
        self.capsys = capsys
        rows = [{"id": f"c{n}", "input": f"q{n}"} for n in range(CASES)]
        (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def suite(self, agent: str, *, judged: bool = False, cost: float | None = 5, more: str = "") -> Path:
        """A suite of a Python agent, or of a model."""
        target = "{kind: python, function: 'agent.py:answer', isolation: none, concurrency: 1}"
        if agent == "model":
            target = MODEL.format(url=self.server.base_url())
        else:
            (self.folder / "agent.py").write_text(AGENTS[agent])
        lines = ["name: paid", "dataset: cases.jsonl", f"target: {target}", "concurrency: 1", "graders:"]
        lines += ["  long: {kind: custom-rules, config: {rules: [{condition: word_count_min, value: 1}]}}"]
        lines += [f"  quality: {JUDGE.format(url=self.server.base_url())}"] if judged else []
        lines += [] if cost is None else [f"budget: {{cost: {cost}}}"]
        path = self.folder / "suite.yaml"
        path.write_text("\n".join([*lines, more]) + "\n")
        return path

    def command(self, *arguments: str) -> tuple[int, Any, str]:
        code = gradeline(["--store", str(self.folder / "store.db"), *arguments, "--json"])
        printed = self.capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else None, printed.err

    @property
    def number_of_calls(self) -> int:
        return self.server.counts().requests


@pytest.fixture
def budgeted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BudgetProject]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADELINE_PRICES", raising=False)
    with FakeJudge("perfect").in_thread() as server:
        yield BudgetProject(tmp_path, server, capsys)


class TestBeforeTheFirstCall:
    def test_a_model_without_a_price_is_refused(self, budgeted: BudgetProject) -> None:
        code, data, err = budgeted.command("run", str(budgeted.suite("model")))
        assert (code, data, budgeted.number_of_calls) == (2, None, 0)
        assert (
            "budget.cost: no price is known for the agent (m), so a budget of 5 would limit nothing; give one with"
            " prices: {m: {input: …, output: …}} in the suite, or with --assume-price m=INPUT/OUTPUT (US dollars per"
            " million tokens), or limit calls instead" in err
        )

    def test_a_model_and_a_judge_without_prices_are_refused(self, budgeted: BudgetProject) -> None:
        code, _, err = budgeted.command("run", str(budgeted.suite("model", judged=True, cost=None)), "--budget", "3usd")
        assert (code, budgeted.number_of_calls) == (2, 0)
        assert "--budget: no price is known for the agent (m), quality (j), so a budget of 3 would limit nothing" in err

    def test_validate_reports_a_missing_price(self, budgeted: BudgetProject) -> None:
        code, data, _ = budgeted.command("validate", str(budgeted.suite("model")))
        assert code == 2
        assert [error["path"] for error in data["errors"]] == ["budget.cost"]

    @pytest.mark.parametrize("price", ["--assume-price=m=1/2", "--assume-price=1/2"])
    def test_an_assumed_price_allows_the_run_and_is_stored(self, budgeted: BudgetProject, price: str) -> None:
        code, data, _ = budgeted.command("run", str(budgeted.suite("model", cost=0.00001)), price)
        assert (code, data["run"]["status"]) == (3, "cancelled")
        assert "the budget of 1e-05 is spent" in data["stopped"]
        assert data["summary"]["cost"]["agent"] > 0
        code, data, _ = budgeted.command("resume", "latest", "--budget", "5usd")
        assert (code, data["run"]["status"]) == (0, "completed")
        assert data["summary"]["cost"]["agent"] > 0.00001

    def test_prices_in_the_suite_allow_the_run(self, budgeted: BudgetProject) -> None:
        suite = budgeted.suite(
            "model", judged=True, more="prices: {m: {input: 1, output: 2}, j: {input: 0, output: 0}}"
        )
        code, data, err = budgeted.command("run", str(suite))
        assert (code, data["summary"]["cost"]["judge"]) == (0, 0.0)
        assert data["summary"]["cost"]["agent"] > 0
        assert "price" not in err

    def test_a_price_missing_for_some_models_is_a_warning(self, budgeted: BudgetProject) -> None:
        suite = budgeted.suite("model", judged=True, more="prices: {m: {input: 1, output: 2}}")
        code, _, err = budgeted.command("run", str(suite))
        assert code == 0
        assert err.count("the budget of 5 does not count all calls: no price is known for quality (j)") == 1

    def test_a_limit_on_calls_needs_no_price(self, budgeted: BudgetProject) -> None:
        code, data, err = budgeted.command("run", str(budgeted.suite("model", cost=None)), "--budget", "100calls")
        assert (code, data["run"]["status"], "price" in err) == (0, "completed", False)

    def test_a_regrade_counts_only_the_cost_of_its_judges(self, budgeted: BudgetProject) -> None:
        suite = budgeted.suite("silent", judged=True, cost=None)
        assert budgeted.command("run", str(suite))[0] == 0
        budgeted.suite("silent", judged=True)
        code, _, err = budgeted.command("regrade", "latest")
        assert code == 2
        assert "no price is known for quality (j), so a budget of 5 would limit nothing" in err
        assert budgeted.command("regrade", "latest", "--assume-price", "1/2")[0] == 0


class TestAgentWithoutReportedCost:
    def test_the_run_stops_after_the_first_response(self, budgeted: BudgetProject) -> None:
        code, data, _ = budgeted.command("run", str(budgeted.suite("silent")))
        assert (code, data["run"]["status"]) == (3, "cancelled")
        assert data["summary"]["responses"]["success"] < CASES
        assert data["stopped"].startswith(
            "no cost is known for the calls of the agent, so that the budget of 5 limits nothing; let it report its usage"
        )

    def test_with_a_priced_judge_it_is_a_warning(
        self, budgeted: BudgetProject, caplog: pytest.LogCaptureFixture
    ) -> None:
        suite = budgeted.suite("silent", judged=True, more="prices: {j: {input: 1, output: 2}}")
        code, data, _ = budgeted.command("run", str(suite))
        assert (code, data["run"]["status"]) == (0, "completed")
        reason = [message for message in caplog.messages if "no cost is known for the calls of the agent" in message]
        assert len(reason) == 1

    def test_with_an_unpriced_judge_the_run_stops(self, budgeted: BudgetProject) -> None:
        code, data, err = budgeted.command("run", str(budgeted.suite("silent", judged=True)))
        assert (code, "no cost is known for the calls of the agent" in data["stopped"]) == (3, True)
        assert "no price is known for quality (j)" in err

    def test_its_tokens_are_priced_by_the_user(self, budgeted: BudgetProject) -> None:
        code, data, _ = budgeted.command("run", str(budgeted.suite("tokens")), "--assume-price", "1/2")
        assert (code, data["summary"]["cost"]["agent"]) == (3, 6.0)
        assert "the budget of 5 is spent" in data["stopped"]

    def test_a_reported_cost_is_counted(self, budgeted: BudgetProject) -> None:
        code, data, _ = budgeted.command("run", str(budgeted.suite("cost")))
        assert (code, data["summary"]["cost"]["agent"]) == (3, 5.0)

    def test_stored_responses_need_no_price(self, budgeted: BudgetProject) -> None:
        suite = budgeted.suite("silent", cost=None)
        run = budgeted.command("run", str(suite))[1]["run"]["id"]
        replay = f"target={{kind: replay, run: {run}}}"
        code, data, _ = budgeted.command("run", str(suite), "--set", replay, "--budget", "1usd")
        assert (code, data["run"]["status"]) == (0, "completed")


def test_invalid_prices_are_reported_with_their_place(budgeted: BudgetProject) -> None:
    more = "prices:\n  a: {input: 1}\n  b: {input: -1, output: 2}\n  c: 3\n  d: {input: 1, output: 2, cachd_input: 1}"
    _, data, _ = budgeted.command("validate", str(budgeted.suite("silent", cost=None, more=more)))
    assert [(error["line"], error["path"], error["message"]) for error in data["errors"]] == [
        (8, "prices.a.output", "is required"),
        (9, "prices.b.input", "expected float >= 0.0, got -1"),
        (
            10,
            "prices.c",
            "expected a mapping such as {input: 0.15, output: 0.60} in US dollars per million tokens, got 3",
        ),
        (11, "prices.d.cachd_input", "unknown option; did you mean 'cached_input'?"),
    ]
    _, data, _ = budgeted.command("validate", str(budgeted.suite("silent", cost=None, more="prices: 3")))
    assert data["errors"][0]["message"].startswith(
        "expected a mapping such as {gpt-6-luna: {input: 0.10, output: 0.50}}"
    )


class TestFromPython:
    def test_an_assumed_price(self, budgeted: BudgetProject) -> None:
        suite = budgeted.suite("tokens", cost=None)
        for price in ("1/2", ["1/2"]):
            with run_suite(suite, store="memory://", budget=5, assume_price=price) as result:
                assert result.summary.cost["agent"] == 6.0

    def test_prices_by_model(self, budgeted: BudgetProject) -> None:
        suite = budgeted.suite("model")
        with run_suite(suite, store="memory://", assume_price={"m": "1/2"}) as result:
            assert result.run.status == "completed"
        with pytest.raises(ConfigError, match="no price is known for the agent"):
            run_suite(suite, store="memory://", assume_price={"other": "1/2"})

    @pytest.mark.parametrize("price", ["cheap", {"m": "x"}, 3, [3]])
    def test_an_invalid_price_is_refused(self, budgeted: BudgetProject, price: Any) -> None:
        with pytest.raises(ConfigError, match="assume_price: "):
            run_suite(budgeted.suite("tokens"), store="memory://", assume_price=price)
