"""The options of ``gradeline init`` that describe an agent, checked and turned into an `AgentChoice`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from keyword import iskeyword
from pathlib import Path
from urllib.parse import urlsplit

from gradeline.cli.starter.agents import KINDS, AgentChoice
from gradeline.errors import ConfigError, Problem

_CARD = "/.well-known/agent-card.json"


def agent_choice(kind: str | None, values: Mapping[str, str], folder: Path) -> AgentChoice:
    """The agent that these options describe, for a suite in ``folder``; `ConfigError` lists all faults.

    Without a kind, it is the first kind that takes all the options.
    """
    kind = kind or _implied_kind(values)
    problems = [
        Problem(f"--{name}", f"is not an option of --target {kind}, only of {_kinds_with(name)}")
        for name in values
        if name not in KINDS[kind].options
    ]
    if {"url", "command"} <= values.keys() and {"url", "command"} <= set(KINDS[kind].options):
        problems.append(Problem("--command", "conflicts with --url; keep one of them"))
    if kind == "mcp" and not {"url", "command"} & values.keys():
        example = "is for your own server; add --url or --command"
        problems.extend(Problem(f"--{name}", example) for name in ("tool", "argument") if name in values)
    choice = AgentChoice(kind)
    for name, text in values.items():
        try:
            choice = _APPLY[name](choice, _printable(text), folder)
        except ValueError as error:
            problems.append(Problem(f"--{name}", str(error)))
    if kind == "langgraph" and "function" in values and "--function" not in {problem.path for problem in problems}:
        problems.extend(_import_problems(values["function"]))
    if problems:
        raise ConfigError(problems)
    return choice


def _implied_kind(values: Mapping[str, str]) -> str:
    for kind, one in KINDS.items():
        if values.keys() <= set(one.options):
            return kind
    names = " and ".join(f"--{name}" for name in values)
    raise ConfigError(Problem(names, "no kind of agent takes all these options; choose the kind with --target"))


def _kinds_with(option: str) -> str:
    return ", ".join(kind for kind, one in KINDS.items() if option in one.options)


def _printable(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; leave the option out for its default")
    if not text.isprintable():
        raise ValueError(f"{text!r} contains a control character; remove it")
    return text


def _model(choice: AgentChoice, text: str, _: Path) -> AgentChoice:
    return choice._replace(model=text)


def _tool(choice: AgentChoice, text: str, _: Path) -> AgentChoice:
    return choice._replace(tool=text)


def _argument(choice: AgentChoice, text: str, _: Path) -> AgentChoice:
    return choice._replace(argument=text)


def _url(choice: AgentChoice, text: str, _: Path) -> AgentChoice:
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.password is not None:
        raise ValueError(
            "contains a password, which would be stored in the suite; write ${NAME} instead, and put NAME into .env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not a URL; write it as http://127.0.0.1:8000/path")
    if choice.kind == "a2a":
        text = text.removesuffix(_CARD)
    return choice._replace(url=text)


def _function(choice: AgentChoice, text: str, folder: Path) -> AgentChoice:
    source, separator, name = text.rpartition(":")
    if not (separator and source and name.isidentifier()):
        raise ValueError(f"{text!r} is not a function; write file.py:name or module:name")
    if not source.endswith(".py"):
        return choice._replace(function=text)
    if Path(source).is_file():
        return choice._replace(function=f"{_from(folder, source)}:{name}")
    if (folder / source).is_file():
        return choice._replace(function=text)
    raise ValueError(f"no file {source!r} in {Path.cwd()} or {folder}; write its path, or module:name")


def _import_problems(function: str) -> list[Problem]:
    """Problems of a graph that target.py must import by name."""
    source, _, name = function.rpartition(":")
    module = Path(source).stem if source.endswith(".py") else source
    wrong = [word for word in (*module.split("."), name) if not word.isidentifier() or iskeyword(word)]
    return [Problem("--function", f"{word!r} cannot be imported by name; rename it") for word in wrong]


def _command(choice: AgentChoice, text: str, folder: Path) -> AgentChoice:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} cannot be split into a program and its arguments: {error}") from None
    return choice._replace(command=tuple(words), folder=_from(folder, "."))


def _request(choice: AgentChoice, text: str, _: Path) -> AgentChoice:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f'{text!r} is not JSON; write it as {{"question": "{{{{input}}}}"}}') from None
    if "{{input}}" not in text:
        raise ValueError("contains no {{input}}, so every case would send the same request; add it")
    return choice._replace(request=data)


def _response(choice: AgentChoice, text: str, _: Path) -> AgentChoice:
    from gradeline.parsing.jmespath import JmesPath

    JmesPath(text)  # raises a ValueError
    return choice._replace(response=text)


def _from(folder: Path, path: str) -> str:
    """A path relative to the suite's folder."""
    return Path(os.path.relpath(os.path.realpath(path), os.path.realpath(folder))).as_posix()


_APPLY: dict[str, Callable[[AgentChoice, str, Path], AgentChoice]] = {
    "url": _url,
    "model": _model,
    "function": _function,
    "command": _command,
    "tool": _tool,
    "argument": _argument,
    "request": _request,
    "response": _response,
}
"""How each option changes the choice, for a suite in a folder; a `ValueError` has the message."""
