"""Costs of model calls: price tables, the cost of a call, and budgets.

Prices come from the table that ships with the package and from the user.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Hashable, Iterable, Mapping
from functools import cache, reduce
from itertools import chain
from math import isfinite
from pathlib import Path
from threading import Lock, get_ident
from typing import Annotated, Any, NamedTuple

import msgspec

from gradeline.errors import BudgetExceeded, ConfigError, Problem
from gradeline.model.response import Usage
from gradeline.model.text import quote

ENVIRONMENT = "GRADELINE_PRICES"
"""The variable that names a file with the user's prices, in the format of ``prices.json``."""

ANYWHERE = "*"
_TABLE = Path(__file__).with_name("prices.json")
_MILLION = 1_000_000

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_ASSUMED = re.compile(
    rf"(?:(?P<model>[^=\s][^=]*)=)?\s*\$?(?P<input>{_NUMBER})\s*/\s*\$?(?P<output>{_NUMBER})"
    rf"(?:\s*/\s*\$?(?P<cached>{_NUMBER}))?"
)

_Dollars = Annotated[float, msgspec.Meta(ge=0)]


class Tokens(NamedTuple):
    """Token counts of a call; None is unknown.

    ``input`` is the whole prompt; ``cached`` and ``written`` are the parts of it read from a cache and written to one.
    ``cost`` is the charge that the server reported. ``extra``: more than tokens at the usual rate was charged (another
    tier, searches), so the cost cannot be computed from prices.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    written: int | None = None
    cost: float | None = None
    extra: bool = False


class LongPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of a call whose prompt is longer than ``above`` tokens."""

    above: Annotated[int, msgspec.Meta(ge=0)]
    input: _Dollars
    output: _Dollars
    cached: _Dollars | None = None
    cache_write: _Dollars | None = None


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens. If tokens of a call have no price, its cost is unknown."""

    input: _Dollars
    output: _Dollars
    cached: _Dollars | None = None
    cache_write: _Dollars | None = None
    long: LongPrompt | None = None
    up_to: int | None = None
    """The longest prompt, in tokens, that these prices apply to; None: any."""
    source: str | None = None
    checked: str | None = None

    def cost(self, tokens: Tokens) -> float | None:
        """The cost of these tokens in US dollars; None if unknown."""
        if tokens.input is None or tokens.output is None or tokens.extra:
            return None
        rates: Price | LongPrompt = self
        if self.up_to is not None and tokens.input > self.up_to:
            return None
        if self.long is not None and tokens.input > self.long.above:
            rates = self.long
        cached, written = tokens.cached or 0, tokens.written or 0
        if (cached and rates.cached is None) or (written and rates.cache_write is None):
            return None
        plain = max(0, tokens.input - cached - written)
        parts = (
            plain * rates.input,
            cached * (rates.cached or 0.0),
            written * (rates.cache_write or 0.0),
            tokens.output * rates.output,
        )
        return sum(parts) / _MILLION


class ProviderPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One provider's models. The prices apply to calls to these hosts only (``*``: any host)."""

    models: dict[str, Price] = {}
    hosts: tuple[str, ...] = ()
    source: str | None = None
    checked: str | None = None


class Prices:
    """Prices by provider and model. A model that is not in the table, or served by another host, has no known price."""

    def __init__(
        self,
        providers: Mapping[str, ProviderPrices] | None = None,
        own: Mapping[str, Price] | None = None,
        assumed: Price | None = None,
    ) -> None:
        """``own`` are the user's prices by model, which take precedence; ``assumed`` applies to models without one."""
        self._providers = dict(providers or {})
        self._own = dict(own or {})
        self._assumed = assumed

    @classmethod
    def of(cls, models: Mapping[str, Price]) -> Prices:
        """The prices of these models at any provider."""
        return cls({ANYWHERE: ProviderPrices(dict(models), (ANYWHERE,))})

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Prices:
        """The package's table, overridden by the user's: the file ``path``, or the one that GRADELINE_PRICES names."""
        own = os.fspath(path) if path is not None else os.environ.get(ENVIRONMENT)
        return _shipped() if not own else _shipped().updated(cls(_read(Path(own))))

    def updated(self, other: Prices) -> Prices:
        """These prices overridden by others: models are replaced, hosts are added."""
        merged = dict(self._providers)
        for name, new in other._providers.items():
            old = merged.get(name, ProviderPrices())
            merged[name] = ProviderPrices({**old.models, **new.models}, (*old.hosts, *new.hosts))
        return Prices(merged, {**self._own, **other._own}, other._assumed or self._assumed)

    def user_price(self, model: str | None) -> Price | None:
        """The price that the user set for a model, whichever provider serves it."""
        return self._own.get(model or "", self._assumed)

    def price(self, provider: str, model: str, host: str | None = None) -> Price | None:
        """The price of a model at a host; None if unknown, which is not 0."""
        if model in self._own:
            return self._own[model]
        for name in (provider, ANYWHERE):
            prices = self._providers.get(name)
            if prices is not None and model in prices.models and not {host, ANYWHERE}.isdisjoint(prices.hosts):
                return prices.models[model]
        return self._assumed


def flat_price(
    input: float,  # noqa: A002 - as prices are named everywhere
    output: float,
    cached: float | None = None,
    cache_write: float | None = None,
) -> Price:
    """A price set by the user. Cached tokens cost as much as others unless they have a price of their own."""
    return Price(input, output, input if cached is None else cached, input if cache_write is None else cache_write)


