"""``gradeline grade``: one grader on one text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from gradeline.model import Grade, Record, Response

_KEY = "grade"
_MAX_BYTES = 64 * 1024 * 1024
_EXIT_CODES = {"pass": 0, "fail": 1, "error": 4, "skipped": 4}


@click.command()
@click.argument("kind")
@click.option("--config", metavar="JSON", help="The grader's options, as JSON or as @FILE.")
@click.option("--expected", metavar="TEXT", help="The expectation the text is graded against.")
@click.option("--input", "input_text", metavar="TEXT", default="", help="What the agent was asked ($input in rules).")
@click.option("--metadata", metavar="JSON", help="The case's metadata ($metadata.key in rules), as JSON or as @FILE.")
@click.option("--response", "is_response", is_flag=True, help="Read a whole response as JSON instead of a text.")
@click.option("--extractor", metavar="NAME", help="Take the submission out of the response with this extractor.")
@click.option("--extractor-config", metavar="JSON", help="The extractor's options, as JSON or as @FILE.")
@click.option("--pass-threshold", type=click.FloatRange(0, 1), help="The score from which it passes.")
@global_options
def grade(
    kind: str,
    config: str | None,
    expected: str | None,
    input_text: str,
    metadata: str | None,
    is_response: bool,
    extractor: str | None,
    extractor_config: str | None,
    pass_threshold: float | None,
) -> int:
    """Grade the text on standard input.

    \b
    echo "The answer is 42." | gradeline grade numeric --expected 42
    echo '{"a": 1}' | gradeline grade json_match --config '{"mode": "subset"}' --expected '{"a": 1}'

    Exits with 0 when it passes, 1 when it fails, 2 when the call is wrong, 4 when there is no score to give.
    """
    from gradeline import extractors, graders
    from gradeline.errors import GraderError
    from gradeline.model import GradeContext, Record, Sample, clean_text

    settings = current_settings()
    grader = graders.create(kind, _mapping(config, "--config"))
    extractor_options = _mapping(extractor_config, "--extractor-config")
    chosen = extractors.create(extractor or "last_assistant", extractor_options)
    response = _read_response(is_response)
    sample = Sample(
        id="stdin",
        input=clean_text(input_text).text,
        ground_truth=None if expected is None else clean_text(expected).text,
        metadata=_mapping(metadata, "--metadata") or {},
    )
    submission = ""
    try:
        submission = chosen.extract(response) if response.error is None else ""
        context = GradeContext(sample, submission, response)
        result = graders.run_grader(grader, context, pass_threshold=pass_threshold)
    except GraderError as error:
        result = graders.error_grade(grader, error)
    record = Record("grade", sample.case_key, 0, sample, response, {_KEY: submission}, {_KEY: result})
    _show(settings, record)
    return _EXIT_CODES[result.outcome]


def _show(settings: Settings, record: Record) -> None:
    result = record.grades[_KEY]
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
