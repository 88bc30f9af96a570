"""Exported files of another tool, and what their import has written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.cli.commands import run_command


class Imported(NamedTuple):
    """What ``gradeline import`` reported and wrote."""

    code: int
    report: Mapping[str, Any]
    folder: Path

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The objects of a file with lines of JSON."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def notes(self, state: str) -> dict[str, str]:
        """The notes of the items in a state, by item."""
        return {item["what"]: item["note"] for item in self.report["items"] if item["state"] == state}

    def counts(self, state: str) -> dict[str, int]:
        """The numbers of the items in a state, by item."""
        return {item["what"]: item["count"] for item in self.report["items"] if item["state"] == state}


class ExportProject:
    """A folder in which exports are imported by the command."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, name: str, data: object) -> Path:
        """Write a file: text as it is, a list as lines if the name ends in ``l``, else a JSON document."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, str):
            text = data
        elif isinstance(data, list) and name.removesuffix(".gz").endswith("l"):
            text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in data)
        else:
            text = json.dumps(data, indent=2)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    def run(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """The exit code of a command, and what it printed as JSON."""
        code = run_command([*arguments, "--json"])
        return code, json.loads(self._capsys.readouterr().out)

    def imports(self, source: str, *options: str) -> Imported:
        """Import a file or folder with the kind that is detected, unless the options name it."""
        code, report = self.run("import", source, "--output", "imported", *options)
        return Imported(code, report, self.folder / "imported")

    def refused(self, source: str, *options: str) -> str:
        """The message of an import that is refused and has left nothing."""
        assert run_command(["import", source, "--output", "imported", *options]) == 2
        assert not (self.folder / "imported").exists()
        return self._capsys.readouterr().err

    def records(self, run: str) -> dict[str, dict[str, Any]]:
        """The records of a run with their labels, by case and repeat."""
        assert run_command(["show", run, "--records"]) == 0
        found = (json.loads(line) for line in self._capsys.readouterr().out.splitlines())
        return {f"{record['case']}#{record['repeat']}": record for record in found}
