"""``gradeline init`` and ``gradeline schema``: a new suite and the JSON Schema of suite files.

In the new suite, a ``#`` with a space after it starts a comment; one without disables an option, which works once the
``#`` is deleted.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from gradeline.cli.options import current_settings, global_options
from gradeline.errors import ConfigError, Problem

SUITE = "suite.yaml"
SCHEMA = "suite.schema.json"
AGENT = "python -m gradeline.demo.agent --port 9000"
"""Starts the agent of the suite for ``http``."""

_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA}
# With the line above your editor completes and checks this file. Delete the # before an option to use it.

name: capitals
#description: Questions about capitals.

# The cases, one JSON object per line; .csv, .json and .yaml files work too.
dataset: cases.jsonl
#max_samples: 2           # only the first two cases
#sample_tags: [europe]    # only the cases with this tag

"""

_PYTHON = """\
# The agent under test: a Python function. Other kinds are http, command and replay.
target:
  kind: python
  function: agent.py:answer   # called with the input, returns the response
  #timeout: 60                # seconds per call
"""

_HTTP = f"""\
# The agent under test: any HTTP service. Other kinds are python, command and replay.
# A small agent for this suite: {AGENT}
target:
  kind: http
  url: http://127.0.0.1:9000/evaluate
  request: {{input: "{{{{input}}}}"}}   # the request body; {{{{id}}}} and {{{{metadata.x}}}} work too
  response: {{output: response}}    # JMESPath of the text in the JSON response
  #headers: {{Authorization: "Bearer ${{AGENT_KEY}}"}}   # from the environment, or from .env in this folder
  #timeout: 60                    # seconds per case, retries included
"""

_COMMAND = """\
# The agent under test: a program. Other kinds are http, python and replay.
target:
  kind: command
  # The program and its arguments: it reads the input and prints the response. Replace sed by yours.
  command: [sed, "s/.*France.*/Paris/; s/.*Spain.*/Madrid/; s/.*Peru.*/Lima/"]
  #timeout: 60   # seconds per case
"""

_REPLAY = """\
# Stored responses are graded and no agent is called. Other kinds are http, python and command.
target:
  kind: replay
  responses: answers.jsonl   # one {"id": …, "text": …} per line: the id of a case and the response to it
"""

_TAIL = """\

# The graders of a response, under names of your choice. "gradeline graders" lists the kinds and their options.
graders:
  right:
    kind: string-match     # compares with the ground_truth of the case
    mode: contains
    #case_sensitive: true
  rules:
    kind: custom-rules     # rules for every response
    rules:
      - {condition: not_contains, value: as an AI}
      - {condition: word_count_max, value: 50}
      #- {condition: starts_with, value: The capital}
  brief:
    kind: tool             # your own Python code
    function: graders.py:brief
  #similar: {kind: similarity, threshold: 0.5, extractor: first_assistant}

# The rule a run must satisfy. Exit code 0: it does; 1: it does not; 3: too little was graded.
gate:
  kind: simple
  metric_key: right
  aggregation: accuracy    # share of the cases that pass; avg_score is the mean of their scores
  op: gte
  value: 0.75

#repeats: 3               # three calls per case
#concurrency: 4           # maximum calls in flight
#coverage_floor: 0.9      # share of the cases that must have a score (default 0.95)
"""

_CASES = """\
{"id": "france", "input": "What is the capital of France?", "ground_truth": "Paris", "tags": ["europe"]}
{"id": "spain", "input": "What is the capital of Spain?", "ground_truth": "Madrid", "tags": ["europe"]}
{"id": "peru", "input": "What is the capital of Peru?", "ground_truth": "Lima", "metadata": {"max_words": 8}}
{"id": "kenya", "input": "What is the capital of Kenya?", "ground_truth": "Nairobi"}
"""

