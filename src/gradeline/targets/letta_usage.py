"""What an agent of letta used, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from gradeline.model import Config, described
from gradeline.model.response import Usage

_CACHE_READ = ("cached_tokens", "cache_read_tokens", "cache_read_input_tokens", "cached_input_tokens")
_CACHE_WRITTEN = ("cache_creation_tokens", "cache_creation_input_tokens")
"""Where providers tell them, within ``prompt_tokens_details``."""
_MILLION = 1_000_000
_LARGEST = 2**53

_Price = Annotated[float, msgspec.Meta(ge=0)]


class Rates(Config, frozen=True, kw_only=True):
    """What a million tokens of a model cost. Without a rate of its own the cache costs what input does."""

    input_per_mtok: Annotated[_Price, described("A million input tokens.")]
    output_per_mtok: Annotated[_Price, described("A million output tokens.")]
    cache_read_per_mtok: Annotated[_Price | None, described("A million input tokens read from the cache.")] = None
    cache_write_per_mtok: Annotated[_Price | None, described("A million input tokens written to the cache.")] = None


def usage_of(records: Sequence[Mapping[str, Any]], rates: Rates | None) -> Usage | None:
    """The sum of letta's usage records, one a call. What one of them does not tell is unknown of all."""
    if not records:
        return None
    prompts = [_count(record, "prompt_tokens") for record in records]
    completions = [_count(record, "completion_tokens") for record in records]
    cached = [_count(record, "cached_input_tokens", _CACHE_READ) for record in records]
    written = [_count(record, "cache_write_tokens", _CACHE_WRITTEN) for record in records]
    usage = Usage(_total(prompts), _total(completions), _total(cached))
    if rates is not None and usage.input_tokens is not None and usage.output_tokens is not None:
        read, wrote = sum(count or 0 for count in cached), sum(count or 0 for count in written)
        cost = _cost(rates, usage.input_tokens, usage.output_tokens, read, wrote)
        usage = msgspec.structs.replace(usage, cost=cost)
    return None if usage == Usage() else usage


def _cost(rates: Rates, prompt: int, completion: int, read: int, written: int) -> float:
    """Letta counts what was read from the cache and what was written to it as part of the prompt."""
    plain = max(prompt - read - written, 0)
    read_rate = rates.input_per_mtok if rates.cache_read_per_mtok is None else rates.cache_read_per_mtok
    write_rate = rates.input_per_mtok if rates.cache_write_per_mtok is None else rates.cache_write_per_mtok
    total = plain * rates.input_per_mtok + read * read_rate + written * write_rate + completion * rates.output_per_mtok
    return total / _MILLION


def _count(record: Mapping[str, Any], name: str, nested: Sequence[str] = ()) -> int | None:
    details = record.get("prompt_tokens_details")
    told = [record.get(name), *(details.get(key) for key in nested if isinstance(details, Mapping))]
    counts = [count for count in told if isinstance(count, int) and not isinstance(count, bool)]
    # a 0 at the top may stand beside the true number in the details
    return next((count for count in counts if 0 < count < _LARGEST), 0 if 0 in counts else None)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
