"""Variants of a target: what they are read as, and the place of every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradeline.suite.problems import DocumentError
from gradeline.suite.read import read_suite
from gradeline.suite.spec import SuiteDefinition
from gradeline.suite.variants import MAX_RUNS

GRADERS = "graders: {right: {kind: exact_match}}\n"
CHAT = "name: s\ndataset: cases.jsonl\ntarget: {kind: openai, temperature: 0}\n" + GRADERS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cases.jsonl").write_text('{"input": "q"}\n')
    (tmp_path / "short.md").write_text("Answer in one word: {{input}}\n")
    (tmp_path / "expert.txt").write_text("You are an expert. A ${variable} stays.\n")
    (tmp_path / "chat.yaml").write_text(
        '- {role: system, content: Be brief.}\n- {role: user, content: "Q: {{input}}"}\n'
    )
    return tmp_path


def suite(folder: Path, text: str) -> SuiteDefinition:
    path = folder / "suite.yaml"
    path.write_text(text)
    return read_suite(path)


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        suite(folder, text)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.suite_problems]


def configs(read: SuiteDefinition) -> dict[str | None, dict[str, Any]]:
    return {one.name: one.target.config for one in read.run_variants()}


def test_a_suite_without_variants_has_its_target_alone(folder: Path) -> None:
    assert configs(suite(folder, CHAT)) == {None: {"temperature": 0}}


def test_a_variant_changes_values_of_the_target(folder: Path) -> None:
    read = suite(
        folder,
        CHAT + "variants:\n- {name: base}\n- {name: hot, set: {target.temperature: 1, target.params.top_p: 0.5}}\n",
    )
    assert configs(read) == {"base": {"temperature": 0}, "hot": {"temperature": 1, "params": {"top_p": 0.5}}}


def test_a_variant_replaces_the_whole_target_then_its_parts(folder: Path) -> None:
    target = "{target.url: 'http://127.0.0.1/b', target: {kind: http, url: 'http://127.0.0.1/a', timeout: 3}}"
    read = suite(folder, CHAT + f"variants: [{{name: mine, set: {target}}}]\n")
    assert read.target.kind == "http"
    assert configs(read) == {"mine": {"url": "http://127.0.0.1/b", "timeout": 3}}


def test_variants_do_not_share_values(folder: Path) -> None:
    text = CHAT.replace("temperature: 0", "params: {top_p: 1}")
    read = suite(folder, text + "variants: [{name: a, set: {target.params.top_p: 2}}, {name: b}]\n")
    assert [one["params"] for one in configs(read).values()] == [{"top_p": 2}, {"top_p": 1}]


@pytest.mark.parametrize("models", ["models: [small, large]\n", ""])
def test_prompts_multiply_with_models(folder: Path, models: str) -> None:
    text = CHAT if models else CHAT.replace("temperature: 0", "temperature: 0, models: [small, large]")
    read = suite(folder, text + models + "prompts: [short.md, expert.txt]\n")
    short, expert = "Answer in one word: {{input}}", "You are an expert. A ${variable} stays."
    assert configs(read) == {
        "short@small": {"temperature": 0, "prompt": short, "model": "small"},
        "short@large": {"temperature": 0, "prompt": short, "model": "large"},
        "expert@small": {"temperature": 0, "system": expert, "model": "small"},
        "expert@large": {"temperature": 0, "system": expert, "model": "large"},
    }


def test_variants_multiply_with_prompts(folder: Path) -> None:
    read = suite(folder, CHAT + "variants: [{name: a}, {name: b}]\nprompts: [short.md, expert.txt]\n")
    assert list(configs(read)) == ["a@short", "a@expert", "b@short", "b@expert"]


def test_a_prompt_is_a_text_a_file_or_messages(folder: Path) -> None:
    read = suite(
        folder, CHAT + 'prompts: ["Say {{input}}", chat.yaml, {text: brief, name: one}, {file: short.md, name: two}]\n'
    )
    assert {name: {*config} - {"temperature"} for name, config in configs(read).items()} == {
        "prompt-1": {"prompt"},
        "chat": {"messages"},
        "one": {"system"},
        "two": {"prompt"},
    }


def test_files_of_one_name_are_named_by_their_folders(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "p.md").write_text("{{input}}")
    assert list(configs(suite(folder, CHAT + "prompts: [a/p.md, b/p.md]\n"))) == ["a/p.md", "b/p.md"]


def test_a_variable_in_a_variant_is_a_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "sk-other-0123456789")
    read = suite(folder, CHAT + 'variants: [{name: a, set: {target.api_key: "${OTHER_KEY}"}}, {name: b}]\n')
    assert [one.target.secrets for one in read.variants] == [{"sk-other-0123456789"}, set()]
    assert "sk-other" not in repr(read.masked)


def test_a_secret_in_a_variant_is_not_shown(folder: Path) -> None:
    read = suite(folder, CHAT + "variants: [{name: a, set: {target.api_key: sk-other-0123456789}}]\n")
    assert "sk-other" not in repr(read.masked)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "variants: [{name: a, set: {graders.right.kind: contains}}]",
            [
                "suite.yaml:5:48: variants[0].set.graders.right.kind: only values of the target can be set, such as"
                " target.prompt: graders, cases and gate are the same in all variants, so that their runs are comparable"
            ],
        ),
        (
            "variants: [{name: a, set: {target.temprature: 1}}, {name: b, set: {target.temperature: hot}}]",
            [
                "suite.yaml:5:47: variants[0].set.target.temprature: unknown option; did you mean 'temperature'?",
                "suite.yaml:5:88: variants[1].set.target.temperature: expected float | null, got 'hot'",
            ],
        ),
        (
            "variants: [{name: a}, {name: a}]",
            ["suite.yaml:5:30: variants[1].name: 'a' is the name of an earlier one too; give each its own name"],
        ),
        (
            "variants: [{name: a, set: {target.models: [x]}}]",
            [
                "suite.yaml:5:43: variants[0].set.target.models: a variant is one run; list the models next to variants,"
                " or write target.model"
            ],
        ),
        (
            "variants: [{name: a, set: {target.model: x}}]\nmodels: [y, z]",
            ["suite.yaml:5:42: variants[0].set.target.model: conflicts with 'models'; keep one of them"],
        ),
        (
            "variants: [{name: a, set: {target: {kind: htp}}}]",
            ["suite.yaml:5:43: variants[0].set.target.kind: no target named 'htp'; did you mean 'http'?"],
        ),
        (
            'variants: [{name: a, set: {target.api_key: "${NOT_SET_HERE}"}}]',
            [
                "suite.yaml:5:44: variants[0].set.target.api_key: the variable NOT_SET_HERE is not set; export it, or"
                " write it into .env in the suite's folder"
            ],
        ),
        ("variants: [a]", ["suite.yaml:5:12: variants[0]: expected a mapping, got 'a'"]),
        (
            "variants: []",
            [
                "suite.yaml:5:11: variants: expected a list of variants such as"
                " {name: short, set: {target.prompt: …}}, got []"
            ],
        ),
        ("prompts: [shrt.md]", ["suite.yaml:5:11: prompts[0]: no file 'shrt.md'; did you mean 'short.md'?"]),
        (
            "prompts: [brief]",
            ["suite.yaml:5:11: prompts[0]: no file 'brief'; a text is written as {text: …}"],
        ),
        (
            "prompts: [short.md, 'Say {{inptu}} {{input}}']",
            [
                "suite.yaml:5:21: prompts[1]: unknown placeholder {{inptu}}; use one of {{input}}, {{id}}, {{model}},"
                " {{metadata.x}}"
            ],
        ),
        (
            "prompts: [{name: a}]",
            ["suite.yaml:5:11: prompts[0].file: is required, or text; keep one of them"],
        ),
        (
            "prompts: [short.md, short.md]",
            ["suite.yaml:5:21: prompts[1]: 'short.md' is the name of an earlier one too; give each its own name"],
        ),
    ],
)
def test_a_fault_is_reported_where_it_is_written(folder: Path, lines: str, expected: list[str]) -> None:
    assert faults(folder, CHAT + lines + "\n") == expected


def test_a_kind_without_prompts_refuses_them_with_a_remedy(folder: Path) -> None:
    (fault,) = faults(
        folder, CHAT.replace("kind: openai, temperature: 0", "kind: replay, run: x") + "prompts: [short.md]\n"
    )
    assert fault == (
        "suite.yaml:5:11: prompts[0]: a target of kind replay has no option 'prompt' for a prompt, as openai, anthropic,"
        " gemini, ollama, vllm have; write variants that set what it has, such as {name: …, set: {target.OPTION: …}}"
    )


def test_a_fault_of_the_target_is_reported_once(folder: Path) -> None:
    text = CHAT.replace("temperature: 0", "temperature: hot") + "variants: [{name: a}, {name: b}]\n"
    assert faults(folder, text) == ["suite.yaml:3:37: target.temperature: expected float | null, got 'hot'"]


def test_models_are_written_once(folder: Path) -> None:
    text = CHAT.replace("temperature: 0", "models: [a]") + "models: [b]\n"
    assert faults(folder, text) == ["suite.yaml:5:9: models: is written in the target too; keep one of them"]


def test_the_number_of_runs_is_bounded(folder: Path) -> None:
    variants = ", ".join(f"{{name: v{number}}}" for number in range(MAX_RUNS + 1))
    assert faults(folder, CHAT + f"variants: [{variants}]\n") == [
        "suite.yaml:5:11: variants: more than 1,000 runs; split the suite"
    ]


def test_the_digest_of_a_target_differs_by_variant_only_in_what_it_sets(folder: Path) -> None:
    from gradeline import targets

    read = suite(
        folder,
        CHAT + "variants: [{name: same, set: {target.temperature: 0}}, {name: hot, set: {target.temperature: 1}}]\n",
    )
    base = suite(folder, CHAT)
    same, hot = (targets.create(one.target.kind, one.target.config).fingerprint for one in read.run_variants())
    assert same == targets.create(base.target.kind, base.target.config).fingerprint != hot
