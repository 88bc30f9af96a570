"""``gradeline compare`` of three or more runs, ``trend`` and ``plan``, as a user calls them."""

from __future__ import annotations

import asyncio
import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from gradeline.cli import run_cli as gradeline
from gradeline.model import (
    Grade,
    GradeKey,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    Storage,
    Usage,
)
from gradeline.store import open_storage
from gradeline_command import COMMAND, run_command

HOSTILE = "evil\x1b[31m\n0.99 \u202e[bold]run"
SUITE = {
    "name": "s",
    "dataset": [{"id": f"c{place}", "input": "q", "ground_truth": "a"} for place in range(60)],
    "target": {"kind": "http", "url": "http://127.0.0.1:1/"},
    "graders": {"exact": {"kind": "exact_match"}},
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("GRADELINE_STORE", str(tmp_path / "store.db"))
    return str(tmp_path / "store.db")


def put(store: str, name: str, scores: Mapping[str, float], *, usage: Usage | None = None, **fields: Any) -> str:
    defaults = {"suite": "s", "status": "completed", "graders": {"exact": RunGrader("string-match", "f")}}
    with open_storage(store) as storage:
        run = storage.save_run(Run(**{**defaults, "name": name, **fields}))
        asyncio.run(fill(storage, run, scores, usage))
    return run


async def fill(storage: Storage, run: str, scores: Mapping[str, float], usage: Usage | None) -> None:
    async with storage.writer() as writer:
        response = Response(text="a", latency_ms=100.0, usage=usage)
        keys = [writer.put_response(ResponseKey(run, case), response, Sample(case, "q")) for case in scores]
        await asyncio.gather(*keys)
        graded = []
        for case, score in scores.items():
            grade = Grade("string-match", "f", Outcome.PASS if score else Outcome.FAIL, score, bool(score))
            graded.append(writer.put_grade(GradeKey(run, case, 0, "exact"), grade))
        await asyncio.gather(*graded)


def passing(count: int, cases: int = 60) -> dict[str, float]:
    return {f"c{place}": float(place < count) for place in range(cases)}


@pytest.fixture
def three(store: str) -> list[str]:
    counts = {"small": (20, 0.01), "medium": (50, 0.02), "large": (52, 0.05)}
    return [
        put(store, name, passing(count), usage=Usage(cost=cost), group="g") for name, (count, cost) in counts.items()
    ]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def require_duckdb() -> None:
    if find_spec("duckdb") is None:
        pytest.skip("DuckDB is not installed")


def compared(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: this one would report what DuckDB leaves behind when it ends."""
    return run_command([COMMAND, "compare", *arguments], text=True)


READ_PARQUET = """
import json, sys
import duckdb
found = duckdb.read_parquet(sys.argv[1])
print(json.dumps([found.columns, found.fetchall()]))
"""


def parquet_of(file: Path) -> tuple[list[str], list[list[Any]]]:
    """The columns and rows of a file, read in another process for the same reason."""
    done = subprocess.run([sys.executable, "-c", READ_PARQUET, str(file)], capture_output=True, check=True)
    columns, rows = json.loads(done.stdout)
    return columns, rows


class TestCompare:
    def test_the_report_shows_ranks_costs_and_differences(
        self, three: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert len(three) == 3
        assert gradeline(["compare", "small", "medium", "large"]) == 0
        assert lines(capsys) == [
            "3 runs, 60 cases in all of them",
            "exact: 60 cases",
            "# rank run     mean        95 % scored cost/case p50 ms front",
            "1  1–2 large  0.867 0.758–0.931  60/60      0.05    100 yes",
            "2  1–2 medium 0.833 0.720–0.907  60/60      0.02    100 yes",
            "3    3 small  0.333 0.227–0.459  60/60      0.01    100 yes",
            "row minus column (* not tied: adjusted p ≤ 0.05)",
            "#        1      2      3",
            "1        ·  +.033 +.533*",
            "2    -.033      · +.500*",
            "3   -.533* -.500*      ·",
            "tied for the best by exact: 'large', 'medium'",
            "best value (none is as good at a lower cost): large (0.05 per case), medium (0.02 per case), small"
            " (0.01 per case)",
        ]

    def test_json_has_everything(self, three: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert gradeline(["compare", "--group", "latest", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert [one["run"]["id"] for one in data["runs"]] == three
        assert (data["best"], data["exit_code"], data["primary"]) == ([three[2], three[1]], 0, ["exact"])
        exact = data["graders"]["exact"]
        assert {id_: one["rank"] for id_, one in exact["runs"].items()} == dict(
            zip(three, [[3, 3], [1, 2], [1, 2]], strict=True)
        )
        assert {one["coverage"] for one in exact["runs"].values()} == {1.0}
        assert [(one["winner"], one["decision"]) for one in exact["pairs"]] == [
            (three[1], "better"),
            (three[2], "better"),
            (None, "undecided"),
        ]

    def test_the_noise_of_a_grader_is_printed(self, store: str, capsys: pytest.CaptureFixture[str]) -> None:
        graders = {"exact": RunGrader("string-match", "f", noise=0.01)}
        for name, gain in (("a", 0.0), ("b", 0.004), ("c", 0.2)):
            put(store, name, {f"c{place}": 0.5 + gain for place in range(60)}, graders=graders)
        assert gradeline(["compare", "a", "b", "c"]) == 0
        output = lines(capsys)
        assert "3   -.200*  +.000      ·" in output
        assert "noise: exact: changes below 0.010 count as same in differences and ranks, not in means" in output
        assert gradeline(["compare", "a", "b", "c", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["graders"]["exact"]["noise"] == 0.01

    def test_ten_runs_fit_into_80_columns(
        self, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"a run with a rather long name {number}" for number in range(9)] + [HOSTILE]
        for number, name in enumerate(names):
            put(store, name, passing(10 + 5 * number))
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert gradeline(["compare", *names]) == 0
        output = [click.unstyle(line).rstrip() for line in lines(capsys)]
        assert max(map(len, output)) <= 80
        assert not any("\x1b" in line or "\u202e" in line for line in output)
        assert sum(line.startswith("10 ") for line in output[1:]) == 2

    def test_the_scores_go_to_a_file(self, three: list[str], tmp_path: Path) -> None:
        file = tmp_path / "scores.csv"
        assert gradeline(["compare", "small", "large", "--output", str(file), "--quiet"]) == 0
        with file.open(newline="") as opened:
            rows = list(csv.reader(opened))
        assert rows[0] == ["case", "grader", "compared", f"small ({three[0]})", f"large ({three[2]})"]
        assert (len(rows), rows[21]) == (61, ["c20", "exact", "true", "0.0", "1.0"])

    @pytest.mark.parametrize("name", ["scores.parquet", "scores.PARQUET"])
    def test_the_scores_go_to_a_parquet_file(self, three: list[str], tmp_path: Path, name: str) -> None:
        require_duckdb()
        file = tmp_path / name
        done = compared("small", "medium", "large", "--quiet", "--output", str(file))
        assert (done.returncode, done.stdout, done.stderr) == (0, "tied for the best by exact: 'large', 'medium'\n", "")
        columns, rows = parquet_of(file)
        named = zip(["small", "medium", "large"], three, strict=True)
        assert columns == ["case", "grader", "compared", *(f"{run} ({id_})" for run, id_ in named)]
        assert (len(rows), rows[20]) == (60, ["c20", "exact", True, 0.0, 1.0, 1.0])
        assert not list(tmp_path.glob("*.partial"))

    @pytest.mark.usefixtures("three")
    def test_parquet_needs_the_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        file = tmp_path / "scores.parquet"
        assert gradeline(["compare", "small", "large", "--output", str(file)]) == 2
        message = "'parquet' needs DuckDB: pip install 'gradeline[export]', or use another format"
        assert message in capsys.readouterr().err
        assert not file.exists()

    @pytest.mark.usefixtures("three")
    def test_a_parquet_file_that_cannot_be_written_is_named(self) -> None:
        require_duckdb()
        done = compared("small", "large", "--output", "no/such/scores.parquet")
        assert done.returncode == 2
        assert "no/such/scores.parquet: cannot write: No such file or directory" in done.stderr

    def test_quiet_prints_the_best_run(self, three: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert gradeline(["compare", *three, "--quiet"]) == 0
        assert lines(capsys) == ["tied for the best by exact: 'large', 'medium'"]

    def test_runs_that_cannot_be_compared(
        self, three: list[str], store: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put(store, "other", passing(3), graders={"exact": RunGrader("string-match", "g")})
        assert gradeline(["compare", *three, "other"]) == 2
        output = lines(capsys)
        assert output[-1] == "not comparable; use --force to compare what they have in common"
        assert any("grader 'exact' is not the same in all runs" in line for line in output)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["small", "small", "nowhere"], "'small' is named twice"),
            (["small", "small", "nowhere"], "no run 'nowhere'"),
            (["--group", "latest", "small"], "--group already selects the runs to compare; remove 'small'."),
            (["small", "medium", "large", "--output", "x.txt"], "invalid file name 'x.txt': end it with .csv"),
            ([], "Missing argument 'BASE'"),
        ],
    )
    @pytest.mark.usefixtures("three")
    def test_invalid_arguments_are_named(
        self, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
    ) -> None:
        assert gradeline(["compare", *arguments]) == 2
        assert message in capsys.readouterr().err


class TestTrend:
    def test_the_report_shows_the_series_and_its_breaks(self, store: str, capsys: pytest.CaptureFixture[str]) -> None:
        first = put(store, "one", passing(20), started_at="2026-11-01T08:00:00Z", target={"model": "a"})
        second = put(store, "two", passing(40), started_at="2026-11-02T08:00:00Z", target={"model": "b"})
        changed = {"exact": RunGrader("contains", "g")}
        third = put(store, "three", passing(30, 50), started_at="2026-11-03T08:00:00Z", graders=changed)
        assert gradeline(["trend", "s"]) == 0
        assert lines(capsys) == [
            "s: 3 runs, grader exact ▁█│▅",
            "started          id       run    mean        95 % scored cost",
            f"2026-11-01 08:00 {first[:8]} one   0.333 0.227–0.459  60/60    –",
            f"2026-11-02 08:00 {second[:8]} two   0.667 0.541–0.773  60/60    –",
            f"2026-11-03 08:00 {third[:8]} three 0.600 0.462–0.724  50/50    –",
            f"{second[:8]}: target: model 'a' against 'b'",
            f"{third[:8]}: grader 'exact' changed: string-match f to contains g; the means are not comparable",
            f"{third[:8]}: target: model 'b' against nothing",
            f"{third[:8]}: cases: 10 removed",
        ]
        assert gradeline(["trend", "s", "--last", "2", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["runs"], [point["segment"] for point in data["points"]]) == (3, [0, 1])
        assert data["points"][1]["changes"] == ["grader", "target", "cases"]

    def test_a_suite_file_names_its_suite(self, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        put(store, "one", passing(20))
        (tmp_path / "suite.json").write_text(json.dumps(SUITE))
        assert gradeline(["trend", str(tmp_path / "suite.json"), "--quiet"]) == 0
        assert lines(capsys) == ["▅"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["sute"], "no run of a suite 'sute' in the store; did you mean 'suite'?"),
            (["zzz"], "no run of a suite 'zzz' in the store; there are runs of 'suite'"),
            (["suite", "--grader", "exat"], "no run of 'suite' has a grader 'exat'; did you mean 'exact'?"),
            (["suite", "--last", "0"], "0 is not in the range"),
        ],
    )
    def test_invalid_arguments_are_named(
        self, store: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
    ) -> None:
        put(store, "one", passing(2, 3), suite="suite")
        assert gradeline(["trend", *arguments]) == 2
        assert message in capsys.readouterr().err


class TestPlan:
    @pytest.fixture
    def suite(self, tmp_path: Path) -> str:
        gate = {"kind": "simple", "metric_key": "exact", "op": "gte", "value": 0.9}
        (tmp_path / "suite.json").write_text(json.dumps({**SUITE, "gate": gate}))
        return str(tmp_path / "suite.json")

    @pytest.mark.usefixtures("store")
    def test_without_a_run_the_variance_is_marked_as_a_guess(
        self, suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert gradeline(["plan", suite]) == 0
        output = lines(capsys)
        assert output[0] == "s: 60 cases, grader exact"
        assert output[1].startswith("variance: a guess, because the store has no completed run of the suite")
        assert "60 cases settle a margin of 0.162 with a power of 80 % if both runs are equally good" in output
        assert "3,925 cases settle a margin of 0.02" in output
        assert output[-1] == "tokens, cost and time are unknown: run the suite once, with --limit 20 for instance"
        assert not (tmp_path / "store.db").exists()

    def test_with_runs_every_value_is_measured(
        self, store: str, suite: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        used = Usage(input_tokens=100, output_tokens=10, cost=0.001)
        put(store, "old", passing(48), usage=used)
        put(store, "new", passing(51), usage=used)
        assert gradeline(["plan", suite, "--margin", "0.05", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["spread"]["source"] == "two_runs"
        assert data["spread"]["mean_square"] == pytest.approx(4 / 62)  # three changed of sixty
        assert data["needed"]["cases"] == 203
        assert data["present"] == {
            "cases": 60, "calls": 60, "judge_grades": 0, "input_tokens": 6000, "output_tokens": 600,
            "cost": pytest.approx(0.06), "seconds": pytest.approx(0.4),
        }  # fmt: skip
        assert [(gate["grader"], gate["bound"], gate["observed"]) for gate in data["gates"]] == [("exact", 0.9, 0.85)]
        assert gradeline(["plan", suite, "--assume-price", "1/10", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["present"]["cost"] == pytest.approx(60 * 0.0002)

    def test_changes_below_the_noise_of_the_suite_are_not_counted(
        self, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        noisy = {**SUITE, "graders": {"exact": {"kind": "exact_match", "noise": 0.01}}}
        (tmp_path / "noisy.json").write_text(json.dumps(noisy))
        put(store, "old", dict.fromkeys(passing(0), 0.5))
        put(store, "new", {case: 0.504 if place else 1.0 for place, case in enumerate(passing(0))})
        assert gradeline(["plan", str(tmp_path / "noisy.json"), "--json"]) == 0
        spread = json.loads(capsys.readouterr().out)["spread"]
        assert spread["mean_square"] == pytest.approx(1.25 / 62)
        assert spread["explanation"].endswith("60 cases in both, 1 changed")

    def test_one_run_gives_the_variance_and_the_rest_is_a_guess(
        self, store: str, suite: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put(store, "only", passing(30))
        assert gradeline(["plan", suite, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["spread"]["source"], data["spread"]["mean"]) == ("one_run", 0.5)
        assert "is a guess" in data["spread"]["explanation"]
        assert data["present"]["cost"] is None
        assert data["notes"][0].startswith("the cost is unknown")

    @pytest.mark.usefixtures("store")
    def test_without_a_margin_no_number_of_cases_is_enough(
        self, suite: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert gradeline(["plan", suite, "--margin", "0"]) == 0
        assert "without a margin, no number of cases shows that a run is not worse" in lines(capsys)

    def test_judges_need_labels(self, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        put(store, "only", passing(30))
        judge = {
            "kind": "model_judge",
            "prompt": "Is {submission} right?",
            "model": "m",
            "base_url": "http://127.0.0.1:1",
        }
        suite = {**SUITE, "graders": {**SUITE["graders"], "judged": judge}}  # type: ignore[dict-item]
        (tmp_path / "judged.json").write_text(json.dumps(suite))
        assert gradeline(["plan", str(tmp_path / "judged.json"), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert [(one["half_width"], one["rate"], one["kappa"]) for one in data["labels"]] == [
            (0.1, 97, 196),
            (0.05, 385, 784),
        ]
        assert data["present"]["judge_grades"] == 60

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--power", "1"], "1.0 is not in the range"),
            (["--margin", "-1"], "-1.0 is not in the range"),
            (["--baseline", "nowhere"], "no run 'nowhere'"),
            (["--assume-price", "cheap"], "invalid price 'cheap'"),
        ],
    )
    def test_invalid_arguments_are_named(
        self, store: str, suite: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
    ) -> None:
        put(store, "one", passing(2, 3))
        assert gradeline(["plan", suite, *arguments]) == 2
        assert message in capsys.readouterr().err
