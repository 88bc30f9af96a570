"""What the parts of a configuration become: tests, prompts, providers, options of the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradeline.cli.commands import run_command
from gradeline.importers.promptfoo_config import resolved_config
from gradeline.importers.promptfoo_expressions import NotTranslatedError
from gradeline.importers.promptfoo_files import SourceFolder
from gradeline.importers.promptfoo_http import response_path
from gradeline.importers.promptfoo_tests import TestReader, csv_test
from gradeline.importers.report import ImportReport, State
from gradeline.store import open_storage

CORPUS = Path(__file__).parent / "corpus"
QUESTION = {"prompts": ["{{q}}"], "providers": ["echo"], "tests": [{"vars": {"q": "hi"}}]}
Import = Callable[..., tuple[int, dict[str, Any], list[dict[str, Any]]]]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a configuration: the exit code, the suite and the cases."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CORPUS / "files", tmp_path / "files")

    def run(**keys: Any) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
        shutil.rmtree("out", ignore_errors=True)
        Path("promptfooconfig.yaml").write_text(yaml.safe_dump({**QUESTION, **keys}, sort_keys=False))
        code = run_command(["import", ".", "--output", "out"])
        cases = [json.loads(line) for line in Path("out/cases.jsonl").read_text().splitlines()]
        return code, yaml.safe_load(Path("out/suite.yaml").read_text()), cases

    return run


def expanded(**keys: Any) -> list[Any]:
    """The variables of a configuration's tests, and the values of their assertions."""
    config = resolved_config("c.yaml", keys, SourceFolder(CORPUS), ImportReport("", ""))
    tests = TestReader(config, ImportReport("", "")).tests()
    return [(dict(test.variables), [one["value"] for one in test.assertions]) for test in tests]  # type: ignore[index]


def expect(value: str) -> dict[str, Any]:
    return {"type": "contains", "value": value}


class TestTests:
    def test_defaults_come_first_and_are_overridden_by_key(self) -> None:
        default = {"vars": {"a": 1, "b": 1}, "assert": [expect("default")], "options": {"prefix": "x"}}
        tests = [
            {"vars": {"b": 2}, "assert": [expect("own")]},
            {"assert": [expect("own")], "options": {"disableDefaultAsserts": True}},
        ]
        assert expanded(defaultTest=default, tests=tests) == [
            ({"a": 1, "b": 2}, ["default", "own"]),
            ({"a": 1, "b": 1}, ["own"]),
        ]

    def test_a_scenario_crosses_its_configurations_with_its_tests(self) -> None:
        scenario = {
            "config": [{"vars": {"lang": "de"}, "assert": [expect("config")]}, {"vars": {"lang": "fr", "text": "x"}}],
            "tests": [{"vars": {"text": "a"}, "assert": [expect("a")]}, {"vars": {}}],
        }
        assert expanded(scenarios=[scenario], defaultTest={"assert": [expect("default")]}) == [
            ({"lang": "de", "text": "a"}, ["default", "config", "a"]),
            ({"lang": "de"}, ["default", "config"]),
            ({"lang": "fr", "text": "a"}, ["default", "a"]),
            ({"lang": "fr", "text": "x"}, ["default"]),
        ]

    def test_lists_that_begin_with_a_text_are_expanded(self) -> None:
        variables = {"a": ["x", "y"], "b": ["1", "2"], "c": [1, "z"], "d": [], "e": {"f": ["g"]}}
        whole = {"c": [1, "z"], "d": [], "e": {"f": ["g"]}}
        assert [found for found, _ in expanded(tests=[{"vars": variables}])] == [
            {"a": a, "b": b, **whole} for a in "xy" for b in "12"
        ]
        kept = {"vars": variables, "options": {"disableVarExpansion": True}}
        assert expanded(tests=[kept]) == [(variables, [])]

    def test_variables_in_variables_are_replaced(self) -> None:
        variables = {"a": "{{b}}!", "b": "{{c.d}} {{missing}}", "c": {"d": "deep"}, "e": "{{env.HOME}}"}
        assert expanded(tests=[{"vars": variables}])[0][0] == {**variables, "a": "deep !", "b": "deep "}

    def test_a_row_of_csv(self) -> None:
        row = {
            "question": " Hi ",
            "__expected": "contains: a",
            "__expected1": "b",
            "__expected2": "not-similar(0.6):c",
            "__prefix": "p",
            "__suffix": "",
            "__description": "d",
            "__metric": "m",
            "__threshold": "0.5",
            "__metadata:topic": "t",
            "__metadata:tags[]": "x, y\\,z",
            "__config:__expected2:threshold": "0.9",
            "__providerOutput": "o",
        }
        report = ImportReport("", "")
        assert csv_test("f.csv:2", row, report) == {
            "vars": {"question": " Hi "},
            "options": {"prefix": "p", "suffix": ""},
            "metadata": {"topic": "t", "tags": ["x", "y,z"]},
            "description": "d",
            "threshold": 0.5,
            "providerOutput": "o",
            "assert": [
                {"type": "contains", "value": "a", "metric": "m"},
                {"type": "equals", "value": "b", "metric": "m"},
                {"type": "not-similar", "value": "c", "threshold": 0.9, "metric": "m"},
            ],
        }
        assert report.count(State.NOT_MAPPED) == 0

    def test_cases_are_named_by_description_or_digest(self, imported: Import) -> None:
        tests = [
            {"vars": {"q": "a"}, "description": "one"},
            {"vars": {"q": "b"}, "description": "one"},
            {"vars": {"q": "c"}},
            {"vars": {"q": "c"}},
        ]
        _, _, cases = imported(tests=tests)
        names = [case["id"] for case in cases]
        assert names[0] == "one"
        assert names[1].startswith("one ")
        assert names[2].startswith("case-")
        assert len(set(names)) == 4
        _, _, moved = imported(tests=[tests[2], tests[0]])
        assert [case["id"] for case in moved] == [names[2], "one"]


