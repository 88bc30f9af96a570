"""The files that a browser gets: the web interface where it is built in, else a plain page, and the API's reader."""

from __future__ import annotations

from collections.abc import Mapping
from mimetypes import guess_type
from pathlib import Path

from starlette.responses import FileResponse, Response

from gradeline.service.failures import ApiError, Code
from gradeline.service.headers import PAGE_POLICY

_PACKAGE = Path(__file__).resolve().parent
_STATIC = _PACKAGE / "static"
_WEB = _PACKAGE.parent / "web"
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}
_FOR_EVER = "public, max-age=31536000, immutable"


class Pages:
    """Files by name. Only what was there at the start is served, so no path leads anywhere else."""

    def __init__(self, web: Path = _WEB, static: Path = _STATIC) -> None:
        self.has_web = (web / "index.html").is_file()
        self._index = web / "index.html" if self.has_web else static / "start.html"
        self._assets = _files(web / "assets" if self.has_web else static / "assets")
        self._static = _files(static)

    def index(self) -> Response:
        """The web interface, or how to get it."""
        return _page(self._index, "no-cache")

    def asset(self, name: str) -> Response:
        """A file of the web interface; its name has a digest in it, so it never changes."""
        return _page(_known(self._assets, name), _FOR_EVER if self.has_web else "no-cache")

    def docs(self, name: str = "docs.html") -> Response:
        """The reader of the API's description."""
        return _page(_known(self._static, name), "no-cache")


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def _known(files: Mapping[str, Path], name: str) -> Path:
    if name not in files:
        raise ApiError(Code.NOT_FOUND, "There is no such file")
    return files[name]


def _page(path: Path, caching: str) -> Response:
    kind = _TYPES.get(path.suffix) or guess_type(path.name)[0] or "application/octet-stream"
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": caching}
    return FileResponse(path, headers=headers, media_type=kind)
