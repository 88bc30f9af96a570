"""Calls the agent: concurrency, rate limit, budget and connection failures; each response is stored first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from msgspec.structs import replace

from gradeline.engine.definition import RunBudget
from gradeline.engine.plan import Planned
from gradeline.errors import ProviderRefusedError, StoreError, response_policy
from gradeline.failpoints import failpoint
from gradeline.model import ErrorInfo, Response, Sample, Storage, Target, Usage
from gradeline.model.context import copy_sample, is_own_class
from gradeline.model.protocols import StoreWriter
from gradeline.model.rate_limit import RateLimiter

INTERRUPTED_REASON = "interrupted"
"""The reason of a run that a person interrupted."""


class Stop:
    """Tells a run to end, and why. Only the first reason counts."""

    def __init__(self, outer: Stop | None = None) -> None:
        """``outer`` stops several runs; a stop of this run stops those too, unless its comparison was decided."""
        self.reason: str | None = None
        self.failed = False
        """The reason is a problem that a person must fix: the run has failed."""
        self.decided = False
        """The reason is that the comparison is decided: the run is complete."""
        self._event = asyncio.Event()
        self._outer = outer
        self._inner: list[Stop] = []
        if outer is not None:
            outer._inner.append(self)
            if outer.reason is not None:
                self._receive(outer.reason, failed=outer.failed)

    def set(self, reason: str, *, failed: bool = False) -> None:
        if self.reason is not None:
            return
        if self._outer is not None:
            self._outer.set(reason, failed=failed)
        self._receive(reason, failed=failed)

    def decide(self, reason: str) -> None:
        """Stop only this run: its comparison is decided."""
        self.decided = self.reason is None
        self._receive(reason, failed=False)

    def _receive(self, reason: str, *, failed: bool) -> None:
        if self.reason is None:
            self.reason = reason
            self.failed = failed
        self._event.set()
        for one in self._inner:
            one._receive(reason, failed=failed)

    async def sleep(self, seconds: float) -> None:
        """Wait for this time, or until the run is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


DEFAULT_LIMIT = 20
"""Connection failures in a row after which a run ends."""

_UNREACHED = frozenset({"connect", "dns", "tls", "reset"})
"""Error types of calls that did not reach the agent."""