class TestPrompts:
    def test_variables_are_placeholders_of_the_question_and_the_metadata(self, imported: Import) -> None:
        code, suite, cases = imported(
            prompts=["As {{ persona }}: {{question}} ${HOME}"],
            providers=["openai:gpt-5"],
            tests=[{"vars": {"question": "Why?", "persona": "a cook"}}, {"vars": {"question": "How?"}}],
        )
        assert (code, suite["target"]["prompt"]) == (0, "As {{metadata.vars.persona}}: {{input}} $${HOME}")
        assert [(case["input"], case["metadata"]["vars"]) for case in cases] == [
            ("Why?", {"persona": "a cook", "question": "Why?"}),
            ("How?", {"persona": "", "question": "How?"}),
        ]

    def test_what_no_placeholder_says_is_rendered_for_each_case(self, imported: Import) -> None:
        _, suite, cases = imported(
            prompts=["{{q | upper}} {{list[1]}}", "{{q}}"],
            providers=["openai:gpt-5"],
            tests=[{"vars": {"q": "why", "list": [1, 2]}}],
        )
        targets = [one["set"]["target"].get("prompt") for one in suite["variants"]]
        assert targets == ["{{metadata.prompts.prompt-1}}", None]
        assert cases[0]["metadata"]["prompts"] == {"prompt-1": "WHY 2"}

    def test_prompts_of_chat_models_are_prompts_of_the_suite(self, imported: Import) -> None:
        prompts = [{"label": "Short", "raw": "Short: {{q}}"}, "Long: {{q}}"]
        _, suite, _ = imported(prompts=prompts, providers=["openai:a", {"id": "openai:b", "label": "B"}])
        assert suite["target"] == {"kind": "openai"}
        assert suite["models"] == ["a", "b"]
        assert suite["prompts"] == [
            {"name": "short", "text": "Short: {{input}}"},
            {"name": "prompt-2", "text": "Long: {{input}}"},
        ]

    def test_long_prompts_are_blocks_that_people_can_edit(self, imported: Import) -> None:
        _, suite, _ = imported(prompts=["First line.\n\nSecond: {{q}}\n"], providers=["openai:m"])
        assert suite["target"]["prompt"] == "First line.\n\nSecond: {{input}}\n"
        assert "  prompt: |\n    First line.\n\n    Second: {{input}}\n" in Path("out/suite.yaml").read_text()

    def test_messages_keep_their_question(self, imported: Import) -> None:
        messages = [{"role": "system", "content": "Be {{tone}}"}, {"role": "user", "content": "Say {{q}}"}]
        _, suite, _ = imported(prompts=[json.dumps(messages)], providers=["anthropic:messages:m"])
        assert suite["target"]["messages"] == [
            {"role": "system", "content": "Be {{metadata.vars.tone}}"},
            {"role": "user", "content": "Say {{input}}"},
        ]

    def test_a_prompt_without_variables_is_the_input(self, imported: Import) -> None:
        _, suite, cases = imported(prompts=["Tell a joke"], providers=["openai:m"], tests=[{}])
        assert (cases[0]["input"], suite["target"]) == ("Tell a joke", {"kind": "openai", "model": "m"})

    def test_prefix_and_suffix_surround_the_prompt(self, imported: Import) -> None:
        test = {"vars": {"q": "hi", "who": "Ada"}, "options": {"prefix": "{{who}}: ", "suffix": "!"}}
        _, suite, cases = imported(prompts=["Say {{q}}"], providers=["openai:m"], tests=[test])
        assert suite["target"]["prompt"] == "{{metadata.prefix}}Say {{input}}{{metadata.suffix}}"
        assert (cases[0]["metadata"]["prefix"], cases[0]["metadata"]["suffix"]) == ("Ada: ", "!")


