"""mkdocs hooks: pages outside docs/ are part of the site, and the site loads nothing from other hosts.

A page may link to ``../SECURITY.md`` or ``../examples/…``: the link works in the repository, and on the site it leads
to a copy under ``project/``. A link to a missing file is left unchanged, and mkdocs refuses it. Attributes of code
blocks that only the tests read (``data-run="no: …"``) are removed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.gradeline")

OUTSIDE = "project"
NAVIGATED = ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")

_FENCED = re.compile(r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?=[)#])")
_FOR_TESTS = re.compile(r"(?<=\S) data-run=\"[^\"]*\"(?=[^\n]*\n)")
_CODE = re.compile(r"<code\b.*?</code>", re.DOTALL)
_FOREIGN = re.compile(r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"[^>]*>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add linked files outside docs/, and what they link to in turn."""
    todo = [f"{OUTSIDE}/{name}" for name in NAVIGATED]
    todo += [linked for file in files.documentation_pages() for linked in _linked(file.src_uri, config)]
    while todo:
        uri = todo.pop()
        place = _place(uri, config)
        if files.get_file_from_path(uri) is None and uri.startswith(OUTSIDE) and place.is_file():
            navigated = uri.removeprefix(f"{OUTSIDE}/") in NAVIGATED
            level = InclusionLevel.INCLUDED if navigated else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, uri, abs_src_path=str(place), inclusion=level))
            if uri.endswith(".md"):
                todo += _linked(uri, config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between docs/ and the rest of the repository for the site."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        uri = _uri((_place(here, config).parent / match["path"]).resolve(), config)
        return match["path"] if uri is None or files.get_file_from_path(uri) is None else relpath(uri, dirname(here))

    return "".join(_FOR_TESTS.sub("", part) if fenced else _LINK.sub(moved, part) for part, fenced in _parts(markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - part of the hook's signature
    """Refuse a page that loads something from another host, or that has a code block with an unknown header."""
    for found in _FOREIGN.findall(output):
        log.warning("%s loads something from another host: %s", page.file.src_uri, found)
    if "```" in _CODE.sub("", output):
        log.warning("%s has a code block with an unknown header", page.file.src_uri)
    return output


def _place(uri: str, config: MkDocsConfig) -> Path:
    """The file of a page of the site."""
    if uri.startswith(f"{OUTSIDE}/"):
        return _root(config) / uri.removeprefix(f"{OUTSIDE}/")
    return Path(config.docs_dir) / uri


def _uri(path: Path, config: MkDocsConfig) -> str | None:
    """The site's URI of a file; None for one outside the project."""
    docs, root = Path(config.docs_dir), _root(config)
    if path.is_relative_to(docs):
        return path.relative_to(docs).as_posix()
    return f"{OUTSIDE}/{path.relative_to(root).as_posix()}" if path.is_relative_to(root) else None


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def _linked(uri: str, config: MkDocsConfig) -> Iterator[str]:
    place = _place(uri, config)
    if not place.is_file():
        return
    for part, fenced in _parts(place.read_text(encoding="utf-8")):
        for match in () if fenced else _LINK.finditer(part):
            linked = _uri((place.parent / match["path"]).resolve(), config)
            if linked is not None:
                yield linked


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, each with a flag for code blocks."""
    at = 0
    for block in _FENCED.finditer(markdown):
        yield markdown[at : block.start()], False
        yield block[0], True
        at = block.end()
    yield markdown[at:], False
