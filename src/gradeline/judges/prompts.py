"""Prompts of judges: a rubric with its placeholders filled, and untrusted text behind fences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, NamedTuple

import msgspec

from gradeline.errors import ConfigError, Problem, TooLargeError, UnknownNameError
from gradeline.judges.fencing import Fence

INPUT, SUBMISSION, GROUND_TRUTH = "input", "submission", "ground_truth"
RESERVED = (INPUT, SUBMISSION, GROUND_TRUTH)
"""Placeholders that every rubric may use; variables must not have these names."""

CONTEXT = "context"
"""Placeholder of the documents that the agent retrieved, unless a variable has this name."""
PLACEHOLDERS = (*RESERVED, CONTEXT)

MAX_FILLED = 20_000_000
"""Maximum length of a filled rubric: it may repeat the answer a thousand times."""

_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}\n]{1,100})\}")
_WORD = re.compile(r"[^\W\d]\w*")
_DOUBLED = re.compile(rf"(?<!\{{)\{{\{{({'|'.join(RESERVED)})\}}\}}(?!\}})")


class PromptCase(NamedTuple):
    """The texts of one case for a prompt. Names of variables are never in `RESERVED`."""

    input: str
    submission: str
    ground_truth: str | None = None
    variables: Mapping[str, str] = {}
    documents: Sequence[str] | None = None
    """The texts for ``{context}``; None if they are unknown."""


class Section(NamedTuple):
    """A section of a prompt that contains data."""

    title: str
    label: str
    text: str


def placeholders(rubric: str) -> list[str]:
    """The words in single braces, each once; JSON and formulas do not count."""
    names = (token["name"] for token in _tokens(rubric) if token["name"] is not None)
    return list(dict.fromkeys(name for name in names if _WORD.fullmatch(name)))


def doubled(rubric: str) -> list[str]:
    """The reserved names in double braces, which are literal text."""
    return list(dict.fromkeys(_DOUBLED.findall(rubric)))


def mentions_submission(rubric: str) -> bool:
    """Whether a rubric contains the placeholder of the answer; ``{{submission}}`` is literal text."""
    return SUBMISSION in placeholders(rubric)


def with_submission(rubric: str) -> str:
    """The rubric, with ``{submission}`` appended if it contains the input's placeholder and not the answer's.

    A rubric with neither is returned unchanged: `judge_prompt` appends the whole case to it.
    """
    if mentions_submission(rubric) or not shows_case(rubric):
        return rubric
    return f"{rubric.rstrip()}\n\n# Submission\n\n{{{SUBMISSION}}}"


def shows_case(rubric: str) -> bool:
    """Whether a rubric contains the placeholder of the input or the answer."""
    return not {INPUT, SUBMISSION}.isdisjoint(placeholders(rubric))


def fill(template: str, values: Mapping[str, str], blocks: Mapping[str, str] | None = None) -> str:
    """The template with its placeholders filled, in one pass: braces in a value are literal.

    ``{{`` and the ``}}`` that closes it are literal braces; an unknown placeholder is literal text. Values in
    ``blocks`` get lines of their own. `TooLargeError` if the result is longer than `MAX_FILLED` characters.
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
            # without an opening ``{{`` it is the end of nested JSON
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


def judge_prompt(
    rubric: str, case: PromptCase, instruction: str, fence: Fence, *, shows_submission: bool = True
) -> str:
    """The whole prompt. Texts of the case that the rubric has no placeholder for are appended in sections.

    Without ``shows_submission`` the rubric is complete, and nothing is appended.
    """
    values = {**case.variables, INPUT: case.input, GROUND_TRUTH: case.ground_truth or ""}
    blocks = {SUBMISSION: fence.wrap(SUBMISSION, case.submission)}
    if CONTEXT not in case.variables and case.documents is not None:
        blocks[CONTEXT] = _fenced_documents(case.documents, fence)
    if shows_submission:
        rubric = with_submission(rubric)
    if shows_case(rubric) or not shows_submission:
        return _with_instruction(fill(rubric, values, blocks), fence, instruction)
    sections = [Section("Submission", SUBMISSION, case.submission)]
    if case.ground_truth:
        sections.insert(0, Section("Ground truth", "ground truth", case.ground_truth))
    if case.input:
        sections.insert(0, Section("Input", INPUT, case.input))
    blocks.pop(SUBMISSION)
    text = fill(rubric, values, blocks)
    return sections_prompt("Grade the submission by the rubric.", text, sections, instruction, fence)