_AGENT = '''\
"""The agent of suite.yaml; call your own here."""

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima"}


def answer(text: str) -> str:
    country = text.rstrip("?").split()[-1]
    if country not in CAPITALS:
        return "I do not know."
    return f"The capital of {country} is {CAPITALS[country]}."
'''

_GRADERS = '''\
"""Custom graders; each returns a score from 0 to 1 and a rationale."""

from gradeline import GradeResult, Sample, grader


@grader
def brief(sample: Sample, submission: str) -> GradeResult:
    words = len(submission.split())
    most = sample.metadata.get("max_words", 20)
    return GradeResult(score=1.0 if words <= most else 0.0, rationale=f"{words} words, maximum {most}")
'''

_ANSWERS = """\
{"id": "france", "text": "The capital of France is Paris."}
{"id": "spain", "text": "The capital of Spain is Madrid."}
{"id": "peru", "text": "The capital of Peru is Lima."}
{"id": "kenya", "text": "I do not know."}
"""

_TARGETS: dict[str, tuple[str, dict[str, str]]] = {
    "python": (_PYTHON, {"agent.py": _AGENT}),
    "http": (_HTTP, {}),
    "command": (_COMMAND, {}),
    "replay": (_REPLAY, {"answers.jsonl": _ANSWERS}),
}
TARGETS = tuple(_TARGETS)


def starter_files(target: str) -> dict[str, str]:
    """The files of a suite for this kind of target, by name, without the schema."""
    block, files = _TARGETS[target]
    return {SUITE: _HEAD + block + _TAIL, "cases.jsonl": _CASES, "graders.py": _GRADERS, **files}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("--target", type=click.Choice(TARGETS), default="python", show_default=True, help="Kind of agent.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@global_options
def init(folder: Path, target: str, force: bool) -> None:
    """Create a small suite in FOLDER (default: the current folder).

    It has cases, a built-in and a custom grader and a gate, and is ready to run.

    \b
    gradeline init evals
    gradeline init evals --target http
    """
    from gradeline.suite.schema import schema_text  # loads every grader

    files = {folder / name: text for name, text in {**starter_files(target), SCHEMA: schema_text()}.items()}
    if not force:
        _refuse_existing(files)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(Problem(str(folder), "is a file; name a folder"))
    for path, text in files.items():
        _write(path, text, "w" if force else "x")
    suite = shlex.quote(str(folder / SUITE))
    first = AGENT if target == "http" else f"gradeline validate {suite}"
    _report([str(path) for path in files], [first, f"gradeline run {suite}"])


@click.command()
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file (default: standard output)."
)
@global_options
def schema(output: Path | None) -> None:
    """Print the JSON Schema of suite files, for completion and checks in an editor.

    \b
    gradeline schema > suite.schema.json
    Refer to it in the first line of a suite:
    # yaml-language-server: $schema=suite.schema.json
    """
    from gradeline.suite.schema import schema_text  # loads every grader

    text = schema_text()
    if output is None:
        click.echo(text, nl=False)
        return
    _write(output, text, "w")
    if current_settings().json:
        _report([str(output)], [])


def _refuse_existing(files: dict[Path, str]) -> None:
    # a broken link counts too: writing would follow it
    existing = [path for path in files if path.exists() or path.is_symlink()]
    if existing:
        remedy = "overwrite them with --force, or name another folder"
        raise ConfigError([*(Problem(str(path), "already exists") for path in existing), Problem("", remedy)])


def _write(path: Path, text: str, mode: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        reason = f"cannot write: {error.strerror}; choose another path"
        raise ConfigError(Problem(str(path), reason)) from None


def _report(written: list[str], following: list[str]) -> None:
    settings = current_settings()
    if settings.json:
        import json

        click.echo(json.dumps({"written": written, "next": following}, ensure_ascii=False))
        return
    for path in written:
        click.echo(path if settings.quiet else f"wrote {path}")
    if not settings.quiet:
        click.echo("\nNext:")
        for command in following:
            click.echo(f"  {command}" + ("   # in another terminal" if command == AGENT else ""))
