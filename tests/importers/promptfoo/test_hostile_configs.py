"""Configurations and results that try to read other files, to run code or to use up memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradeline.cli.commands import run_command

GIB = 1024**3


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(project: Path, text: str, name: str = "promptfooconfig.yaml") -> Path:
    path = project / "source" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def imported(capsys: pytest.CaptureFixture[str], source: Path) -> tuple[int, str]:
    code = run_command(["import", str(source), "--from", "promptfoo", "--output", "out"])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def written(project: Path) -> str:
    return "".join(path.read_text() for path in (project / "out").rglob("*") if path.is_file())


VALID = 'prompts: ["{{q}}"]\nproviders: [echo]\ntests: [{vars: {q: hi}}]\n'


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("a: {$ref: '#/a'}", "a: $ref '#/a': refers to itself; write the value out"),
        ("a: {b: {$ref: '#/c'}}\nc: {$ref: '#/a'}", "refers to itself"),
        ("a: {$ref: 'a.yaml#/x'}", "refers to itself"),
        ("a: {$ref: '../secret.yaml'}", "'../secret.yaml' is outside the folder of the configuration"),
        ("a: {$ref: 'https://example.com/a.yaml'}", "is not a file; download it into the folder"),
    ],
)
def test_references_end(project: Path, capsys: pytest.CaptureFixture[str], extra: str, message: str) -> None:
    (project / "secret.yaml").write_text("password: hunter2")
    write(project, "x: {$ref: 'b.yaml#/x'}", "a.yaml")
    write(project, "x: {$ref: 'a.yaml#/x'}", "b.yaml")
    code, text = imported(capsys, write(project, VALID + extra + "\n"))
    assert code == 1
    assert message in text
    assert "hunter2" not in written(project)


def test_references_that_multiply_are_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [f"s{n}: [" + ", ".join([f"{{$ref: '#/s{n + 1}'}}"] * 10) + "]" for n in range(9)]
    code, text = imported(capsys, write(project, VALID + "\n".join([*steps, "s9: x", ""])))
    assert code == 2
    assert "has more than 500,000 values with its references; use fewer" in text


def test_files_of_providers_that_name_each_other_end(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "- file://two.yaml\n- echo\n", "one.yaml")
    write(project, "- file://one.yaml\n", "two.yaml")
    code, text = imported(capsys, write(project, VALID.replace("[echo]", "[file://one.yaml]")))
    assert code == 1
    assert "refers to itself, or through too many files; write the provider out" in text


@pytest.mark.parametrize(
    "place", ["../secret.yaml", "/etc/os-release.yaml", "link.yaml", "linked/secret.yaml", "a/../../secret.yaml"]
)
@pytest.mark.parametrize("key", ["prompts", "tests", "vars", "providers", "defaultTest", "assert"])
def test_files_outside_the_folder_are_never_read(
    project: Path, capsys: pytest.CaptureFixture[str], key: str, place: str
) -> None:
    (project / "secret.yaml").write_text("- vars: {q: hunter2}")
    source = write(project, "").parent
    (source / "a").mkdir()
    (source / "link.yaml").symlink_to("../secret.yaml")
    (source / "linked").symlink_to("..", target_is_directory=True)
    data: dict[str, Any] = {"prompts": ["{{q}}"], "providers": ["echo"], "tests": [{"vars": {"q": "hi"}}]}
    reference = f"file://{place}"
    if key == "vars":
        data["tests"].append({"vars": {"q": reference}})
    elif key == "assert":
        data["tests"].append({"vars": {"q": "a"}, "assert": [{"type": "contains", "value": reference}]})
    elif key == "defaultTest":
        data["defaultTest"] = reference
    else:
        data[key] = [*data[key], reference]
    code, text = imported(capsys, write(project, json.dumps(data)))
    assert code == 1
    assert "outside the folder" in text or "no target calls it" in text or "not Python or JavaScript" in text
    assert "hunter2" not in written(project)


@pytest.mark.parametrize("pattern", ["**/**/*.yaml", "../*.yaml", "/etc/*", "[", "x" * 600 + "*"])
def test_patterns_are_of_the_folder_only(project: Path, capsys: pytest.CaptureFixture[str], pattern: str) -> None:
    (project / "secret.yaml").write_text("hunter2")
    data = {"prompts": ["{{q}}"], "providers": ["echo"], "tests": [f"file://{pattern}", {"vars": {"q": "hi"}}]}
    code, text = imported(capsys, write(project, json.dumps(data)))
    assert code == 1
    assert "file" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("name", ["promptfooconfig.js", "promptfooconfig.ts", "promptfooconfig.py"])
@pytest.mark.parametrize("whole", [True, False])
def test_code_is_never_executed(project: Path, capsys: pytest.CaptureFixture[str], name: str, whole: bool) -> None:
    path = write(project, "import os; os.mkdir('executed')", name)
    code, text = imported(capsys, path.parent if whole else path)
    assert code == 2
    assert "is code, which an import never executes; write it as YAML, or import results" in text
    assert not (project / "executed").exists()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a: &a [x, x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (n, n) for n in range(3)), "is not imported"),
        ("prompts: [hi]".encode("utf-16"), "is UTF-16 or UTF-32; save it as UTF-8"),
        (b"prompts: ['\xff']", "is not UTF-8: byte 0xff"),
        (b"prompts: [a\0b]", "U+0000 is not allowed in YAML"),
        (b"\0" * 100, "UTF-16 or UTF-32"),
        (b"prompts: !!python/object/apply:os.system ['mkdir executed']", "tag"),
        (b"prompts: " + b"[" * 5000, "nested"),
        (b"- a\n- b\n", "expected keys and values"),
        (b"prompts: [" + b"x" * 11_000_000 + b"]", "is larger than 10 MB"),
    ],
    ids=["anchors", "utf16", "bytes", "nul", "zeros", "tag", "deep", "list", "large"],
)
def test_files_that_are_no_configuration(
    project: Path, capsys: pytest.CaptureFixture[str], raw: bytes, message: str
) -> None:
    path = write(project, "")
    path.write_bytes(raw if message != "is not imported" else VALID.encode() + raw)
    code, text = imported(capsys, path)
    assert code == (1 if message == "is not imported" else 2)
    assert message in text
    assert not (project / "executed").exists()


def test_a_bomb_of_aliases_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    code, text = imported(capsys, write(project, VALID + "\n".join(levels)))
    assert code == 2
    assert "alias" in text


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({f"v{n}": ["a"] * 50 for n in range(5)}, "have 312500000 combinations, more than 100,000"),
        ({f"v{n}": f"{{{{v{n + 1}}}}}" * 500 for n in range(6)} | {"v6": "x" * 500}, " characters, more than "),
        ({"a": "{{a}}{{a}}"}, None),
        ({"a": "{{b}}", "b": "{{a}}"}, None),
    ],
)
def test_variables_that_grow_are_bounded(
    project: Path, capsys: pytest.CaptureFixture[str], variables: dict[str, object], message: str | None
) -> None:
    tests = [{"vars": {"q": "fine"}}, {"vars": {"q": "hi", **variables}}]
    data = {"prompts": ["{{q}}"], "providers": ["echo"], "tests": tests}
    code, text = imported(capsys, write(project, json.dumps(data)))
    assert message is None or message in text
    assert code in (0, 1, 3)
    assert sum(path.stat().st_size for path in (project / "out").iterdir()) < 60_000_000


def test_prompts_with_providers_are_bounded(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [f"{{{{q}}}} {n}" for n in range(150)]
    providers = [{"id": "openai:gpt-5", "config": {"temperature": n / 100}} for n in range(100)]
    data = {"prompts": prompts, "providers": providers, "tests": [{"vars": {"q": "hi"}}]}
    code, text = imported(capsys, write(project, json.dumps(data)))
    assert code == 1
    assert "are 15,000 combinations, of which 1,000 are imported; split the configuration" in text


@pytest.mark.parametrize(
    "piece", [" ", "\\n", "json=> ", "(a, ", "return ", "{ ", ".a", "[0]", "; ", "{% if a %}", "?api_key="]
)
def test_long_code_and_templates_end(project: Path, capsys: pytest.CaptureFixture[str], piece: str) -> None:
    text = piece * (300_000 // len(piece))
    write(project, f"x{text}export", "agent.js")
    data = {
        "prompts": ["{{q}}", text],
        "providers": [
            {"id": f"https://agent.example.com/{number}", "config": {"body": {"a": "{{q}}"}, "transformResponse": code}}
            for number, code in enumerate([text, f"json.a{text}x", f"(json{text}x", f"return json{text}x"])
        ]
        + ["file://agent.js", f"https://agent.example.com/{text[:1000]}", f"exec:a {text[:1000]}"],
        "tests": [{"vars": {"q": "hi"}, "options": {"transform": f"JSON.parse(output).a{text}x"}}],
    }
    code, _ = imported(capsys, write(project, json.dumps(data)))
    assert code == 1


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))
from gradeline.cli.commands import run_command
sys.exit(run_command(["import", *sys.argv[1:], "--from", "promptfoo", "--output", "out"]))
"""


@pytest.mark.parametrize(
    ("name", "start", "code", "message"),
    [
        ("results.jsonl", b"", 2, "contains a string of more than"),
        ("results.json", b'{"evalId": "x", "config": {}, "results": ', 2, "at most 512 MiB are read as a whole"),
        ("source/tests.jsonl", b'{"vars": {"q": "first"}}\n', 1, "contains a string of more than"),
        ("source/tests.csv", b"q\nfirst\n", 1, "contains a string of more than"),
        ("source/tests.yaml", b"- vars: {q: first}\n", 1, "is larger than 10 MB"),
    ],
)
def test_two_gigabytes_in_bounded_memory(project: Path, name: str, start: bytes, code: int, message: str) -> None:
    source = write(project, VALID.replace("[{vars: {q: hi}}]", f"[{{vars: {{q: hi}}}}, file://{Path(name).name}]"))
    large = project / name
    large.write_bytes(start)
    os.truncate(large, 2 * GIB)  # a sparse file: it takes no space
    place = large if code == 2 else source
    if name == "results.jsonl":
        place.write_bytes(b'{"promptIdx": 0, "testIdx": 0, "testCase": {}, "provider": "p"}\n')
        os.truncate(place, 2 * GIB)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(place)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, message in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
