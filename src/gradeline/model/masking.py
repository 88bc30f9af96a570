"""Masking secret values in whatever comes back, in the encodings that servers echo them in."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
"""What a masked value is replaced by."""
SHORTEST_MASKED = 8
"""Shorter values are placeholders such as ``EMPTY`` or ``test``, which an answer may well hold."""

_MASK = MASK.encode()
_SCHEMES = frozenset({"basic", "bearer", "digest", "token", "apikey"})
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_ESCAPED = re.compile(r"\\u[0-9a-f]{4}")
_ESCAPED_ASCII = re.compile(rb"\\+u00([2-7][0-9a-fA-F])")
_KEPT_ESCAPES = (b'"', b"\\", b"\x7f")
_PATTERN_MEMORY = 256 * 1024 * 1024
"""The most that the automaton of all values may take; a value of 40 characters takes some 20 kB."""
_SHORTEST_CUT = 4
"""A shorter beginning of a value at the end of a cut text gives nothing away."""


Search = Callable[[bytes], Iterator[tuple[int, int]]]
"""Gives the start and the end of each value in data."""


def parts_of(value: str) -> Iterator[str]:
    """A credential and what a server may echo of it: the token without its scheme, cookies, a Basic password."""
    yield value
    words = value.split()
    yield from (word for word in words if not is_scheme(word))
    yield from (pair.partition("=")[2].strip() for pair in value.split(";"))
    if len(words) == 2 and words[0].lower() == "basic":
        try:
            pair = b64decode(words[1], validate=True).decode()
        except (Base64Error, UnicodeDecodeError):
            return
        yield pair
        yield pair.partition(":")[2]


def is_scheme(word: str) -> bool:
    """Whether a word says how a caller is authenticated, such as ``Bearer``."""
    return word.lower() in _SCHEMES


def encodings(value: str) -> set[str]:
    """A value as it is, JSON-escaped once and twice, percent-encoded, HTML-escaped, and within base64."""
    import html  # 2 ms, and few runs have secrets

    found = {value, html.escape(value)}
    for _ in range(2):
        escaped = {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in found for ascii_only in (True, False)}
        escaped |= {form.replace("/", "\\/") for form in escaped}
        found |= escaped | {_ESCAPED.sub(lambda match: rf"\u{match[0][2:].upper()}", form) for form in escaped}
    raw = value.encode(errors="surrogatepass")
    percent = {quote(raw), quote(raw, safe=""), quote_plus(raw), "".join(f"%{byte:02X}" for byte in raw)}
    found |= percent | {_PERCENT.sub(lambda match: match[0].lower(), form) for form in percent}
    for form in set(_base64_cores(raw)):
        found |= {form, form.replace("/", "\\/"), quote(form, safe=""), form.replace("+", "-").replace("/", "_")}
    return {form for form in found if form}


def _base64_cores(raw: bytes) -> Iterator[str]:
    """The base64 characters that these bytes decide alone, at each of the three offsets they can have."""
    for offset in range(3):
        encoded = b64encode(bytes(offset) + raw).decode().rstrip("=")
        end = None if (offset + len(raw)) % 3 == 0 else -1
        yield encoded[(0, 2, 3)[offset] : end]


class Mask:
    """Replaces values, and their parts and encodings, by ``***``. Shorter ones than 8 characters are left."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = frozenset(part for value in values for part in parts_of(value) if len(part) >= SHORTEST_MASKED)

    def __reduce__(self) -> tuple[type[Mask], tuple[frozenset[str]]]:
        return type(self), (self.values,)

    def __bool__(self) -> bool:
        return bool(self.values)

    @cached_property
    def _forms(self) -> tuple[bytes, ...]:
        return _forms_of(self.values)

    @cached_property
    def _search(self) -> Search:
        return _search_for(self.values)

    def found_in(self, data: bytes) -> bool:
        """Whether a value is in the data."""
        return bool(self.values) and next(self._search(data), None) is not None

    def body(self, data: bytes, *, cut: bool = False) -> bytes:
        """The data without the values. ``cut``: more followed, so the beginning of a value at its end is masked too."""
        if not self.values:
            return data
        masked = _replaced(data, self._search)
        if b"\\u" in masked:
            # JSON may spell any letter as an escape: \u0061 is a
            plain = _ESCAPED_ASCII.sub(_unescaped, masked)
            unescaped = _replaced(plain, self._search)
            masked = masked if unescaped is plain else unescaped
        begun = self._begun_at_end(masked) if cut else 0
        return masked[:-begun] + _MASK if begun else masked

    def text(self, text: str) -> str:
        """The text without the values."""
        raw = text.encode(errors="surrogatepass")
        masked = self.body(raw)
        return text if masked is raw else masked.decode(errors="surrogatepass")

    def tree(self, tree: object) -> Any:
        """The tree with all its strings masked, keys included."""
        if isinstance(tree, str):
            return self.text(tree)
        if isinstance(tree, Mapping):
            return {self.tree(key): self.tree(item) for key, item in tree.items()}
        if isinstance(tree, list | tuple):
            return [self.tree(item) for item in tree]
        return tree

    def stream(self) -> MaskStream:
        """Masks data that comes in chunks."""
        return MaskStream(self._search, len(self._forms[0]))

    def _begun_at_end(self, data: bytes) -> int:
        """The number of bytes at the end of the data with which a value begins."""
        return max((_overlap(data, form) for form in self._forms), default=0)


