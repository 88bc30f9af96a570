"""Secrets: which names denote one, masking their values in any data, and binding them to hosts.

A `BoundSecret` has a marker. Configs and user code only see the marker; the transport replaces it by the value when it
sends a request to one of the allowed hosts.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

from msgspec import Struct, field
from msgspec.json import decode, encode

REDACTED = "[redacted]"
MIN_SECRET_CHARS = 4
"""Shorter values (`?key=1`) are not redacted: that would garble the message."""

_SECRET_WORDS = frozenset(
    {"auth", "authorization", "cookie", "credential", "credentials", "key", "passphrase", "passwd", "pwd", "sig"}
)
_SECRET_ENDS = ("apikey", "accesskey", "password", "secret", "signature", "token")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_secret_name(name: str) -> bool:
    """Whether a header, query parameter or option of this name is a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words)


def secrets_in_url(url: str) -> set[str]:
    """Values of the query parameters whose names denote secrets."""
    try:
        pairs = parse_qsl(urlsplit(url).query, keep_blank_values=False)
    except ValueError:
        return set()
    return {value for name, value in pairs if len(value) >= MIN_SECRET_CHARS and is_secret_name(name)}


def contains_secret(value: object, name: str = "") -> bool:
    """Whether JSON data contains a secret, judging by names; ``${NAME}`` is a reference, not a secret."""
    if isinstance(value, Mapping):
        return any(contains_secret(item, str(key)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(contains_secret(item, name) for item in value)
    if not isinstance(value, str) or "${" in value:
        return False
    return is_secret_name(name) or bool(secrets_in_url(value))


MASK = "***"
"""Replaces each masked value."""
MIN_MASKED_CHARS = 8
"""Shorter values are placeholders such as ``EMPTY`` or ``test``, which may occur in an answer."""

_MASK = MASK.encode()
_SCHEMES = frozenset({"basic", "bearer", "digest", "token", "apikey"})
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_ESCAPED = re.compile(r"\\u[0-9a-f]{4}")
_ESCAPED_ASCII = re.compile(rb"\\+u00([2-7][0-9a-fA-F])")
_KEPT_ESCAPES = (b'"', b"\\", b"\x7f")
_PATTERN_MEMORY = 256 * 1024 * 1024
"""Memory limit of the automaton over all values; a value of 40 characters takes about 20 kB."""
_MIN_PREFIX = 4
"""A shorter prefix of a value at the end of truncated data reveals nothing."""

Search = Callable[[bytes], Iterator[tuple[int, int]]]
"""Finds the start and end of each value in the data."""


def credential_parts(value: str) -> Iterator[str]:
    """A credential and the parts a server may echo: token without scheme, cookie values, Basic password."""
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
    """Whether a word is an authentication scheme, such as ``Bearer``."""
    return word.lower() in _SCHEMES


def encodings(value: str) -> set[str]:
    """A value unchanged, JSON-escaped once and twice, percent-encoded, HTML-escaped and within base64."""
    import html  # takes 2 ms, and few runs have secrets

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
    """The base64 characters determined by these bytes only, at each of the three possible offsets."""
    for offset in range(3):
        encoded = b64encode(bytes(offset) + raw).decode().rstrip("=")
        end = None if (offset + len(raw)) % 3 == 0 else -1
        yield encoded[(0, 2, 3)[offset] : end]


class Mask:
    """Replaces values, their parts and encodings by ``***``. Values under 8 characters are not masked."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = frozenset(
            part for value in values for part in credential_parts(value) if len(part) >= MIN_MASKED_CHARS
        )

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
        """Whether the data contains a value."""
        return bool(self.values) and next(self._search(data), None) is not None

    def body(self, data: bytes, *, cut: bool = False) -> bytes:
        """Mask the values in the data. ``cut``: it is truncated, so a prefix of a value at the end is masked too."""
        if not self.values:
            return data
        masked = _mask_matches(data, self._search)
        if b"\\u" in masked:
            # JSON may escape any letter: \u0061 is a
            plain = _ESCAPED_ASCII.sub(_unescaped, masked)
            unescaped = _mask_matches(plain, self._search)
            masked = masked if unescaped is plain else unescaped
        prefix = self._prefix_at_end(masked) if cut else 0
        return masked[:-prefix] + _MASK if prefix else masked

    def text(self, text: str) -> str:
        """Mask the values in a string."""
        raw = text.encode(errors="surrogatepass")
        masked = self.body(raw)
        return text if masked is raw else masked.decode(errors="surrogatepass")

    def tree(self, tree: object) -> Any:
        """Mask all strings in JSON data, keys included."""
        if isinstance(tree, str):
            return self.text(tree)
        if isinstance(tree, Mapping):
            return {self.tree(key): self.tree(item) for key, item in tree.items()}
        if isinstance(tree, list | tuple):
            return [self.tree(item) for item in tree]
        return tree

    def json(self, data: bytes) -> bytes:
        """Mask the values in the strings of JSON data, which stays valid: a number is never replaced."""
        if not self.values or not (b"\\u" in data or self.found_in(data)):
            return data
        # a masked number, or a mask across two strings, would not be JSON any more
        tree = decode(data)
        masked = self.tree(tree)
        return data if masked == tree else encode(masked)

    def stream(self) -> MaskStream:
        """A mask for data that arrives in chunks."""
        return MaskStream(self._search, len(self._forms[0]))

    def _prefix_at_end(self, data: bytes) -> int:
        """Number of bytes at the end of the data that are a prefix of a value."""
        return max((_overlap(data, form) for form in self._forms), default=0)


class MaskStream:
    """Masks values that are split over chunks by buffering bytes that may begin one."""

    def __init__(self, search: Search, longest: int) -> None:
        self._search = search
        self._longest = longest
        self._buffer = b""

    def feed(self, chunk: bytes) -> bytes:
        """Masked data that later chunks cannot change."""
        data = self._buffer + chunk
        # a match that begins before this offset is complete: no longer one can begin there
        decided = len(data) - self._longest + 1
        if decided <= 0:
            self._buffer = data
            return b""
        pieces: list[bytes] = []
        position = 0
        for start, stop in self._search(data):
            if start >= decided:
                break
            pieces += (data[position:start], _MASK)
            position = stop
        end = max(position, decided)
        self._buffer = data[end:]
        return b"".join((*pieces, data[position:end]))

    def close(self) -> bytes:
        """The masked rest at the end of the data."""
        rest, self._buffer = _mask_matches(self._buffer, self._search), b""
        return rest


@lru_cache(maxsize=16)
def _forms_of(values: frozenset[str]) -> tuple[bytes, ...]:
    """All byte strings to search for, longest first: a value may contain another one."""
    found: set[bytes] = set()
    for value in values:
        if is_scheme(value.partition(" ")[0]) and value.partition(" ")[2] in values:
            # the token itself is searched for in every other form
            written = (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
            found |= {value.encode(errors="surrogatepass"), *(form.encode() for form in written)}
            continue
        found |= {form.encode(errors="surrogatepass") for form in encodings(value)}
        found |= {value.encode(coding, "surrogatepass") for coding in ("utf-16-le", "utf-16-be")}
    return tuple(sorted(found, key=len, reverse=True))


@lru_cache(maxsize=16)
def _search_for(values: frozenset[str]) -> Search:
    """A search for these values, leftmost and longest first, in time independent of their number."""
    import re2  # takes 10 ms, and most commands never need it

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


def _mask_matches(data: bytes, search: Search) -> bytes:
    """The data with all matches masked; the same object if there are none."""
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
    start = tail.find(form[:_MIN_PREFIX])
    while start >= 0:
        if form.startswith(tail[start:]):
            return len(tail) - start
        start = tail.find(form[:_MIN_PREFIX], start + 1)
    return 0


SecretLocation = Literal["header", "query", "body"]
Scheme = Literal["https", "http"]

MARKER = "gradeline-secret-"
"""Prefix of every marker. The rest is random, so that no case can contain one."""


class BoundSecret(Struct, frozen=True):
    """A secret and where it may be sent. ``hosts`` are ``host`` or ``host:port`` (default: the scheme's port)."""

    name: str
    value: str
    hosts: tuple[str, ...]
    scheme: Scheme = "https"
    place: SecretLocation = "header"
    marker: str = field(default_factory=lambda: f"{MARKER}{os.urandom(16).hex()}")

    def __repr__(self) -> str:
        return f"BoundSecret({self.name!r}, {self.hosts!r}, {self.scheme!r}, {self.place!r})"

    @property
    def destinations(self) -> str:
        """The allowed origins, for messages."""
        return " or ".join(f"{self.scheme}://{host}" for host in self.hosts) or "no address"


class SecretSet:
    """The secrets of a run, and further values to mask."""

    def __init__(self, secrets: Iterable[BoundSecret] = (), masked: Iterable[str] = ()) -> None:
        self.secrets = tuple(secrets)
        self._masked = frozenset(masked)

    def __repr__(self) -> str:
        return f"SecretSet({[secret.name for secret in self.secrets]!r})"

    def limited_to(self, markers: Collection[str]) -> SecretSet:
        """Only the secrets with these markers, for a process that needs no others."""
        return SecretSet(secret for secret in self.secrets if secret.marker in markers)

    @cached_property
    def mask(self) -> Mask:
        """A mask for all values."""
        return Mask((*(secret.value for secret in self.secrets), *self._masked))
