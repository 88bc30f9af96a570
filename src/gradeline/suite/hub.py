"""Datasets of the Hugging Face Hub: the Parquet files of its branch ``refs/convert/parquet``, downloaded once.

A revision is a commit of that branch. The listing of a commit has the digest of each file, so a file in the cache is
the requested file, whichever process wrote it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha1, sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote as percent
from urllib.parse import unquote

import msgspec

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model import quote
from gradeline.model.resources import Resources

if TYPE_CHECKING:
    from gradeline.transport import HttpResponse, Transport

_SCHEME = "hf://"
_FORM = "hf://datasets/OWNER/NAME/CONFIG/SPLIT, or …/NAME@REVISION/… to pin it"
_BRANCH = "refs/convert/parquet"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE = re.compile(r"[A-Za-z0-9._-]+\.parquet")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')
_ENDPOINT = "https://huggingface.co"
_PIECE = 8 * 1024 * 1024
"""Bytes of one request: less than the transport's maximum, and a download that was interrupted continues there."""
_PIECE_DEADLINE_S = 300.0
_MAX_PAGES = 1_000
_QUIET_S = 1.0
_INTERVAL_S = 2.0
_NO_PARTIAL = "partial-"


class HubDataset(NamedTuple):
    """A split of a dataset on the Hub."""

    name: str
    """``OWNER/NAME``."""
    config: str
    split: str
    revision: str | None = None
    """A commit or branch of the Hub; None: the newest."""

    @classmethod
    def parse(cls, written: str) -> HubDataset:
        """Read the address of a split; `ValueError` has the expected form."""
        kind, *parts = written.removeprefix(_SCHEME).split("/")
        if kind != "datasets" or len(parts) != 4 or not all(parts):
            raise ValueError(f"expected {_FORM}, got {quote(written)}")
        owner, name, config, split = map(unquote, parts)
        name, at, revision = name.partition("@")
        if not name or (at and not revision):
            raise ValueError(f"expected {_FORM}, got {quote(written)}")
        return cls(f"{owner}/{name}", config, split, revision or None)

    @property
    def unpinned(self) -> str:
        """As written without a revision."""
        return f"{_SCHEME}datasets/{self.name}/{self.config}/{self.split}"

    def __str__(self) -> str:
        at = "" if self.revision is None else f"@{percent(self.revision, safe='')}"
        return f"{_SCHEME}datasets/{self.name}{at}/{self.config}/{self.split}"


class HubFiles(NamedTuple):
    """The files of a dataset in the cache, and the commit they are from."""

    commit: str
    files: tuple[Path, ...]


class HubError(ConfigError):
    """A dataset that cannot be read from the Hub."""


class _Listed(msgspec.Struct, frozen=True):
    """A file of a commit, as the Hub lists it."""

    path: str
    size: int
    oid: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class _Listing(msgspec.Struct, frozen=True):
    commit: str
    files: tuple[_Listed, ...]


def is_hub(written: str) -> bool:
    return written.startswith(_SCHEME)


async def download(
    dataset: HubDataset,
    resources: Resources,
    environment: Mapping[str, str],
    note: Callable[[str], None] = lambda _: None,
) -> HubFiles:
    """Download what is not in the cache yet; `HubError` if that fails.

    ``environment`` may have ``HF_TOKEN``, ``HF_ENDPOINT`` and ``GRADELINE_CACHE``. ``note`` reports the progress of a
    download that takes more than a second.
    """
    cache = _cache(environment)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if dataset.revision is not None and _COMMIT.fullmatch(dataset.revision):
            known = _known_files(cache, dataset)
            if known is not None:
                return known
        async with resources.transport() as transport:
            hub = _Hub(transport, dataset, environment)
            listing = await hub.listing()
            progress = _Progress(dataset, listing, note)
            files = tuple([await hub.file(listing, one, cache, progress) for one in listing.files])
        _remember(cache, dataset, listing)
        return HubFiles(listing.commit, files)
    except OSError as error:
        reason = f"the cache {cache} cannot be used: {error.strerror}; set GRADELINE_CACHE to a writable folder"
        raise HubError(Problem(str(dataset), reason)) from None


def _cache(environment: Mapping[str, str]) -> Path:
    own = environment.get("GRADELINE_CACHE")
    if own:
        return Path(own).expanduser() / "datasets"
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gradeline" / "datasets"


def _place(cache: Path, file: _Listed) -> Path:
    """The file's place, by its digest; its name is that of the Hub, for messages."""
    return cache / (file.sha256 or file.oid)[:32] / file.name