class MaskStream:
    """Masks values that are split over chunks: the bytes in which one may have begun are held back."""

    def __init__(self, search: Search, longest: int) -> None:
        self._search = search
        self._longest = longest
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What is certain of the data so far."""
        data = self._held + chunk
        # a match that begins before this is complete: no longer one can begin at the same place
        decided = len(data) - self._longest + 1
        if decided <= 0:
            self._held = data
            return b""
        pieces: list[bytes] = []
        position = 0
        for start, stop in self._search(data):
            if start >= decided:
                break
            pieces += (data[position:start], _MASK)
            position = stop
        end = max(position, decided)
        self._held = data[end:]
        return b"".join((*pieces, data[position:end]))

    def close(self) -> bytes:
        """The rest: the data has ended."""
        rest, self._held = _replaced(self._held, self._search), b""
        return rest


@lru_cache(maxsize=16)
def _forms_of(values: frozenset[str]) -> tuple[bytes, ...]:
    """All that is searched for, the longest first: a value may hold another one."""
    found: set[bytes] = set()
    for value in values:
        if is_scheme(value.partition(" ")[0]) and value.partition(" ")[2] in values:
            # the token is found in every other form
            written = (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
            found |= {value.encode(errors="surrogatepass"), *(form.encode() for form in written)}
            continue
        found |= {form.encode(errors="surrogatepass") for form in encodings(value)}
        found |= {value.encode(coding, "surrogatepass") for coding in ("utf-16-le", "utf-16-be")}
    return tuple(sorted(found, key=len, reverse=True))


@lru_cache(maxsize=16)
def _search_for(values: frozenset[str]) -> Search:
    """Where these values are, leftmost and longest first; its time does not depend on their number."""
    import re2  # 10 ms that most commands never need

    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1  # bytes
    options.longest_match = True
    options.never_capture = True
    options.max_mem = _PATTERN_MEMORY
    try:
        pattern = re2.compile(b"|".join(map(re2.escape, _forms_of(values))), options)
    except re2.error:  # hundreds of values of ten thousand characters
        return partial(_search_one_by_one, forms=_forms_of(values))
    return lambda data: (match.span() for match in pattern.finditer(data))


def _search_one_by_one(data: bytes, forms: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    position = 0
    while True:
        found = ((start, -len(form)) for form in forms if (start := data.find(form, position)) >= 0)
        start, size = min(found, default=(-1, 0))
        if start < 0:
            return
        position = start - size
        yield start, position


def _replaced(data: bytes, search: Search) -> bytes:
    """The data with what is found masked; the same object where nothing is."""
    pieces: list[bytes] = []
    position = 0
    for start, stop in search(data):
        pieces += (data[position:start], _MASK)
        position = stop
    return b"".join((*pieces, data[position:])) if pieces else data


def _unescaped(match: re.Match[bytes]) -> bytes:
    letter = bytes([int(match[1], 16)])
    return match[0] if letter in _KEPT_ESCAPES else letter


def _overlap(data: bytes, form: bytes) -> int:
    tail = data[1 - len(form) :] if len(form) > 1 else b""
    start = tail.find(form[:_SHORTEST_CUT])
    while start >= 0:
        if form.startswith(tail[start:]):
            return len(tail) - start
        start = tail.find(form[:_SHORTEST_CUT], start + 1)
    return 0
