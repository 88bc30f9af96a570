"""The registry of the repository openai/evals, and its logs: the same verdicts on the recorded responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradeline.cli.commands import run_command
from gradeline.store import open_storage
from gradeline.suite.read import read_suite
from gradeline.testing.fake_judge import FakeJudge, Truth
from json_mutations import mutated

CLASSES = {
    "match": "evals.elsuite.basic.match:Match",
    "includes": "evals.elsuite.basic.includes:Includes",
    "fuzzy": "evals.elsuite.basic.fuzzy_match:FuzzyMatch",
    "json": "evals.elsuite.basic.json_match:JsonMatch",
    "valid": "evals.elsuite.basic.json_validator:JsonValidator",
    "graded": "evals.elsuite.modelgraded.classify:ModelBasedClassify",
}
CLOSED_QA = {
    "prompt": "Task {{1}}: {input}\nSubmission: {completion}\nCriterion: {criteria}\nReasoning:",
    "eval_type": "cot_classify",
    "choice_scores": {"Y": 1.0, "N": 0.0},
    "choice_strings": "YN",
    "input_outputs": {"input": "completion"},
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run_command([*arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return code, json.loads(printed.out)


def not_mapped(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(item["what"], item["note"]) for item in report["items"] if item["state"] == "not mapped"]


def sample(question: str, ideal: object, **more: object) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    return {"input": messages, "ideal": ideal, **more}


def write_registry(folder: Path, kind: str, samples: list[Any], **args: object) -> Path:
    """A registry with one eval; returns its YAML file."""
    (folder / "evals").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "qa").mkdir(parents=True, exist_ok=True)
    (folder / "modelgraded").mkdir(exist_ok=True)
    entry = {"class": CLASSES.get(kind, kind), "args": {"samples_jsonl": "qa/samples.jsonl", **args}}
    path = folder / "evals" / "qa.yaml"
    path.write_text(yaml.safe_dump({"qa": {"id": "qa.dev.v0", "metrics": ["accuracy"]}, "qa.dev.v0": entry}))
    (folder / "modelgraded" / "closedqa.yaml").write_text(yaml.safe_dump({"closedqa": CLOSED_QA}))
    lines = [one if isinstance(one, str) else json.dumps(one) for one in samples]
    (folder / "data" / "qa" / "samples.jsonl").write_text("\n".join(lines))
    return path


def verdicts(
    capsys: pytest.CaptureFixture[str], folder: Path, answers: list[str], *settings: str
) -> list[dict[str, tuple[float | None, bool | None]]]:
    """Score and pass of each recorded answer, by a run of the written suite with these responses."""
    suite = yaml.safe_load((folder / "suite.yaml").read_text())
    rows = [{"id": f"qa.dev.{number}", "text": text} for number, text in enumerate(answers)]
    (folder / "recorded.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "replay.yaml").write_text(
        yaml.safe_dump({**suite, "target": {"kind": "replay", "responses": "recorded.jsonl"}}, sort_keys=False)
    )
    _, done = run(capsys, "run", str(folder / "replay.yaml"), *settings)
    assert run_command(["export", done["run"]["id"], "--format", "jsonl", "--output", "run.jsonl"]) == 0
    capsys.readouterr()
    records = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    return [
        {name: (grade.get("score"), grade.get("passed")) for name, grade in record["grades"].items()}
        for record in sorted((one for one in records if "sample" in one), key=lambda one: str(one["sample"]["id"]))
    ]


YES, NO = (1.0, True), (0.0, False)
RECORDED = [
    ("match", {}, "Paris", "Paris, of course", YES),
    ("match", {}, "Paris", "paris", NO),
    ("match", {}, ["Rome", "Paris"], "Paris", YES),
    ("match", {}, "Paris", "It is Paris", NO),
    ("includes", {}, ["Rome", "Paris"], "It is Paris", YES),
    ("includes", {}, "Paris", "it is paris", NO),
    ("includes", {"ignore_case": True}, "Paris", "it is paris", YES),
    ("fuzzy", {}, ["the Eiffel Tower"], "Eiffel tower.", YES),
    ("fuzzy", {}, "a very long answer", "LONG!", YES),
    ("fuzzy", {}, "Paris", "Rome", NO),
    ("fuzzy", {}, "the", "a", YES),
    ("fuzzy", {}, "Paris", "!", NO),
    ("json", {}, '{"a": 1, "b": [true]}', '{"b": [true], "a": 1.0}', YES),
    ("json", {}, ["[1]", "[2]"], "[2]", YES),
    ("json", {}, '{"a": null}', '{"a": null}', NO),
    ("json", {}, "[1]", "not JSON", NO),
    ("json", {}, "[1, 2]", "[1]", NO),
    ("valid", {}, "x", '{"a": 1}', YES),
    ("valid", {}, "x", "{a: 1}", NO),
]


@pytest.mark.parametrize(("kind", "args", "ideal", "answer", "verdict"), RECORDED)
def test_a_class_gives_the_same_verdict(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    args: dict[str, object],
    ideal: object,
    answer: str,
    verdict: tuple[float, bool],
) -> None:
    write_registry(project / "registry", kind, [sample("Capital?", ideal)], **args)
    code, report = run(capsys, "import", "registry/evals/qa.yaml", "--output", "imported")
    assert (code, report["kind"], not_mapped(report)) == (3, "openai-evals", [])
    (graded,) = verdicts(capsys, project / "imported", [answer])
    assert graded["accuracy"] == verdict


def test_the_f1_score_of_fuzzy_match(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_registry(project / "registry", "fuzzy", [sample("Capital?", ["x", "the old city of Rome"])])
    run(capsys, "import", "registry", "--output", "imported")
    (graded,) = verdicts(capsys, project / "imported", ["Rome, a city"])
    assert graded["f1_score"] == (pytest.approx(2 / 3), True)


def test_a_model_graded_eval(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [sample("Capital of France?", "Paris"), sample("Capital of Italy?", "Rome")]
    args = {"criteria": "Is {it} right?"}
    write_registry(project / "registry", "graded", samples, modelgraded_spec="closedqa", modelgraded_spec_args=args)
    code, report = run(capsys, "import", "registry", "--output", "imported")
    assert (code, not_mapped(report)) == (3, [])
    grader = yaml.safe_load((project / "imported" / "suite.yaml").read_text())["graders"]["score"]
    assert grader["prompt"] == (
        "Task {{1}}: {item_input}\nSubmission: {submission}\nCriterion: Is {{it}} right?\nReasoning:"
    )
    truths = {"a": Truth(quality=1.0, text="Paris"), "b": Truth(quality=0.0, text="Milan")}
    with FakeJudge(items=truths).in_thread() as judge:
        override = f"graders.score.base_url={judge.base_url()}"
        graded = verdicts(capsys, project / "imported", ["Paris", "Milan"], "--set", override)
    assert graded == [{"score": YES}, {"score": NO}]
    case = json.loads((project / "imported" / "cases.jsonl").read_text().splitlines()[0])
    assert case["rubric_vars"] == {"item_input": "System: Be brief.\nUser: Capital of France?"}


@pytest.mark.parametrize(
    ("changes", "scores"),
    [
        ({"choice_strings": "12345", "choice_scores": "from_strings"}, [0, 0.25, 0.5, 0.75, 1]),
        ({"choice_strings": ["Yes", "No"], "choice_scores": {"Yes": 1, "No": 0.5}}, [1, 0.5]),
        ({"choice_strings": "AB", "choice_scores": {"A": -1, "B": 1}}, [0, 1]),
    ],
)
def test_scores_of_choices(
    project: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], scores: list[float]
) -> None:
    spec = CLOSED_QA | changes
    write_registry(project / "registry", "graded", [sample("?", "x", criteria="brief")], modelgraded_spec="own")
    (project / "registry" / "modelgraded" / "own.yaml").write_text(yaml.safe_dump(spec))
    run(capsys, "import", "registry", "--output", "imported")
    grader = yaml.safe_load((project / "imported" / "suite.yaml").read_text())["graders"]["score"]
    assert list(grader["reply"]["choices"].values()) == scores


def test_the_messages_of_samples_and_examples_are_sent(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_registry(
        project / "registry",
        "match",
        [sample("Capital of France?", "Paris"), sample("{{metadata.ideal}} ${HOME}", "Rome")],
        num_few_shot=1,
        few_shot_jsonl="qa/few_shot.jsonl",
    )
    shots = [{"role": "user", "content": "Capital of Peru?"}, {"role": "assistant", "content": "Lima"}]
    (path.parent.parent / "data" / "qa" / "few_shot.jsonl").write_text(json.dumps({"sample": shots}))
    run(capsys, "import", "registry", "--output", "imported")
    suite = yaml.safe_load((project / "imported" / "suite.yaml").read_text())
    assert suite["target"]["messages"] == [
        {"role": "user", "content": "{{metadata.message_2}}"},
        {"role": "assistant", "content": "{{metadata.message_3}}"},
    ]
    with FakeJudge().in_thread() as model:
        code, done = run(capsys, "run", "imported/suite.yaml", "--set", f"target.base_url={model.base_url()}")
        assert len(model.requests) == 2
    assert (code, done["summary"]["graders"]["accuracy"]["scored"]) == (0, 2)


def test_several_evals_have_their_own_cases_and_graders(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_registry(project / "registry", "match", [sample("Capital?", "Paris")])
    data = yaml.safe_load(path.read_text())
    data["other.dev.v0"] = {"class": CLASSES["includes"], "args": {"samples_jsonl": "qa/samples.jsonl"}}
    data["strange.dev.v0"] = {"class": "evals.elsuite.lambada:Lambada", "args": {"samples_jsonl": "qa/samples.jsonl"}}
    path.write_text(yaml.safe_dump(data))
    code, report = run(capsys, "import", "registry", "--output", "imported")
    assert code == 1
    why = "class 'Lambada' has no counterpart; write a custom grader"
    assert not_mapped(report) == [("eval Lambada 'strange.dev.v0'", why)]
    suite = yaml.safe_load((project / "imported" / "suite.yaml").read_text())
    assert {name: grader["when"] for name, grader in suite["graders"].items()} == {
        "qa.dev.v0: accuracy": {"tag": "qa.dev.v0"},
        "other.dev.v0: accuracy": {"tag": "other.dev.v0"},
    }
    rows = [{"id": f"{name}.dev.0", "text": "It is Paris"} for name in ("qa", "other", "strange")]
    (project / "imported" / "recorded.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    target = {"kind": "replay", "responses": "recorded.jsonl"}
    (project / "imported" / "replay.yaml").write_text(yaml.safe_dump({**suite, "target": target}))
    _, done = run(capsys, "run", "imported/replay.yaml")
    graders = done["summary"]["graders"]
    assert {name: (one["passed"], one["failed"]) for name, one in graders.items()} == {
        "qa.dev.v0: accuracy": (0, 1),
        "other.dev.v0: accuracy": (1, 0),
    }


class TestHostileRegistries:
    @pytest.mark.parametrize(
        ("named", "why"),
        [
            ("../../outside.jsonl", "is outside the registry's folder"),
            ("/etc/passwd", "is outside the registry's folder"),
            ("link.jsonl", "is outside the registry's folder"),
            ("missing.jsonl", "is not in the registry's data; download the data"),
            ("https://example.com/samples.jsonl", "is an address; download it into the registry's data"),
            ("a\0b", "names no samples_jsonl"),
            (["x"], "names no samples_jsonl"),
            ("lfs.jsonl", "is a pointer of Git LFS; run git lfs pull --include=lfs.jsonl"),
        ],
    )
    def test_samples_are_only_read_from_the_registry(
        self, project: Path, capsys: pytest.CaptureFixture[str], named: object, why: str
    ) -> None:
        (project / "outside.jsonl").write_text(json.dumps(sample("secret", "secret")))
        write_registry(project / "registry", "match", [], samples_jsonl=named)
        data = project / "registry" / "data"
        (data / "link.jsonl").symlink_to(project / "outside.jsonl")
        (data / "lfs.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        assert run_command(["import", "registry", "--output", "imported"]) == 2
        assert why in capsys.readouterr().err
        assert not (project / "imported").exists()

    def test_samples_that_cannot_be_read_are_reported(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        strange = [
            "{",
            "[" * 100_000,
            {"ideal": "x"},
            {"input": "?"},
            {"input": [{"role": "tool", "content": "x"}], "ideal": "x"},
            {"input": [{"role": "user", "content": [{"type": "image_url"}]}], "ideal": "x"},
            {"input": [], "ideal": "x"},
        ]
        write_registry(project / "registry", "match", [sample("Capital?", "Paris"), *strange])
        code, report = run(capsys, "import", "registry", "--output", "imported")
        assert code == 1
        places = {place for item in report["items"] if item["state"] == "not mapped" for place in item["places"]}
        assert places == {f"samples.jsonl:{number}" for number in range(2, 9)}
        assert len((project / "imported" / "cases.jsonl").read_text().splitlines()) == 1

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"choice_scores": None}, "its choices Y, N have no choice_scores; add a score for each"),
            ({"choice_scores": {"Y": "high", "N": 0}}, "choice_scores {"),
            ({"choice_scores": {"Y": 1}}, "choice_scores {'Y': 1} do not have all choices ['Y', 'N']"),
            ({"choice_strings": "from_n_abc"}, "chooses among several completions; use a pairwise judge"),
            ({"prompt": "{completion.__class__}"}, "its prompt has the placeholder 'completion.__class__'"),
            ({"prompt": "{completion!r}"}, "its prompt has the placeholder 'completion'"),
            ({"prompt": "{"}, "its prompt is not a valid format: "),
            ({"prompt": "nothing"}, "its prompt shows neither the sample nor the completion"),
            ({"prompt": None}, "has no input: None"),
            ({"input_outputs": {"a": "b", "c": "d"}}, "judges several completions"),
        ],
    )
    def test_a_judge_that_has_no_counterpart_is_reported(
        self, project: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], why: str
    ) -> None:
        write_registry(project / "registry", "graded", [sample("?", "x", criteria="c")], modelgraded_spec="closedqa")
        (project / "registry" / "modelgraded" / "closedqa.yaml").write_text(
            yaml.safe_dump({"closedqa": CLOSED_QA | changes})
        )
        code, report = run(capsys, "import", "registry", "--output", "imported")
        assert code == 1
        assert not_mapped(report)[0][1].startswith(why)
        assert len((project / "imported" / "cases.jsonl").read_text().splitlines()) == 1

    def test_a_sample_without_a_value_that_the_judge_sees(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        samples = [sample("?", "x", criteria="c"), sample("?", "x")]
        write_registry(project / "registry", "graded", samples, modelgraded_spec="../modelgraded/closedqa")
        code, report = run(capsys, "import", "registry", "--output", "imported")
        why = "modelgraded_spec '../modelgraded/closedqa' is not in the registry's folder modelgraded"
        assert (code, not_mapped(report)[0][1]) == (1, why)
        write_registry(project / "registry", "graded", samples, modelgraded_spec="closedqa")
        code, report = run(capsys, "import", "registry", "--output", "again")
        why = "has no criteria, which the prompt of the judge shows; add it to the sample"
        assert (code, not_mapped(report)) == (1, [("sample", why)])

    def test_yaml_that_grows_without_end(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_registry(project / "registry", "match", [sample("?", "x")])
        bomb = "a: &a [x, x]\n" + "".join(
            f"{b}: &{b} [*{a}, *{a}]\n"
            for a, b in zip("abcdefghijklmnopqrstuvwxy", "bcdefghijklmnopqrstuvwxyz", strict=True)
        )
        (path.parent / "bomb.yaml").write_text(bomb)
        _, report = run(capsys, "import", "registry", "--output", "imported")
        assert [what for what, _ in not_mapped(report)] == ["file"]

    @pytest.mark.parametrize("first", range(0, 40, 10))
    def test_damaged_registries_and_logs_are_imported_as_far_as_possible(
        self, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, first: int
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test-0123456789")
        args = {"samples_jsonl": "qa/samples.jsonl", "modelgraded_spec": "closedqa"}
        evals = {f"{kind}.dev.v0": {"class": name, "args": args} for kind, name in CLASSES.items()}
        samples = [sample("Capital?", "Rome", criteria="c"), sample("Capital?", ["b", "c"], criteria="c")]
        log = [log_spec("match", name="match.dev.v0"), *match_events(0, "Capital?", "Rome", "Rome", True)]
        for event_of_log in log[1:]:
            event_of_log["sample_id"] = "match.dev.0"
        whole = {"evals": evals, "samples": samples, "judge": {"closedqa": CLOSED_QA}, "log": log}
        for seed in range(first, first + 10):
            damaged = {**whole, **mutated(whole, seed)}
            registry = project / f"registry {seed}"
            write_registry(registry, "match", as_list(damaged["samples"]))
            (registry / "evals" / "qa.yaml").write_text(yaml.safe_dump(damaged["evals"]))
            (registry / "modelgraded" / "closedqa.yaml").write_text(yaml.safe_dump(damaged["judge"]))
            if seed % 2:
                lines = "".join(f"{json.dumps(row)}\n" for row in as_list(damaged["log"]))
                (registry / "log.jsonl").write_text(lines)
            folder = project / f"imported {seed}"
            code = run_command(["import", str(registry), "--from", "openai-evals", "--output", str(folder)])
            assert code in (0, 1, 2, 3)
            assert "Traceback" not in capsys.readouterr().err
            for suite in folder.glob("*.yaml"):
                read_suite(suite)


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def event(number: int, kind: str, **data: object) -> dict[str, Any]:
    own = {"run_id": "r1", "event_id": number, "sample_id": f"qa.dev.{number}", "type": kind, "data": data}
    return {**own, "created_by": "", "created_at": "2023-04-17 22:10:13.127375+00:00"}


def log_spec(kind: str, *, model: str = "gpt-4", name: str = "qa.dev.v0", **args: object) -> dict[str, Any]:
    spec = {
        "completion_fns": [model],
        "eval_name": name,
        "base_eval": "qa",
        "split": "dev",
        "run_config": {
            "eval_spec": {"cls": CLASSES.get(kind, kind), "args": {"samples_jsonl": "qa/samples.jsonl", **args}}
        },
        "created_by": "",
        "run_id": "r1",
        "created_at": "2023-04-17 22:08:21.904498",
    }
    return {"spec": spec}


def write_log(path: Path, kind: str, *events: dict[str, Any], complete: bool = True, **more: Any) -> None:
    last = [{"final_report": {"accuracy": 0.5}}] if complete else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in [log_spec(kind, **more), *events, *last]))


def match_events(number: int, prompt: object, sampled: object, expected: object, correct: bool) -> list[dict[str, Any]]:
    return [
        event(number, "sampling", prompt=prompt, sampled=sampled, usage={"prompt_tokens": 9, "completion_tokens": 2}),
        event(number, "match", correct=correct, expected=expected, picked=None, sampled=sampled),
    ]


class TestLogs:
    """Logs of oaieval."""

    @pytest.mark.parametrize(
        ("kind", "args", "ideal", "answer", "verdict"), [row for row in RECORDED if row[0] != "valid"]
    )
    def test_the_suite_gives_the_logged_verdict_again(
        self,
        project: Path,
        capsys: pytest.CaptureFixture[str],
        kind: str,
        args: dict[str, object],
        ideal: object,
        answer: str,
        verdict: tuple[float, bool],
    ) -> None:
        raw = event(0, "raw_sample", **sample("Capital?", ideal))
        sampled = event(0, "sampling", prompt="Capital?", sampled=[answer])
        metrics = event(0, "metrics", accuracy=verdict[0])
        write_log(project / "log.jsonl", kind, raw, sampled, metrics, **args)
        code, report = run(capsys, "import", "log.jsonl", "--output", "imported")
        assert (code, report["kind"], not_mapped(report)) == (0, "openai-evals", [])
        _, shown = run(capsys, "show", report["runs"][0])
        assert shown["summary"]["graders"]["accuracy"]["mean"] == verdict[0]
        _, again = run(capsys, "run", "imported/suite.yaml")
        summary = again["summary"]["graders"]["accuracy"]
        assert (summary["mean"], summary["passed"]) == (verdict[0], int(verdict[1]))

    def test_two_logs_of_an_eval_are_compared(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        first = [
            *match_events(0, "France?", "Paris", "Paris", True),
            *match_events(1, "Italy?", "Milan", "Rome", False),
        ]
        second = [*match_events(1, "Italy?", "Rome", "Rome", True), *match_events(0, "France?", "Paris", "Paris", True)]
        write_log(project / "logs" / "a.jsonl", "match", *first)
        write_log(project / "logs" / "b.jsonl", "match", *second, model="gpt-5")
        code, report = run(capsys, "import", "logs", "--output", "imported")
        assert (code, len(report["runs"])) == (0, 2)
        _, compared = run(capsys, "compare", *report["runs"])
        accuracy = compared["graders"]["accuracy"]
        assert (accuracy["baseline"], accuracy["candidate"]) == (0.5, 1.0)
        _, regraded = run(capsys, "regrade", report["runs"][0])
        assert regraded["summary"]["graders"]["accuracy"]["mean"] == 0.5
        _, shown = run(capsys, "show", report["runs"][1])
        assert (shown["run"]["variant"], shown["run"]["started_at"]) == ("gpt-5", "2023-04-17T22:08:21.904498Z")

    def test_logs_that_are_too_large_are_refused(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_log(project / "logs" / "a.jsonl", "match", *match_events(0, "France?", "Paris", "Paris", True))
        with (project / "logs" / "a.jsonl").open("r+b") as file:
            file.truncate(600 * 1024**2)  # a sparse file
        assert run_command(["import", "logs", "--output", "imported"]) == 2
        assert "has 600 MiB of logs; at most 512 MiB are read together; import fewer logs" in capsys.readouterr().err

    def test_a_log_that_was_cut_off_is_an_incomplete_run(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        events = match_events(0, "France?", "Paris", "Paris", True)
        write_log(project / "log.jsonl", "match", *events, complete=False)
        with (project / "log.jsonl").open("a") as file:
            file.write('{"run_id": "r1", "sample_id": "qa.dev.1", "type": "samp')
        code, report = run(capsys, "import", "log.jsonl", "--output", "imported")
        assert (code, [what for what, _ in not_mapped(report)]) == (1, ["row"])
        with open_storage(".gradeline/store.db") as storage:
            stored = storage.find_run(report["runs"][0])
        why = "the log has no final report: the run did not end"
        assert (stored.status, stored.error_message) == ("failed", why)

    def test_what_the_log_does_not_have_is_reported(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        failed = event(1, "error", type="RateLimitError", message="too many requests")
        graded = [
            event(0, "sampling", prompt="?", sampled="x"),
            event(0, "sampling", prompt="Is x right?", sampled="5"),
            event(0, "metrics", choice="5", score=5.0),
        ]
        write_log(project / "log.jsonl", "graded", *graded, failed, modelgraded_spec="closedqa")
        code, report = run(capsys, "import", "log.jsonl", "--output", "imported")
        assert code == 1
        assert [what for what, _ in not_mapped(report)] == [
            "eval ModelBasedClassify 'qa.dev.v0'",
            "metric 'score'",
            "sample",
        ]
        answers = [json.loads(line) for line in (project / "imported" / "answers.jsonl").read_text().splitlines()]
        assert [answer["response"]["text"] for answer in answers] == ["x"]
        _, shown = run(capsys, "show", report["runs"][0])
        score = shown["summary"]["graders"]["score"]
        assert (score["scored"], score["errors"]) == (0, 1)

    def test_a_log_next_to_the_registry_is_graded_again(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        samples = [
            sample("Capital of France?", "Paris", criteria="right"),
            sample("Of Italy?", "Rome", criteria="right"),
        ]
        write_registry(project / "registry", "graded", samples, modelgraded_spec="closedqa")
        graded = [
            one
            for number, text, choice in ((0, "Paris", "Y"), (1, "Milan", "N"))
            for one in (
                event(number, "sampling", prompt="?", sampled=text),
                event(number, "sampling", prompt="Is it right?", sampled=choice),
                event(number, "metrics", choice=choice, score=float(choice == "Y")),
            )
        ]
        write_log(project / "registry" / "log.jsonl", "graded", *graded, modelgraded_spec="closedqa")
        code, report = run(capsys, "import", "registry", "--output", "imported")
        assert (code, not_mapped(report)) == (3, [])
        truths = {"a": Truth(quality=1.0, text="Paris"), "b": Truth(quality=0.0, text="Milan")}
        with FakeJudge(items=truths).in_thread() as judge:
            override = f"graders.score.base_url={judge.base_url()}"
            _, again = run(capsys, "run", "imported/suite.yaml", "--set", override)
        _, shown = run(capsys, "show", report["runs"][0])
        recorded, new = shown["summary"]["graders"]["score"], again["summary"]["graders"]["score"]
        assert (recorded["mean"], recorded["passed"], recorded["failed"]) == (0.5, 1, 1)
        assert (new["mean"], new["passed"], new["failed"]) == (0.5, 1, 1)
        assert (project / "imported" / "model.yaml").exists()

    def test_samples_of_a_log_that_the_registry_does_not_have_are_reported(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_registry(project / "registry", "match", [sample("France?", "Paris")])
        events = [*match_events(0, "France?", "Paris", "Paris", True), *match_events(7, "Italy?", "Rome", "Rome", True)]
        write_log(project / "registry" / "log.jsonl", "match", *events)
        code, report = run(capsys, "import", "registry", "--output", "imported")
        why = "1 are not in the samples of the registry; import the log from a folder of its own"
        assert (code, not_mapped(report)) == (1, [("samples", why)])
        _, again = run(capsys, "run", "imported/suite.yaml")
        assert again["summary"]["graders"]["accuracy"]["passed"] == 1

    def test_a_log_by_itself_has_the_ids_of_the_registry(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_log(project / "log.jsonl", "match", *match_events(0, "France?", "Paris", "Paris", True))
        run(capsys, "import", "log.jsonl", "--output", "imported")
        assert json.loads((project / "imported" / "cases.jsonl").read_text())["id"] == "qa.dev.0"