def _index(cache: Path, dataset: HubDataset) -> Path:
    return cache / f"{sha256(str(dataset).encode()).hexdigest()[:32]}.json"


def _known_files(cache: Path, dataset: HubDataset) -> HubFiles | None:
    """The files of a commit if all are in the cache; then no request is needed."""
    try:
        listing = msgspec.json.decode(_index(cache, dataset).read_bytes(), type=_Listing)
    except (OSError, msgspec.MsgspecError):
        return None
    files = tuple(_place(cache, one) for one in listing.files)
    if not files or not all(map(_is_cached, files, listing.files)):
        return None
    return HubFiles(listing.commit, files)


def _is_cached(place: Path, file: _Listed) -> bool:
    return place.is_file() and place.stat().st_size == file.size


def _remember(cache: Path, dataset: HubDataset, listing: _Listing) -> None:
    index = _index(cache, dataset._replace(revision=listing.commit))
    partial = index.with_name(f".{index.name}.{os.getpid()}")
    partial.write_bytes(msgspec.json.encode(listing))
    partial.replace(index)


class _Progress:
    """Reports a slow download, at most every two seconds."""

    def __init__(self, dataset: HubDataset, listing: _Listing, note: Callable[[str], None]) -> None:
        self._dataset = dataset
        self._shards = len(listing.files)
        self._note = note
        self._due = monotonic() + _QUIET_S

    def __call__(self, file: _Listed, done: int) -> None:
        if monotonic() >= self._due:
            self._due = monotonic() + _INTERVAL_S
            of = f" (one of {self._shards} files)" if self._shards > 1 else ""
            size = f"{done / 2**20:,.0f} of {file.size / 2**20:,.0f} MiB"
            self._note(f"downloading {self._dataset}: {file.name}{of}, {size}")


