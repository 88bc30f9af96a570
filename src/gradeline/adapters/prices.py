"""What models cost, by the price table that ships with the package and the user's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gradeline.adapters.wire import Tokens
from gradeline.errors import ConfigError, Problem
from gradeline.model.text import quote

ENVIRONMENT = "GRADELINE_PRICES"
"""Names a file of the user's own prices, in the shape of ``prices.json``."""

ANYWHERE = "*"
_TABLE = Path(__file__).with_name("prices.json")
_MILLION = 1_000_000

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_ASSUMED = re.compile(
    rf"(?:(?P<model>[^=\s][^=]*)=)?\s*\$?(?P<input>{_NUMBER})\s*/\s*\$?(?P<output>{_NUMBER})"
    rf"(?:\s*/\s*\$?(?P<cached>{_NUMBER}))?"
)

_Dollars = Annotated[float, msgspec.Meta(ge=0)]


class LongPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a call costs whose prompt is longer than ``above`` tokens."""

    above: Annotated[int, msgspec.Meta(ge=0)]
    input: _Dollars
    output: _Dollars
    cached: _Dollars | None = None
    cache_write: _Dollars | None = None


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens. The cost of a call with tokens of a kind without a price is unknown."""

    input: _Dollars
    output: _Dollars
    cached: _Dollars | None = None
    cache_write: _Dollars | None = None
    long: LongPrompt | None = None
    up_to: int | None = None
    """The longest prompt, in tokens, that these prices are for; None: any."""
    source: str | None = None
    checked: str | None = None

    def cost(self, tokens: Tokens) -> float | None:
        """What these tokens cost; None where it cannot be known."""
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
    """One provider's models. The prices hold for calls to these hosts alone (``*``: to any)."""

    models: dict[str, Price] = {}
    hosts: tuple[str, ...] = ()
    source: str | None = None
    checked: str | None = None


class Prices:
    """Prices by provider and model. A model that is not in the table, or is served elsewhere, has no known price."""

    def __init__(
        self,
        providers: Mapping[str, ProviderPrices] | None = None,
        own: Mapping[str, Price] | None = None,
        assumed: Price | None = None,
    ) -> None:
        """``own`` are the user's prices by model, which come first; ``assumed`` is the price of models without one."""
        self._providers = dict(providers or {})
        self._own = dict(own or {})
        self._assumed = assumed

    @classmethod
    def of(cls, models: Mapping[str, Price]) -> Prices:
        """The prices of these models, whoever serves them."""
        return cls({ANYWHERE: ProviderPrices(dict(models), (ANYWHERE,))})

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Prices:
        """The package's table, with the user's laid over it: that of ``path``, or the one GRADELINE_PRICES names."""
        own = os.fspath(path) if path is not None else os.environ.get(ENVIRONMENT)
        return _shipped() if not own else _shipped().updated(cls(_read(Path(own))))

    def updated(self, other: Prices) -> Prices:
        """These prices with others laid over them: models are replaced, hosts are added."""
        merged = dict(self._providers)
        for name, new in other._providers.items():
            old = merged.get(name, ProviderPrices())
            merged[name] = ProviderPrices({**old.models, **new.models}, (*old.hosts, *new.hosts))
        return Prices(merged, {**self._own, **other._own}, other._assumed or self._assumed)

    def given(self, model: str | None) -> Price | None:
        """The price that the user gave for a model, whichever provider serves it."""
        return self._own.get(model or "", self._assumed)

    def price(self, provider: str, model: str, host: str | None = None) -> Price | None:
        """The price of a model at a host, or None: unknown is not 0."""
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
    """A price that a user gave. Tokens of the cache cost as much as others unless another price is given for them."""
    return Price(input, output, input if cached is None else cached, input if cache_write is None else cache_write)


def assumed_prices(texts: Iterable[str]) -> tuple[dict[str, Price], Price | None]:
    """Prices such as ``0.15/0.60`` and ``MODEL=0.15/0.60``: those by model, and the one for all other models."""
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
        raise ConfigError(Problem(str(path), f"is no price table: {error}")) from None
    except msgspec.DecodeError as error:
        raise ConfigError(Problem(str(path), f"is no JSON: {error}")) from None
    return {name: _sourced(name, prices) for name, prices in read.items()}


def _sourced(name: str, prices: ProviderPrices) -> ProviderPrices:
    """Each price says itself where it is from; what holds for any provider holds at any host."""
    models = {
        model: msgspec.structs.replace(
            price, source=price.source or prices.source, checked=price.checked or prices.checked
        )
        for model, price in prices.models.items()
    }
    hosts = prices.hosts or ((ANYWHERE,) if name == ANYWHERE else ())
    return msgspec.structs.replace(prices, models=models, hosts=hosts)
