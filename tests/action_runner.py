"""Runs the steps of ``action.yml`` as a job of GitHub Actions does: conditions, inputs, shell, outputs, caches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gradeline_command import command_folder

ACTION: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "action.yml").read_text(encoding="utf-8"))
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_TERM = re.compile(r"'(?:[^']|'')*'|&&|\|\||!=|==|!|[(),]|[A-Za-z_][\w.-]*|\s+")
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not ", "==": "==", "!=": "!=", "(": "(", ")": ")", ",": ","}
_STATUS = ("always", "cancelled", "success", "failure")
_FUNCTIONS = (*_STATUS, "format", "contains", "fromJSON")
_LIMIT_S = 60


class ActionResult(NamedTuple):
    """The end of a job that uses the action."""

    failed: bool
    outputs: dict[str, str]
    ran: list[str]
    """The names of the steps that ran."""
    printed: str


@dataclass
class ActionRunner:
    """The machine of a job: its folder, and the caches and artifacts of the repository."""

    folder: Path
    variables: Mapping[str, str]
    token: str
    caches: dict[str, Path] = field(default_factory=dict)
    artifacts: dict[str, list[str]] = field(default_factory=dict)

    def run(self, **inputs: str) -> ActionResult:
        """Run the action with these inputs."""
        unknown = inputs.keys() - ACTION["inputs"].keys()
        assert not unknown, f"the action has no input {unknown}"
        self._failed, self._outputs, ran, printed = False, dict[str, dict[str, str]](), [], ""
        self._inputs: dict[str, Any] = {}
        for name, declared in ACTION["inputs"].items():
            assert name in inputs or not declared.get("required"), f"the input {name} is missing"
            self._inputs[name] = inputs[name] if name in inputs else self._text(declared.get("default", ""))
        for step in ACTION["runs"]["steps"]:
            if not self._applies(step.get("if", "success()")):
                continue
            ran.append(step["name"])
            if "uses" in step:
                self._use(step["uses"], {key: self._text(value) for key, value in step["with"].items()})
            else:
                printed += self._shell(step)
        values = {name: self._text(declared["value"]) for name, declared in ACTION["outputs"].items()}
        return ActionResult(self._failed, values, ran, printed)

    def _shell(self, step: Mapping[str, Any]) -> str:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "a value in a script could become a command"
        output = self.folder / "step-output.out"
        output.unlink(missing_ok=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "GRADELINE_"))}
        environment |= self.variables
        environment |= {key: self._text(value) for key, value in step.get("env", {}).items()}
        environment |= {"GITHUB_OUTPUT": str(output), "PATH": f"{command_folder()}:{environment['PATH']}"}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder / self._text(step.get("working-directory", ".")),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        assert self.token not in done.stdout
        self._failed = self._failed or done.returncode != 0
        if "id" in step:
            lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
            self._outputs[step["id"]] = dict(line.split("=", 1) for line in lines)
        return done.stdout

    def _use(self, action: str, values: Mapping[str, str]) -> None:
        paths = [self.folder / line for line in values["path"].splitlines()]
        match action.partition("@")[0]:
            case "actions/cache/restore":
                # the newest cache first, as GitHub searches them
                keys = [key for key in [*self.caches][::-1] if key.startswith(values["restore-keys"])]
                found = values["key"] if values["key"] in self.caches else next(iter(keys), None)
                if found is not None:
                    shutil.copytree(self.caches[found], paths[0], dirs_exist_ok=True)
            case "actions/cache/save":
                kept = self.folder.parent / f"cache-{len(self.caches)}"
                shutil.copytree(paths[0], kept)
                self.caches.setdefault(values["key"], kept)
            case "actions/upload-artifact":
                hidden = values.get("include-hidden-files") == "true"
                files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
                names = sorted(file.relative_to(self.folder).as_posix() for file in files if file.is_file())
                assert values["name"] not in self.artifacts, "two artifacts of one job have the same name"
                shown = [name for name in names if hidden or (not name.startswith(".") and "/." not in name)]
                self.artifacts[values["name"]] = shown
            case _:
                raise AssertionError(f"unknown action {action}")

    def _applies(self, condition: str) -> bool:
        text = condition.strip().removeprefix("${{").removesuffix("}}")
        if not any(f"{name}(" in text for name in _STATUS):
            text = f"success() && ({text})"
        return bool(self._evaluate(text))

    def _text(self, template: object) -> str:
        if isinstance(template, bool):
            return str(template).lower()
        return _EXPRESSION.sub(lambda found: str(self._evaluate(found[1]) or ""), str(template))

    def _evaluate(self, text: str) -> Any:
        """The value of an expression; only what the action uses of GitHub's language."""
        terms, at = [], 0
        while at < len(text):
            found = _TERM.match(text, at)
            assert found is not None, f"unknown expression {text[at:]!r} in {text!r}"
            terms.append(found[0])
            at = found.end()
        python = "".join(self._python(term) for term in terms)
        return eval(python, {"__builtins__": {}}, {"value": self._value, **self._functions()})

    def _python(self, term: str) -> str:
        if term.isspace():
            return " "
        if term.startswith("'"):
            return repr(term[1:-1].replace("''", "'"))
        return _OPERATORS.get(term) or (term if term in _FUNCTIONS else f"value({term!r})")

    def _functions(self) -> dict[str, Any]:
        return {
            "always": lambda: True,
            "cancelled": lambda: False,
            "success": lambda: not self._failed,
            "failure": lambda: self._failed,
            "format": lambda text, *values: text.format(*values),
            "contains": lambda values, value: value in values,
            "fromJSON": json.loads,
        }

    def _value(self, path: str) -> Any:
        """A value of a context; one that does not exist is empty."""
        first, *rest = path.split(".")
        found: Any = {"inputs": self._inputs, "github": self._github(), "steps": self._steps()}[first]
        for key in rest:
            found = found.get(key) if isinstance(found, dict) else None
        return "" if found is None else found

    def _github(self) -> dict[str, Any]:
        event = json.loads(Path(self.variables["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
        names = ("GITHUB_SHA", "GITHUB_REF", "GITHUB_REF_NAME", "GITHUB_EVENT_NAME", "GITHUB_REPOSITORY")
        known = {name.removeprefix("GITHUB_").lower(): self.variables[name] for name in names}
        return {**known, "event": event, "token": self.token}

    def _steps(self) -> dict[str, Any]:
        return {step: {"outputs": outputs} for step, outputs in self._outputs.items()}
