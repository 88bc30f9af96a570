"""The questions of ``gradeline init`` in a terminal; each has a default, and Ctrl-C writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from gradeline.cli.starter.agents import A2A_URL, ARGUMENT, DEMO_URL, KINDS, TOOL, AgentChoice
from gradeline.cli.starter.options import agent_choice
from gradeline.cli.starter.pipelines import PIPELINES
from gradeline.errors import ConfigError

_EXAMPLE = "empty for an example"
_QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "python": {"function": f"Function, as file.py:name or module:name ({_EXAMPLE})"},
    "http": {
        "url": f"URL (empty for the demo agent, {DEMO_URL})",
        "request": 'Body of the request as JSON (empty for {"input": "{{input}}"})',
        "response": "JMESPath of the text in the response (empty to detect it)",
    },
    "openai": {"model": "Model (empty for gpt-6-luna)", "url": "Base URL of another server (empty for OpenAI)"},
    "anthropic": {"model": "Model (empty for claude-haiku-5-5)"},
    "command": {"command": f"Program and its arguments ({_EXAMPLE})"},
    "langgraph": {"function": f"Graph, as file.py:name or module:name ({_EXAMPLE})"},
    "mcp": {
        "server": f"URL of the server, or the command that starts it ({_EXAMPLE})",
        "tool": f"Tool (empty for {TOOL})",
        "argument": f"Argument that gets the input (empty for {ARGUMENT})",
    },
    "a2a": {"url": f"Base URL of the agent, without /.well-known (empty for {A2A_URL})"},
}
_WITH_ADDRESS = ("http", "mcp")
"""Kinds whose first question is the address; the others only matter if there is one."""


def ask_for_agent(folder: Path) -> AgentChoice:
    """The agent that the user describes."""
    click.echo("What is the agent?")
    width = max(map(len, KINDS))
    for kind, one in KINDS.items():
        click.echo(f"  {kind:{width}}  {one.title}")
    kind = click.prompt("Agent", type=click.Choice(list(KINDS)), default="python", show_choices=False)
    values: dict[str, str] = {}
    for name, question in _QUESTIONS.get(kind, {}).items():
        answer = click.prompt(question, default="", show_default=False, value_proc=_checked(kind, name, values, folder))
        if answer:
            values[_option(name, answer)] = answer
        elif kind in _WITH_ADDRESS and not values:
            break
    return agent_choice(kind, values, folder)


def ask_for_pipeline(default: str) -> str:
    """The forge whose pipeline is written, or "none"."""
    return str(click.prompt("CI pipeline", type=click.Choice([*PIPELINES, "none"]), default=default))


def _option(name: str, answer: str) -> str:
    if name != "server":
        return name
    return "url" if answer.startswith(("http://", "https://")) else "command"


def _checked(kind: str, name: str, values: Mapping[str, str], folder: Path) -> Callable[[str], str]:
    def check(text: str) -> str:
        answer = text.strip()
        if answer:
            try:
                agent_choice(kind, {**values, _option(name, answer): answer}, folder)
            except ConfigError as error:
                raise click.UsageError("; ".join(problem.message for problem in error.problems)) from None
        return answer

    return check