CHAT: Mapping[str, dict[str, Any]] = {
    "openai:gpt-5": {"kind": "openai", "model": "gpt-5"},
    "openai:responses:gpt-5": {"kind": "openai", "model": "gpt-5", "api": "responses"},
    "openai:chat:ft:gpt-4o:org::id": {"kind": "openai", "model": "ft:gpt-4o:org::id"},
    "anthropic:messages:claude-x": {"kind": "anthropic", "model": "claude-x"},
    "google:gemini-x": {"kind": "gemini", "model": "gemini-x"},
    "ollama:chat:llama3:8b": {"kind": "ollama", "model": "llama3:8b"},
    "groq:llama": {
        "kind": "openai",
        "model": "llama",
        "base_url": "https://api.groq.com/openai/v1",
        "api_key": "${GROQ_API_KEY}",
    },
}


class TestProviders:
    @pytest.mark.parametrize(("ident", "target"), CHAT.items())
    def test_chat_models(self, imported: Import, ident: str, target: dict[str, Any]) -> None:
        code, suite, _ = imported(providers=[ident])
        assert (code, suite["target"]) == (0, target)

    def test_a_deployment_of_azure(self, imported: Import) -> None:
        config = {"apiHost": "x.openai.azure.com", "apiKey": "{{env.MY_KEY}}", "apiVersion": "2024"}
        code, suite, _ = imported(providers=[{"id": "azure:chat:dep", "config": config}])
        assert (code, suite["target"]) == (
            3,
            {
                "kind": "openai",
                "model": "dep",
                "base_url": "https://x.openai.azure.com/openai/v1",
                "api_key": "${MY_KEY}",
            },
        )

    def test_options_of_a_chat_model(self, imported: Import) -> None:
        config = {
            "temperature": 0,
            "max_completion_tokens": 9,
            "apiBaseUrl": "https://models.example.com/v1",
            "apiKeyEnvar": "MY_KEY",
            "headers": {"X-A": "1", "Authorization": "Bearer written-out"},
            "organization": "o",
            "top_p": 0.5,
            "passthrough": {"service_tier": "flex"},
            "unknown": 1,
        }
        code, suite, _ = imported(providers=[{"id": "openai:m", "label": "L", "config": config, "delay": 500}])
        assert code == 1
        assert suite["target"] == {
            "kind": "openai",
            "model": "m",
            "temperature": 0,
            "max_tokens": 9,
            "base_url": "https://models.example.com/v1",
            "api_key": "${MY_KEY}",
            "headers": {"X-A": "1", "Authorization": "Bearer ${L_AUTHORIZATION}", "OpenAI-Organization": "o"},
            "params": {"top_p": 0.5, "service_tier": "flex"},
            "rate": {"calls": 1, "per": 0.5},
        }
        report = Path("out/import.md").read_text()
        assert "config 'unknown'" in report
        assert "a secret is not copied: set it as L\\_AUTHORIZATION" in report or "L_AUTHORIZATION" in report
        assert "written-out" not in report

    def test_an_http_agent(self, imported: Import) -> None:
        config = {
            "url": "https://agent.example.com/{{path}}",
            "body": {"text": "Q: {{prompt}}", "raw": "{{q}}", "n": 1},
            "queryParams": {"a": "1", "b": "{{path}}"},
            "transformResponse": "json.a?.b[0]['c d']",
            "maxRetries": 3,
            "timeoutMs": 1500,
        }
        code, suite, _ = imported(
            prompts=["Say {{q}}"],
            providers=[{"id": "https", "config": config}],
            tests=[{"vars": {"q": "x", "path": "y"}}],
        )
        assert (code, suite["target"]) == (
            0,
            {
                "kind": "http",
                "url": "https://agent.example.com/{{metadata.vars.path}}?b={{metadata.vars.path}}",
                "method": "POST",
                "query": {"a": "1"},
                "request": {"text": "Q: Say {{input}}", "raw": "{{input}}", "n": 1},
                "response": {"output": 'a.b[0]."c d"'},
                "retries": 3,
                "timeout": 1.5,
            },
        )

    def test_secrets_are_never_copied(self, imported: Import, capsys: pytest.CaptureFixture[str]) -> None:
        secret = "s3cr3t-value"
        agent = {
            "url": f"https://agent.example.com/a?api_key={secret}&q={{{{q}}}}",
            "headers": {"Cookie": secret, "Authorization": f"Basic {secret}"},
            "queryParams": {"access_token": secret},
            "body": {"auth": {"password": secret}, "q": "{{q}}", "token": "{{q}}"},
        }
        options = {"apiKey": secret, "passthrough": {"api_key": secret, "a": 1}, "headers": {"X-Api-Key": secret}}
        code, suite, _ = imported(
            env={"SOME_TOKEN": secret},
            providers=[
                {"id": "https", "label": "web", "config": agent},
                {"id": f"https://agent.example.com/b?api_key={secret}", "config": {"body": {"q": "{{q}}"}}},
                {"id": "openai:m", "config": options, "env": {"OTHER_KEY": secret}},
                {"id": "file://files/agent.py", "config": options},
                {"id": "bedrock:x", "config": options},
                {"config": options, "label": "none"},
            ],
        )
        written = "".join(path.read_text() for path in Path("out").rglob("*") if path.is_file())
        output = capsys.readouterr()
        assert code == 1
        assert secret not in written + output.out + output.err
        assert suite["variants"][0]["set"]["target"]["request"] == {
            "auth": {"password": "${WEB_PASSWORD}"},
            "q": "{{input}}",
            "token": "{{input}}",
        }
        assert (
            suite["variants"][0]["set"]["target"]["url"]
            == "https://agent.example.com/a?api_key=${WEB_API_KEY}&q={{input}}"
        )

    def test_providers_with_similar_names_have_files_of_their_own(self, imported: Import) -> None:
        _, suite, _ = imported(providers=["bedrock:a.b", "bedrock:a-b", {"id": "bedrock:c", "label": "bedrock a_b"}])
        functions = [one["set"]["target"]["function"] for one in suite["variants"]]
        assert len(set(functions)) == 3

    def test_long_names_are_different_variants(self, imported: Import) -> None:
        prompts = [{"label": f"{'long ' * 20}{number}", "raw": f"{number} {{{{q}}}}"} for number in range(3)]
        providers = [{"id": "echo", "label": f"{'name ' * 20}{number}"} for number in range(12)]
        _, suite, _ = imported(prompts=prompts, providers=providers)
        names = [one["name"] for one in suite["variants"]]
        assert len(set(names)) == 36
        assert run_command(["validate", "out/suite.yaml"]) == 0

    def test_providers_without_any_prompt_leave_a_suite_to_be_completed(self, imported: Import) -> None:
        code, suite, _ = imported(providers=[{"id": "echo", "prompts": ["none"]}])
        assert (code, suite["target"]["function"]) == (1, "targets/agent.py:answer")
        assert run_command(["validate", "out/suite.yaml"]) == 0

    def test_a_provider_without_a_target_is_a_function_to_be_written(self, imported: Import) -> None:
        code, suite, _ = imported(providers=["bedrock:some.model"])
        assert (code, suite["target"]["function"]) == (1, "targets/bedrock_some_model.py:answer")
        assert run_command(["run", "out/suite.yaml", "--store", "runs.db"]) == 4
        with open_storage("runs.db") as storage:
            (record,) = storage.records(storage.list_runs()[0].id)
        assert record.response.error is not None
        assert "the provider bedrock:some.model of promptfoo was not translated" in record.response.error.message

    @pytest.mark.parametrize(
        ("provider", "text", "cost"),
        [
            ({"id": "file://files/agent.py", "config": {"shout": True, "apiKey": "x"}}, "SAY TEA", 0.5),
            ("python:files/agent.py:other_call", '{"prompt": "Say tea", "vars": {"q": "tea"}}', None),
            ("exec:printf '%s;'", 'Say tea;{"config": {}};{"vars": {"q":"tea"}};', None),
            ("file://files/agent.mjs", "Say tea 1", None),
            ("file://files/agent_class.js", "From a class: Say tea", None),
            ("echo", "Say tea", None),
        ],
    )
    def test_providers_that_run_code(self, imported: Import, provider: object, text: str, cost: float | None) -> None:
        if "agent" in str(provider) and ".py" not in str(provider) and shutil.which("node") is None:
            pytest.skip("Node is not installed")
        _, _, _ = imported(prompts=["Say {{q}}"], providers=[provider], tests=[{"vars": {"q": "tea"}}])
        assert run_command(["run", "out/suite.yaml", "--store", "runs.db"]) == 0
        with open_storage("runs.db") as storage:
            (record,) = storage.records(storage.list_runs()[0].id)
        usage = record.response.usage
        assert (record.response.text, None if usage is None else usage.cost) == (text, cost)


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("json", "@"),
        ("json.result", "result"),
        ("json.choices[0].message.content", "choices[0].message.content"),
        ("json[0].x;", "[0].x"),
        ("(json) => json.a.b", "a.b"),
        ("(json, text, context) => json.a", "a"),
        ("data => data.answer", "answer"),
        ("json => { return json.a ?? json.b; }", "a || b"),
        ("json.a || 'none'", 'a || `"none"`'),
        ("context.response.a", "a"),
        ("text", None),
    ],
)
def test_the_path_of_a_response(code: str, path: str | None) -> None:
    assert response_path(code) == path


