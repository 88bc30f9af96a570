"""What a judge is asked: a rubric with its placeholders filled, and what comes from outside behind fences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, NamedTuple

import msgspec

from gradeline.errors import ConfigError, Problem, TooLargeError, UnknownNameError
from gradeline.judges.fencing import Fence

INPUT, SUBMISSION, GROUND_TRUTH = "input", "submission", "ground_truth"
RESERVED = (INPUT, SUBMISSION, GROUND_TRUTH)
"""What a rubric may always speak of; no variable may have such a name."""

MAX_FILLED = 20_000_000
"""The largest number of characters that placeholders may add: a rubric may name the answer a thousand times."""

_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}\n]{1,100})\}")
_WORD = re.compile(r"[^\W\d]\w*")
_DOUBLED = re.compile(rf"(?<!\{{)\{{\{{({'|'.join(RESERVED)})\}}\}}(?!\}})")


class Case(NamedTuple):
    """What a judge is told of one case. A variable's name is never one of `RESERVED`."""

    input: str
    submission: str
    ground_truth: str | None = None
    variables: Mapping[str, str] = {}


class Section(NamedTuple):
    """A part of a prompt that is data."""

    title: str
    label: str
    text: str


def placeholders(rubric: str) -> list[str]:
    """The words in single braces, each once; JSON and formulas are none."""
    names = (token["name"] for token in _tokens(rubric) if token["name"] is not None)
    return list(dict.fromkeys(name for name in names if _WORD.fullmatch(name)))


def doubled(rubric: str) -> list[str]:
    """The reserved names in double braces, which are literal text."""
    return list(dict.fromkeys(_DOUBLED.findall(rubric)))


def mentions_submission(rubric: str) -> bool:
    """Whether a rubric places the answer; ``{{submission}}`` is literal text and does not count."""
    return SUBMISSION in placeholders(rubric)


def with_submission(rubric: str) -> str:
    """The rubric, with ``{submission}`` appended where it places the input and not the answer.

    A rubric that places neither is left as it is: `judge_prompt` sends the whole case after it.
    """
    if mentions_submission(rubric) or not shows_case(rubric):
        return rubric
    return f"{rubric.rstrip()}\n\n# Submission\n\n{{{SUBMISSION}}}"


def shows_case(rubric: str) -> bool:
    """Whether a rubric itself places the input or the answer."""
    return not {INPUT, SUBMISSION}.isdisjoint(placeholders(rubric))


def fill(template: str, values: Mapping[str, str], blocks: Mapping[str, str] | None = None) -> str:
    """The template with its placeholders filled, in one pass: braces in a value stay what they are.

    ``{{`` and the ``}}`` that closes it are literal braces; a placeholder that is not known is literal text. Values
    in ``blocks`` stand on lines of their own. `TooLargeError` where all of it has more than `MAX_FILLED` characters.
    """
    blocks = blocks or {}
    pieces: list[str] = []
    at = opened = filled = 0
    for token in _tokens(template):
        if token.start() > at:
            pieces.append(template[at : token.start()])
        at = token.end()
        name = token["name"]
        if token[0] == "{{":
            opened += 1
            pieces.append("{")
        elif token[0] == "}}":
            # One that closes nothing is the end of nested JSON.
            pieces.append("}" if opened else "}}")
            opened = max(0, opened - 1)
        elif name in blocks:
            pieces.append(_on_own_lines(blocks[name], pieces[-1] if pieces else "", template[at : at + 1]))
        else:
            pieces.append(values.get(name, token[0]))
        filled += len(pieces[-1])
        if filled > MAX_FILLED:
            raise TooLargeError(f"the rubric has more than {MAX_FILLED:,} characters with its placeholders filled")
    return "".join([*pieces, template[at:]])


def judge_prompt(rubric: str, case: Case, instruction: str, fence: Fence) -> str:
    """The whole prompt. It always holds the answer: what the rubric does not place itself is appended in sections."""
    rubric = with_submission(rubric)
    values = {**case.variables, INPUT: case.input, GROUND_TRUTH: case.ground_truth or ""}
    if shows_case(rubric):
        asked = fill(rubric, values, {SUBMISSION: fence.wrap(SUBMISSION, case.submission)})
        return _ended(asked, fence, instruction)
    sections = [Section("Submission", SUBMISSION, case.submission)]
    if case.ground_truth:
        sections.insert(0, Section("Ground truth", "ground truth", case.ground_truth))
    if case.input:
        sections.insert(0, Section("Input", INPUT, case.input))
    return sections_prompt("Grade the submission by the rubric.", fill(rubric, values), sections, instruction, fence)


def sections_prompt(task: str, rubric: str, sections: list[Section], instruction: str, fence: Fence) -> str:
    """A prompt in sections: the task, the rubric, then the data, each text behind a fence."""
    parts = [task, f"# Rubric\n\n{rubric.strip()}"]
    parts += [f"# {section.title}\n\n{fence.wrap(section.label, section.text)}" for section in sections]
    return _ended("\n\n".join(parts), fence, instruction)


def _ended(asked: str, fence: Fence, instruction: str) -> str:
    return "\n\n".join(part for part in (asked.rstrip(), fence.notice, instruction) if part)


def _tokens(template: str) -> Iterator[re.Match[str]]:
    return _TOKEN.finditer(template)


def _on_own_lines(block: str, before: str, after: str) -> str:
    head = "" if not before or before.endswith("\n") else "\n"
    return f"{head}{block}" + ("" if after in ("", "\n") else "\n")


_HOME = "rubrics"


class ShippedItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of a rubric's checklist."""

    question: str
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class ShippedRubric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rubric: what its front matter says, and its text."""

    name: str
    version: int
    title: str
    needs: tuple[str, ...]
    """The placeholders that every case must have a text for."""
    pass_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)]
    checklist: tuple[ShippedItem, ...] = ()
    """Where there is one, its weighted share of yes is the score; else the judge gives a score by the text's scale."""
    text: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"


def shipped_rubrics() -> list[ShippedRubric]:
    """All of them, by name, the newest version first."""
    return [by_version[version] for by_version in _shipped().values() for version in sorted(by_version, reverse=True)]


def shipped_rubric(wanted: str) -> ShippedRubric:
    """The rubric of that name (``factuality``, its newest version) or id (``factuality@1``)."""
    name, _, version = wanted.partition("@")
    known = _shipped()
    if name not in known:
        raise UnknownNameError("shipped rubric", name, known, "rubric")
    versions = known[name]
    if not version:
        return versions[max(versions)]
    if not version.isdecimal() or int(version) not in versions:
        there = ", ".join(f"{name}@{number}" for number in sorted(versions))
        raise ConfigError(Problem("rubric", f"no rubric {wanted!r}; there is {there}"))
    return versions[int(version)]


@cache
def _shipped() -> dict[str, dict[int, ShippedRubric]]:
    found: dict[str, dict[int, ShippedRubric]] = {}
    for entry in sorted(files(__package__).joinpath(_HOME).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".md"):
            rubric = _read_rubric(entry.read_text(encoding="utf-8"))
            found.setdefault(rubric.name, {})[rubric.version] = rubric
    return found


def _read_rubric(source: str) -> ShippedRubric:
    import yaml  # 20 ms that only a shipped rubric needs

    _, front, text = source.split("---\n", 2)
    return msgspec.convert({**yaml.safe_load(front), "text": text.strip()}, ShippedRubric)