class _Hub:
    """The calls for one dataset."""

    def __init__(self, transport: Transport, dataset: HubDataset, environment: Mapping[str, str]) -> None:
        self._transport = transport
        self._dataset = dataset
        self._base = (environment.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
        token = environment.get("HF_TOKEN")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._has_token = bool(token)

    async def listing(self) -> _Listing:
        """The files of the split, in order, at the commit that the revision means now."""
        revision = self._dataset.revision or _BRANCH
        commit = revision
        if not _COMMIT.fullmatch(revision):
            found = _json(await self._get(f"{self._api}/revision/{percent(revision, safe='')}", self._no_revision))
            commit = str(found.get("sha")) if isinstance(found, dict) else ""
            if not _COMMIT.fullmatch(commit):
                raise self._error(f"the Hub returned no commit for the revision {quote(revision)}")
        folder = f"{self._dataset.config}/{self._dataset.split}"
        entries = await self._tree(commit, folder)
        if entries is None:
            raise self._error(await self._what_exists(commit))
        files = sorted((_listed(entry) for entry in entries if entry.get("type") == "file"), key=lambda one: one.path)
        if not files:
            raise self._error(f"the commit {commit[:12]} has no Parquet file in {folder}")
        return _Listing(commit, tuple(files))

    async def _what_exists(self, commit: str) -> str:
        """Why a split is not found, with the configs or splits that exist."""
        config, split = self._dataset.config, self._dataset.split
        splits = await self._tree(commit, config)
        if splits is None:
            configs = _names(await self._tree(commit, "") or [])
            return f"no config {quote(config)}; {_choices(config, configs)}"
        names = _names(splits)
        if f"{_NO_PARTIAL}{split}" in names:
            return (
                f"the Hub converted only the first part of {quote(split)}; to use that part, write"
                f" {self._dataset._replace(split=_NO_PARTIAL + split)}"
            )
        return f"no split {quote(split)} in {quote(config)}; {_choices(split, names)}"

    async def _tree(self, commit: str, folder: str) -> list[dict[str, Any]] | None:
        """The entries of a folder; None if there is no such folder."""
        path = f"/{percent(folder)}" if folder else ""
        url: str | None = f"{self._api}/tree/{commit}{path}"
        found: list[dict[str, Any]] = []
        for _ in range(_MAX_PAGES):
            response = await self._get(url, None)
            if response is None:
                return None
            page = _json(response)
            if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
                raise self._error("the Hub answered with something other than a list of files")
            found += page
            more = _NEXT.search(response.headers.get("Link", ""))
            if more is None:
                return found
            url = more[1]
            if not url.startswith(f"{self._base}/"):
                raise self._error(f"the Hub continued its list at another host: {quote(url)}")
        raise self._error(f"the list of files has more than {_MAX_PAGES:,} pages")

    async def file(self, listing: _Listing, file: _Listed, cache: Path, progress: _Progress) -> Path:
        """The file in the cache, downloaded where it is missing, in pieces that a later call continues."""
        place = _place(cache, file)
        if _is_cached(place, file):
            return place
        place.parent.mkdir(exist_ok=True)
        partial = place.with_name(f"{place.name}.partial")
        url = f"{self._base}/datasets/{self._dataset.name}/resolve/{listing.commit}/{percent(file.path)}"
        # two processes may write the same bytes to the same place, which does no harm
        with partial.open("r+b" if partial.exists() else "w+b") as out:
            done = out.seek(0, os.SEEK_END)
            if done > file.size:
                done = out.truncate(0)
            while done < file.size:
                end = min(done + _PIECE, file.size)
                headers = {"Range": f"bytes={done}-{end - 1}"}
                response = await self._get(url, f"the file {file.path} is missing", headers)
                assert response is not None  # noqa: S101 - an absent file was an error
                piece = response.body if response.status == 206 else response.body[done:end]
                if len(piece) != end - done:
                    raise self._error(f"{file.path}: the Hub sent {len(piece):,} of {end - done:,} bytes; try again")
                out.seek(done)
                out.write(piece)
                done = end
                progress(file, done)
        if not _is_whole(partial, file):
            partial.unlink(missing_ok=True)
            raise self._error(f"{file.path}: the download does not match its digest; try again")
        with suppress(FileNotFoundError):  # another process was faster
            partial.replace(place)
        return place

    @property
    def _api(self) -> str:
        return f"{self._base}/api/datasets/{self._dataset.name}"

    @property
    def _no_revision(self) -> str:
        if self._dataset.revision is not None:
            return f"no dataset {quote(self._dataset.name)} with the revision {quote(self._dataset.revision)}"
        return (
            f"no dataset {quote(self._dataset.name)}, or the Hub did not convert it to Parquet (branch {_BRANCH});"
            " check the name, or download the files and name them"
        )

    async def _get(self, url: str | None, absent: str | None, headers: Mapping[str, str] | None = None) -> Any:
        """The response; a 404 is an error with the reason ``absent``, or None without one."""
        from gradeline.transport import CallError, HttpRequest  # loads aiohttp

        request = HttpRequest(
            "GET",
            str(url),
            {**self._headers, **(headers or {})},
            deadline_s=_PIECE_DEADLINE_S,
            retries=4,
            secret_headers=("Authorization",),
        )
        try:
            response: HttpResponse = await self._transport.request(request)
        except CallError as error:
            if error.http_status == 404 and absent is None:
                return None
            raise self._error(self._reason(error.http_status, str(error), absent)) from None
        return response

    def _reason(self, status: int | None, message: str, absent: str | None) -> str:
        token = "the HF_TOKEN has no access to it" if self._has_token else "set HF_TOKEN if it is private or gated"
        if status in (401, 403):
            return f"access denied; {token}"
        if status == 404 and absent is not None:
            return absent if self._has_token else f"{absent}; {token}"
        return message

    def _error(self, reason: str) -> HubError:
        return HubError(Problem(str(self._dataset), reason))


def _json(response: Any) -> Any:
    try:
        return msgspec.json.decode(response.body)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _listed(entry: Mapping[str, Any]) -> _Listed:
    lfs = entry.get("lfs")
    digest = lfs.get("oid") if isinstance(lfs, dict) else None
    try:
        found = msgspec.convert({**entry, "sha256": digest}, _Listed)
    except msgspec.ValidationError:
        raise HubError(Problem(quote(entry.get("path")), "the Hub listed a file without size or digest")) from None
    if not _FILE.fullmatch(found.name) or not re.fullmatch(r"[0-9a-f]{40,64}", found.sha256 or found.oid):
        raise HubError(Problem(quote(found.path), "is not a Parquet file with a digest"))
    return found


def _names(entries: list[dict[str, Any]]) -> list[str]:
    return [str(entry.get("path")).rpartition("/")[2] for entry in entries if entry.get("type") == "directory"]


def _choices(name: str, names: list[str]) -> str:
    near = closest_match(name, names)
    if near:
        return f"did you mean {near!r}?"
    return f"it has {', '.join(map(quote, names[:20]))}" if names else "it has none"


def _is_whole(path: Path, file: _Listed) -> bool:
    """Compare the digest: SHA-256 of files in large storage, else that of git."""
    digest = sha256() if file.sha256 else sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == (file.sha256 or file.oid)