class ConnectionBreaker:
    """Counts connection failures in a row. Any other end of a call shows that the agent is up, and resets the count.

    Calls that were in flight when the first of them failed are not counted, however many they are: an agent that is
    restarted fails all of them at once.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        """0: no limit."""
        self._begun = 0
        self._failed = 0
        self._counted_from = 0

    def begin(self) -> int:
        """The number of a call that begins, for `end`."""
        self._begun += 1
        return self._begun

    def end(self, call: int, error: ErrorInfo | None) -> str | None:
        """Count how a call ended; the reason if the run must stop."""
        if error is None or error.type not in _UNREACHED:
            self._failed = 0
            return None
        if self._failed == 0:
            self._counted_from = self._begun + 1
            self._failed = 1
        elif call >= self._counted_from:
            self._failed += 1
        if not self._limit or self._failed < self._limit:
            return None
        return (
            f"the agent cannot be reached: {self._failed} calls in a row failed, the last one with {error.type}:"
            f" {error.message}; check that the agent is running and that its address is right"
        )


if TYPE_CHECKING:
    from gradeline.adapters.costs import Price

_log = logging.getLogger("gradeline")


class Rate(NamedTuple):
    """Maximum calls in a number of seconds."""

    calls: int
    per: float


class CallLimits(NamedTuple):
    """Limits on the calls of the agent."""

    concurrency: int = 15
    rate: Rate | None = None
    budget: RunBudget = RunBudget()
    cache: bool = False
    """Use a stored response to the same input."""
    connection_failures: int = DEFAULT_LIMIT
    """Maximum connection failures in a row; 0: no limit."""


AGENT, RUN = "the agent", "the run"
PRICE_REMEDY = (
    "give a price with prices: in the suite or with --assume-price INPUT/OUTPUT (US dollars per million tokens), or"
    " limit calls instead"
)
_USAGE_REMEDY = f"let it report its usage (usage under the target's response:), and {PRICE_REMEDY}"


class Spending:
    """What a run has spent, before this process began and since.

    ``priced`` are those whose calls have a known price, the graders by their keys and `AGENT`; ``unpriced`` are those
    whose calls are known to have none.
    """

    def __init__(
        self,
        budget: RunBudget,
        calls: int = 0,
        cost: float = 0.0,
        priced: Collection[str] = (),
        unpriced: Collection[str] = (),
    ) -> None:
        self._budget = budget
        self._limited = budget != RunBudget()
        self._calls = calls
        self._cost = cost
        self._known = cost > 0
        """True if the cost of any call is known."""
        self._priced = frozenset(priced)
        self._unknown = set(unpriced)
        """The payees whose calls have an unknown cost."""

    @property
    def limits_cost(self) -> bool:
        """True if the costs of calls have to be counted."""
        return self._budget.cost is not None

    def begin(self) -> str | None:
        """Count a call; the reason if no more calls may be made."""
        if not self._limited:
            self._calls += 1
            return None
        if self._budget.calls is not None and self._calls >= self._budget.calls:
            return f"the budget of {self._budget.calls} calls is spent"
        spent = self.over()
        if spent is None:
            self._calls += 1
        return spent

    def over(self) -> str | None:
        """The reason if nothing more may be paid."""
        if self._budget.cost is not None and self._cost >= self._budget.cost:
            return f"the budget of {self._budget.cost:g} is spent: {self._cost:g} after {self._calls} calls"
        return None

    def paid(self, usage: Usage | None, payee: str = AGENT) -> str | None:
        """Count what a response or a judge's verdict cost; the reason if the run must stop because that is unknown.

        A cost limit has no effect if no cost is known. If other calls have one, this is only a warning.
        """
        cost = None if usage is None else usage.cost
        if cost is not None:
            self._cost += cost
            self._known = True
            return None
        if self._budget.cost is None or payee in self._unknown:
            return None
        self._unknown.add(payee)
        unknown = f"no cost is known for the calls of {payee}"
        remedy = _USAGE_REMEDY if usage is None and payee == AGENT else PRICE_REMEDY
        if self._known or self._priced - {payee}:
            _log.warning("%s: they do not count towards the budget of %g; %s", unknown, self._budget.cost, remedy)
            return None
        return f"{unknown}, so that the budget of {self._budget.cost:g} limits nothing; {remedy}"


class CallRateLimiter(Protocol):
    """Limits the rate of calls."""

    async def wait(self, stop: Stop) -> None:
        """Return when a call may be made, or when the run is stopped."""


class LocalCallRateLimiter:
    """Limits the rate of the calls of this event loop."""

    def __init__(self, rate: Rate) -> None:
        self._limiter = RateLimiter(rate.calls, rate.per)

    async def wait(self, stop: Stop) -> None:
        pause = self._limiter.reserve()
        if pause > 0:
            await stop.sleep(pause)


class CallSlots:
    """Limits the calls in flight, their rate and their connection failures."""

    def __init__(
        self, concurrency: int, turns: CallRateLimiter | None = None, breaker: ConnectionBreaker | None = None
    ) -> None:
        self.semaphore = asyncio.Semaphore(concurrency)
        self.turns = turns
        self.breaker = breaker or ConnectionBreaker()

    @classmethod
    def of(cls, limits: CallLimits) -> Self:
        turns = None if limits.rate is None else LocalCallRateLimiter(limits.rate)
        return cls(limits.concurrency, turns, ConnectionBreaker(limits.connection_failures))


class Executor:
    """Calls a target. A slot is free only after the response is committed, so concurrency limits unstored responses."""

    def __init__(
        self,
        target: Target,
        storage: Storage,
        writer: StoreWriter,
        slots: CallSlots,
        spending: Spending,
        stop: Stop,
        *,
        cache: bool = False,
        price: Price | None = None,
    ) -> None:
        """``price`` is the user's price for the target's tokens."""
        self._price = price
        self._counts = spending.limits_cost and getattr(target, "pricing", None) != "free"
        self._stop = stop
        self._target = target
        self._storage = storage
        self._writer = writer
        self._cache = cache
        self._spending = spending
        self._slots = slots
        self._ours = is_own_class(type(target))

    async def execute(self, planned: Planned) -> Response | None:
        """The agent's response, stored; None if the run was stopped before the call."""
        key, sample = planned.key, planned.sample
        async with self._slots.semaphore:
            try:
                cache_key = self._target.cache_key(sample, key.repeat) if self._cache else None
                response = None if cache_key is None else self._storage.cached_response(cache_key)
                if response is None:
                    if self._slots.turns is not None:
                        await self._slots.turns.wait(self._stop)
                    if not self._may_call():
                        return None
                    response = await self._call(sample)
                failpoint("response-received")
                await self._writer.put_response(key, response, sample, planned.position, cache_key)
                failpoint("response-stored")
            except StoreError as error:
                self._stop.set(str(error))  # the next call for this slot must not be made: it could not be stored
                raise
        return response

    async def _call(self, sample: Sample) -> Response:
        breaker = self._slots.breaker
        call = breaker.begin()
        try:
            response = await self._target.respond(sample if self._ours else copy_sample(sample))
        except ProviderRefusedError as error:  # stored as the case's failed call: `resume` counts those
            self._stop.set(str(error), failed=True)
            info = ErrorInfo("status", str(error), response_policy("status").fault)
            response = Response(status="error", error=info)
        if self._price is not None:
            response = self._with_cost(response, self._price)
        if self._counts:
            self._count(response)
        unreachable = breaker.end(call, response.error)
        if unreachable is not None:
            self._stop.set(unreachable, failed=True)
        return response

    def _with_cost(self, response: Response, price: Price) -> Response:
        """The response with the cost of its tokens, if the agent reports none."""
        usage = response.usage
        if usage is None or usage.cost is not None:
            return response
        from gradeline.adapters.costs import Tokens  # few runs are given prices

        cost = price.cost(Tokens(usage.input_tokens, usage.output_tokens, usage.cached_tokens))
        return response if cost is None else replace(response, usage=replace(usage, cost=cost))

    def _count(self, response: Response) -> None:
        if response.error is not None and response.usage is None:
            return
        unknown = self._spending.paid(response.usage)
        if unknown is not None:
            self._stop.set(unknown)

    def _may_call(self) -> bool:
        if self._stop.reason is None:
            spent = self._spending.begin()
            if spent is not None:
                self._stop.set(spent)
        return self._stop.reason is None