@pytest.mark.parametrize(
    "code", ["json.a.map(x => x)", "{output: json.a}", "file://x.js", "json.a + json.b", "text.x", ""]
)
def test_code_that_is_no_path(code: str) -> None:
    with pytest.raises(NotTranslatedError):
        response_path(code)


def test_options_of_the_run(imported: Import) -> None:
    options = {"maxConcurrency": 2, "repeat": 3, "cache": True, "timeoutMs": 5000, "delay": 250}
    code, suite, _ = imported(evaluateOptions=options, commandLineOptions={"maxConcurrency": 5})
    assert (code, suite["concurrency"], suite["repeats"], suite["cache"]) == (0, 5, 3, True)
    assert (suite["target"]["timeout"], suite["target"]["rate"]) == (5.0, {"calls": 1, "per": 0.25})


def test_responses_in_the_configuration_are_replayed(imported: Import) -> None:
    tests = [{"vars": {"q": "a"}, "providerOutput": "A", "assert": [{"type": "equals", "value": "A"}]}]
    code, suite, _ = imported(providers=["openai:m"], tests=tests)
    assert (code, suite["target"]) == (0, {"kind": "replay", "responses": "answers.jsonl"})
    assert run_command(["run", "out/suite.yaml"]) == 0


def test_tests_that_cannot_be_imported_at_all_are_refused(imported: Import, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError):
        imported(tests="file://files/tests/make.py")
    assert "promptfooconfig.yaml: has no test that can be imported; promptfooconfig.yaml.tests: tests" in (
        capsys.readouterr().err
    )
