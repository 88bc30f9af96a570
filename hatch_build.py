"""Builds the web interface into wheels and source archives; who installs either needs no Node."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PAGE = Path("src/gradeline/web/index.html")


class WebInterfaceHook(BuildHookInterface[Any]):
    """An editable install has no page of its own: `make ui` builds it where the service looks for it."""

    def dependencies(self) -> list[str]:
        """Node as a wheel, where there is none on the PATH."""
        maker = self._maker()
        return [] if maker is None or maker.tools() is not None else [maker.NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's signature
        """Build it, unless it is there already: a source archive carries it."""
        if version == "editable":
            return
        maker = self._maker()
        if maker is not None:
            maker.npm("run", "build")
        if not (Path(self.root) / _PAGE).is_file():
            raise SystemExit(f"{_PAGE} is missing: this is neither a checkout nor a source archive of gradeline")

    def _maker(self) -> ModuleType | None:
        path = Path(self.root) / "ui" / "make.py"
        spec = spec_from_file_location("gradeline_ui_make", path) if path.is_file() else None
        if spec is None or spec.loader is None:
            return None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