def assumed_prices(texts: Iterable[str]) -> tuple[dict[str, Price], Price | None]:
    """Parse prices such as ``0.15/0.60`` and ``MODEL=0.15/0.60``: those by model, and the one for all other models."""
    by_model: dict[str, Price] = {}
    assumed: Price | None = None
    for text in texts:
        model, price = _assumed(text)
        if model:
            by_model[model] = price
        else:
            assumed = price
    return by_model, assumed


def _assumed(text: str) -> tuple[str, Price]:
    found = _ASSUMED.fullmatch(text.strip())
    if found is None:
        reason = (
            f"invalid price {quote(text)}: use INPUT/OUTPUT in US dollars per million tokens, such as 0.15/0.60, or"
            " MODEL=0.15/0.60 for one model; a third number is the price of cached input"
        )
        raise ConfigError(Problem("--assume-price", reason))
    cached = None if found["cached"] is None else float(found["cached"])
    return (found["model"] or "").strip(), flat_price(float(found["input"]), float(found["output"]), cached)


@cache
def _shipped() -> Prices:
    return Prices(_read(_TABLE))


def _read(path: Path) -> dict[str, ProviderPrices]:
    try:
        data: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        data.pop("about", None)
        read = msgspec.convert(data, dict[str, ProviderPrices])
    except OSError as error:
        raise ConfigError(Problem(ENVIRONMENT, f"{quote(str(path))} cannot be read: {error.strerror}")) from None
    except msgspec.ValidationError as error:
        raise ConfigError(Problem(str(path), f"is not a valid price table: {error}")) from None
    except msgspec.DecodeError as error:
        raise ConfigError(Problem(str(path), f"is not valid JSON: {error}")) from None
    return {name: _sourced(name, prices) for name, prices in read.items()}


def _sourced(name: str, prices: ProviderPrices) -> ProviderPrices:
    """Copy source and date to each price; prices for any provider apply to any host."""
    models = {
        model: msgspec.structs.replace(
            price, source=price.source or prices.source, checked=price.checked or prices.checked
        )
        for model, price in prices.models.items()
    }
    hosts = prices.hosts or ((ANYWHERE,) if name == ANYWHERE else ())
    return msgspec.structs.replace(prices, models=models, hosts=hosts)


_TINY = 1e-9
"""Relative tolerance of a limit, for sums of decimal prices."""


class Spent(NamedTuple):
    """What was spent, including estimates of calls in flight. The cost of ``unpriced`` calls is unknown."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def plus(self, other: Spent) -> Spent:
        """The sum of both."""
        return Spent(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
        )


class BudgetTracker:
    """Limits on cost, tokens and calls; None is no limit, zero allows nothing. Safe across threads and tasks.

    An adapter calls `admit` before a call is sent and `settle` after it, from the same task (or thread); in between
    the estimate counts as spent, so that concurrent calls cannot exceed a limit together.
    """

    def __init__(self, cost: float | None = None, tokens: int | None = None, calls: int | None = None) -> None:
        self.cost = _limit("cost", cost)
        self.tokens = _limit("tokens", tokens)
        self.calls = _limit("calls", calls)
        self._settled = Spent()
        self._open: dict[Hashable, list[Spent]] = {}
        self._lock = Lock()

    @property
    def spent(self) -> Spent:
        with self._lock:
            return self._total()

    def admit(self, *, tokens: int, cost: float | None) -> None:
        """Reserve the estimate of one call, or raise `BudgetExceeded`."""
        with self._lock:
            spent = self._total()
            _check("calls", self.calls, spent.calls, 1)
            _check("tokens", self.tokens, spent.tokens, tokens)
            if cost is not None:
                _check("cost", self.cost, spent.cost, cost)
            elif self.cost is not None:
                raise BudgetExceeded(
                    f"the price of this call is unknown, so a budget of {self.cost:g} cannot limit it;"
                    " set a price for the model, or limit tokens or calls instead"
                )
            estimate = Spent(1, tokens, cost or 0.0, int(cost is None))
            self._open.setdefault(_caller(), []).append(estimate)

    def settle(self, usage: Usage) -> None:
        """Replace the caller's last estimate by the actual usage; the estimate remains for what is unknown."""
        with self._lock:
            used = self._take_estimate()
            if usage.input_tokens is not None and usage.output_tokens is not None:
                used = used._replace(tokens=usage.input_tokens + usage.output_tokens)
            if usage.cost is not None:
                used = used._replace(cost=usage.cost, unpriced=0)
            self._settled = self._settled.plus(used)

    def _total(self) -> Spent:
        return reduce(Spent.plus, chain.from_iterable(self._open.values()), self._settled)

    def _take_estimate(self) -> Spent:
        caller = _caller()
        estimates = self._open.get(caller)
        if not estimates:  # settled by another task than admitted: the usage is added
            return Spent()
        estimate = estimates.pop()
        if not estimates:
            del self._open[caller]
        return estimate


def _limit(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ConfigError(Problem(name, f"invalid limit {value!r}: use a number from 0 up, or None for no limit"))
    return value


def _check(name: str, limit: float | None, spent: float, more: float) -> None:
    if limit is None:
        return
    if spent >= limit or spent + more > limit * (1 + _TINY):
        raise BudgetExceeded(
            f"the budget of {limit:g} {name} is used up: {spent:g} spent, the next call needs {more:g}"
        )


def _caller() -> Hashable:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        task = None
    return ("thread", get_ident()) if task is None else ("task", id(task))