def _fenced_documents(documents: Sequence[str], fence: Fence) -> str:
    if not documents:
        return "(The agent retrieved no documents.)"
    if sum(map(len, documents)) > MAX_FILLED:
        raise TooLargeError(f"the documents have more than {MAX_FILLED:,} characters")
    return "\n\n".join(fence.wrap(f"document {number}", text) for number, text in enumerate(documents, 1))


def sections_prompt(task: str, rubric: str, sections: list[Section], instruction: str, fence: Fence) -> str:
    """A prompt in sections: the task, the rubric, then the data, each text in a fence."""
    parts = [task, f"# Rubric\n\n{rubric.strip()}"]
    parts += [f"# {section.title}\n\n{fence.wrap(section.label, section.text)}" for section in sections]
    return _with_instruction("\n\n".join(parts), fence, instruction)


def _with_instruction(text: str, fence: Fence, instruction: str) -> str:
    return "\n\n".join(part for part in (text.rstrip(), fence.notice, instruction) if part)


def _tokens(template: str) -> Iterator[re.Match[str]]:
    return _TOKEN.finditer(template)


def _on_own_lines(block: str, before: str, after: str) -> str:
    head = "" if not before or before.endswith("\n") else "\n"
    return f"{head}{block}" + ("" if after in ("", "\n") else "\n")


_FOLDER = "rubrics"


class ShippedItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of a rubric's checklist."""

    question: str
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class ShippedStatements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a rubric judges statement by statement."""

    of: str
    cites: Literal["documents", "submission"]
    good: str
    others: tuple[str, ...]


class ShippedRubric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rubric of this package: its front matter and its text."""

    name: str
    version: int
    title: str
    needs: tuple[str, ...]
    """The placeholders that every case must fill."""
    pass_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)]
    checklist: tuple[ShippedItem, ...] = ()
    """With a checklist the score is its weighted share of yes; without one the judge scores by the text's scale."""
    statements: ShippedStatements | None = None
    """With it the score is the share of statements with the good verdict."""
    shows_submission: bool = True
    """Whether the judge sees the submission."""
    text: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"


def shipped_rubrics() -> list[ShippedRubric]:
    """All shipped rubrics by name, the newest version first."""
    return [by_version[version] for by_version in _shipped().values() for version in sorted(by_version, reverse=True)]


def shipped_rubric(name_or_id: str) -> ShippedRubric:
    """The rubric of that name (``factuality``, its newest version) or id (``factuality@1``)."""
    name, _, version = name_or_id.partition("@")
    known = _shipped()
    if name not in known:
        raise UnknownNameError("shipped rubric", name, known, "rubric")
    versions = known[name]
    if not version:
        return versions[max(versions)]
    if not version.isdecimal() or int(version) not in versions:
        available = ", ".join(f"{name}@{number}" for number in sorted(versions))
        raise ConfigError(Problem("rubric", f"no rubric {name_or_id!r}; available: {available}"))
    return versions[int(version)]


@cache
def _shipped() -> dict[str, dict[int, ShippedRubric]]:
    found: dict[str, dict[int, ShippedRubric]] = {}
    for entry in sorted(files(__package__).joinpath(_FOLDER).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".md"):
            rubric = _read_rubric(entry.read_text(encoding="utf-8"))
            found.setdefault(rubric.name, {})[rubric.version] = rubric
    return found


def _read_rubric(source: str) -> ShippedRubric:
    import yaml  # 20 ms, only for shipped rubrics

    _, front, text = source.split("---\n", 2)
    return msgspec.convert({**yaml.safe_load(front), "text": text.strip()}, ShippedRubric)
