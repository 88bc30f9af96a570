"""``gradeline grade``: one grader on one text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from gradeline.model import Grade, Record, Response

_MAX_BYTES = 64 * 1024 * 1024
_EXIT_CODES = {"pass": 0, "fail": 1, "error": 4, "skipped": 4}


@click.command()
@click.argument("grader", metavar="GRADER")
@click.argument("cases", required=False, type=click.Path(path_type=Path), metavar="[CASES.jsonl]")
@click.option("--config", metavar="JSON", help="The grader's options, as JSON or as @FILE.")
@click.option("--expected", metavar="TEXT", help="The expectation the text is graded against.")
@click.option("--input", "input_text", metavar="TEXT", default="", help="What the agent was asked ($input in rules).")
@click.option("--metadata", metavar="JSON", help="The case's metadata ($metadata.key in rules), as JSON or as @FILE.")
@click.option("--response", "is_response", is_flag=True, help="Read a whole response as JSON instead of a text.")
@click.option("--extractor", metavar="NAME", help="Take the submission out of the response with this extractor.")
@click.option("--extractor-config", metavar="JSON", help="The extractor's options, as JSON or as @FILE.")
@click.option("--pass-threshold", type=click.FloatRange(0, 1), help="The score from which it passes.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds one call of a custom grader may take.",
)
@click.option(
    "--memory",
    type=click.IntRange(64),
    default=2048,
    show_default=True,
    help="MiB of address space a custom grader may have.",
)
@global_options
def grade(
    grader: str,
    cases: Path | None,
    config: str | None,
    expected: str | None,
    input_text: str,
    metadata: str | None,
    is_response: bool,
    extractor: str | None,
    extractor_config: str | None,
    pass_threshold: float | None,
    timeout: float,
    memory: int,
) -> int:
    """Grade the text on standard input, or every case of a file.

    GRADER is the name of a built-in, or FILE.py[:function] with graders of your own, marked with @grader. A line of
    CASES.jsonl is {"input", "ground_truth", "submission", "metadata"}.

    \b
    echo "The answer is 42." | gradeline grade numeric --expected 42
    echo '{"a": 1}' | gradeline grade json_match --config '{"mode": "subset"}' --expected '{"a": 1}'
    gradeline grade my_graders.py:polite cases.jsonl

    Exits with 0 when all pass, 1 when one fails, 2 when the call is wrong; without a failure, with 3 when some have no
    score and 4 when none has.
    """
    options = _mapping(config, "--config")
    if cases is not None:
        from gradeline.cli import grade_cases

        return grade_cases.run(current_settings(), grader, cases, options, timeout, memory * 2**20)
    if grader.endswith(".py") or ".py:" in grader:
        raise click.UsageError("A grader of your own needs a file of cases: gradeline grade FILE.py CASES.jsonl")
    import asyncio

    from gradeline import extractors, graders
    from gradeline.engine.grade import grade_once
    from gradeline.graders.base import DEFAULT_EXTRACTOR
    from gradeline.model import Record, Sample, clean_text

    settings = current_settings()
    built_in = graders.create(grader, options)
    extractor_options = _mapping(extractor_config, "--extractor-config")
    # standard input is the submission itself
    usual = graders.default_extractor(grader) if is_response else DEFAULT_EXTRACTOR
    chosen = extractors.create(extractor or usual, extractor_options)
    response = _read_response(is_response)
    sample = Sample(
        id="stdin",
        input=clean_text(input_text).text,
        ground_truth=None if expected is None else clean_text(expected).text,
        metadata=_mapping(metadata, "--metadata") or {},
    )
    submission, result = asyncio.run(grade_once(built_in, chosen, sample, response, pass_threshold))
    submissions = {} if submission is None else {built_in.kind: submission}
    record = Record("grade", sample.case_key, 0, sample, response, submissions, {built_in.kind: result})
    _show(settings, record)
    return _EXIT_CODES[result.outcome]


def _show(settings: Settings, record: Record) -> None:
    (result,) = record.grades.values()
    if settings.json:
        from gradeline.model import to_json

        click.echo(to_json(record))
    elif settings.quiet:
        click.echo(result.outcome if result.score is None else f"{result.outcome} {result.score:g}")
    else:
        _print(settings, result)


def _print(settings: Settings, result: Grade) -> None:
    from gradeline.cli.terminal import OUTCOME_STYLES, console, plain

    out = console(settings)
    score = "no score" if result.score is None else f"score {result.score:.3g}"
    out.print(plain(f"{result.outcome}  {score}", f"bold {OUTCOME_STYLES[result.outcome]}"))
    if result.error is not None:
        out.print(plain(f"{result.error.type}: {result.error.message} ({result.error.fault}'s fault)", most=2000))
    if result.rationale:
        out.print(plain(result.rationale, most=2000))
    for key, value in result.metadata.items():
        if value != result.rationale:
            out.print(plain(f"  {key}: {value}", "dim"))


def _mapping(text: str | None, option: str) -> dict[str, Any] | None:
    """A JSON object given as text or as @FILE."""
    if text is None:
        return None
    from gradeline.model import clean_text, quote
    from gradeline.parsing.jsontext import NotJsonError, parse_json

    if text.startswith("@"):
        try:
            text = clean_text(Path(text[1:]).read_bytes()).text
        except OSError as error:
            raise click.UsageError(f"{option}: cannot read {text[1:]!r}: {error.strerror}") from None
    try:
        value = parse_json(text)
    except NotJsonError as error:
        raise click.UsageError(f"{option}: not JSON: {error}, got {quote(text)}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f'{option}: expected a JSON object such as {{"key": "value"}}, got {quote(text)}')
    return value


def _read_response(is_response: bool) -> Response:
    from gradeline.errors import DataError
    from gradeline.model import Response, clean_text, from_json

    if sys.stdin.isatty():
        click.echo("Reading from the keyboard; end with Ctrl-D.", err=True)
    raw = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise click.UsageError(f"standard input: more than {_MAX_BYTES // 2**20} MiB is no answer of an agent")
    text, changed = clean_text(raw)
    if changed:
        click.echo("standard input holds bytes that are no UTF-8 or NUL; they were replaced", err=True)
    if not is_response:
        return Response(text=text.removesuffix("\n").removesuffix("\r"), cleaned=changed)
    try:
        return from_json(Response, text)
    except DataError as error:
        raise click.UsageError(f"standard input: {error}") from None
