"""What one try of an agent shows: what was sent, what came back, what was read from it. No secret is in any of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import Struct

from gradeline.model import Response, ToolCall, Usage, clean_text
from gradeline.model.response import ResponseStatus
from gradeline.model.secrets import is_secret_name, secrets_in_url
from gradeline.targets.answer import decode
from gradeline.targets.base import HIDDEN, hide, spellings
from gradeline.transport.observed import Exchange
from gradeline.transport.redact import known_secrets

MOST_BYTES = 100_000
"""Of each body and text that is shown."""

_MOST_HEADERS = 50
_LONGEST_HEADER = 1_000
_TELLING = frozenset(
    {
        "allow",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "location",
        "retry-after",
        "server",
        "transfer-encoding",
        "via",
        "www-authenticate",
    }
)
"""Headers of an answer that say something of the call, beside those that begin with ``x-``."""


class SentRequest(Struct, frozen=True, kw_only=True):
    """A request as it went out; secrets are `***`."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None
    body_truncated: bool


class RawAnswer(Struct, frozen=True, kw_only=True):
    """An answer before anything was read from it. A body that broke off or was too large is null."""

    status: int
    headers: dict[str, str]
    body: str | None
    body_truncated: bool
    """The body was longer than what is shown: 100,000 bytes."""


class ShownExchange(Struct, frozen=True, kw_only=True):
    """One request; `answer` is null where none came."""

    request: SentRequest
    answer: RawAnswer | None


class Tried(Struct, frozen=True, kw_only=True):
    """What became of one call of the agent. The fields of results have the names that they have in a run."""

    response_status: ResponseStatus
    agent_response: str | None
    agent_response_truncated: bool
    tool_calls: list[ToolCall] | None
    """Null where the answer does not report them; an agent that reports none gives an empty list."""
    tool_calls_omitted: int
    usage: Usage | None
    response_latency_ms: float | None
    error_type: str | None
    error_message: str | None
    timeout_s: float | None
    """What bounded the call; null where the target takes no limit of its own."""
    exchanges: list[ShownExchange]
    """Redirects and polling make more than one; none where the agent is not asked over HTTP."""
    exchanges_omitted: int


class Veil:
    """Hides what lets the caller in, however the agent says it back."""

    def __init__(self, secrets: Iterable[str], exchanges: Iterable[Exchange]) -> None:
        found = set(secrets)
        for exchange in exchanges:
            found |= set(known_secrets(exchange.url, exchange.headers, (), ()))
        found = {secret for secret in found if secret}
        encoded = {form for secret in found for form in (quote(secret), quote(secret, safe=""), quote_plus(secret))}
        self._forms = spellings(found) | encoded

    def text(self, text: str) -> str:
        """The text without secrets, and as a store could keep it."""
        return clean_text(hide(text, self._forms)).text

    def beginning(self, text: str) -> str:
        """The same of a text that was cut off: half a secret at its end is one too."""
        text = hide(text, self._forms)
        half = max((_overlap(text, form) for form in self._forms), default=0)
        return clean_text(text[: len(text) - half]).text


def _overlap(text: str, form: str) -> int:
    """How much of a form's beginning the text ends with."""
    return next((size for size in range(min(len(form) - 1, len(text)), 0, -1) if text.endswith(form[:size])), 0)


def tried(
    response: Response,
    exchanges: Collection[Exchange] = (),
    *,
    omitted: int = 0,
    secrets: Iterable[str] = (),
    timeout_s: float | None = None,
) -> Tried:
    """What may be told of a call."""
    veil = Veil(secrets, exchanges)
    text, cut = (None, False) if response.text is None else _within(veil.text(response.text))
    made = list(response.steps.tool_calls())
    calls = list(_fitting(made, veil)) if made or response.steps.tools_known else None
    return Tried(
        response_status=response.status,
        agent_response=text,
        agent_response_truncated=cut,
        tool_calls=calls,
        tool_calls_omitted=len(made) - len(calls or ()),
        usage=response.usage,
        response_latency_ms=response.latency_ms,
        error_type=None if response.error is None else response.error.type,
        error_message=None if response.error is None else veil.text(response.error.message),
        timeout_s=timeout_s,
        exchanges=[_shown(exchange, veil) for exchange in exchanges],
        exchanges_omitted=omitted,
    )


def _fitting(calls: Iterable[ToolCall], veil: Veil) -> Iterator[ToolCall]:
    """As many calls as may be shown."""
    room = MOST_BYTES
    for call in calls:
        name, arguments = veil.text(call.name), veil.text(call.arguments)
        shown = ToolCall(name, arguments, None if call.id is None else veil.text(call.id))
        room -= len(msgspec.json.encode(shown))
        if room < 0:
            return
        yield shown


def _shown(exchange: Exchange, veil: Veil) -> ShownExchange:
    body, cut = (None, False) if exchange.body is None else _within(veil.text(decode(exchange.body).text))
    request = SentRequest(
        method=exchange.method,
        url=veil.text(exchange.url),
        headers=dict(_headers(exchange.headers, veil)),
        body=body,
        body_truncated=cut,
    )
    if exchange.status is None:
        return ShownExchange(request=request, answer=None)
    telling = {name: value for name, value in exchange.answer_headers.items() if _tells(name)}
    answer = RawAnswer(
        status=exchange.status,
        headers=dict(_headers(telling, veil)),
        body=_answer_body(exchange, veil),
        body_truncated=exchange.cut,
    )
    return ShownExchange(request=request, answer=answer)


def _answer_body(exchange: Exchange, veil: Veil) -> str | None:
    if exchange.answer is None:
        return None
    kind = next((value for name, value in exchange.answer_headers.items() if name.lower() == "content-type"), "")
    text = decode(exchange.answer, kind).text
    # the cut may be within a character
    return veil.beginning(text.rstrip("\ufffd")) if exchange.cut else veil.text(text)


def _tells(header: str) -> bool:
    return header.lower() in _TELLING or header.lower().startswith("x-")


def _headers(headers: Mapping[str, str], veil: Veil) -> Iterator[tuple[str, str]]:
    for name, value in list(headers.items())[:_MOST_HEADERS]:
        hidden = HIDDEN if is_secret_name(name) else hide(veil.text(value), secrets_in_url(value))
        yield veil.text(name), hidden[:_LONGEST_HEADER]


def _within(text: str) -> tuple[str, bool]:
    """The text as far as it is shown, and whether there is more."""
    raw = text.encode()
    return (text, False) if len(raw) <= MOST_BYTES else (raw[:MOST_BYTES].decode(errors="ignore"), True)
