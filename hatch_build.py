"""Builds the web interface into wheels and source archives, so that installing them does not require Node."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PAGE = Path("src/gradeline/web/index.html")


class WebInterfaceHook(BuildHookInterface[Any]):
    """Builds the web interface, except for editable installs, which use the output of `make ui`."""

    def dependencies(self) -> list[str]:
        """Node as a wheel, if there is none on the PATH."""
        ui_make = self._load_ui_make()
        return [] if ui_make is None or ui_make.find_node() is not None else [ui_make.NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's signature
        """Build the web interface; a source archive already contains it."""
        if version == "editable":
            return
        ui_make = self._load_ui_make()
        if ui_make is not None:
            ui_make.npm("run", "build")
        if not (Path(self.root) / _PAGE).is_file():
            raise SystemExit(f"{_PAGE} is missing: this is neither a checkout nor a source archive of gradeline")

    def _load_ui_make(self) -> ModuleType | None:
        path = Path(self.root) / "ui" / "make.py"
        spec = spec_from_file_location("gradeline_ui_make", path) if path.is_file() else None
        if spec is None or spec.loader is None:
            return None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
