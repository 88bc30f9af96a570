"""Whether a provider takes the caller's calls: what makes one refusal the end of a run, and another one case's error.

A wrong key (401) or a used-up account refuses every call. A 403 or an unknown model may be about the caller or about
one request: a call that succeeded shows which. Without one, the calls in flight are waited for before it is decided,
and no further call is sent meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

from gradeline.adapters.failures import ModelError
from gradeline.errors import AgentError, GradelineError

T = TypeVar("T")
_PATIENCE = 2
Reach = Literal["request", "caller", "unclear"]
"""What a failure concerns: one request, everything this caller sends, or one of these."""


class CallerRefused(GradelineError):  # noqa: N818 - read as the outcome of a call
    """Every call would be refused like this one until a person has fixed something; ``error`` has the reason."""

    def __init__(self, error: AgentError) -> None:
        super().__init__(str(error))
        self.error = error


def reach_of(error: AgentError) -> Reach:
    """What a failed model call concerns."""
    if not isinstance(error, ModelError) or error.obstacle is None:
        return "request"
    return "caller" if error.of_caller else "unclear"


class Access:
    """What the answers of one provider so far show; safe among the tasks of any number of event loops."""

    def __init__(self, reach: Callable[[AgentError], Reach] = reach_of) -> None:
        self.granted = False
        """A call succeeded, now or earlier in the same run: a refusal of unclear reach is of one request."""
        self.patience = 0
        """How many refusals are taken for those of single requests although no call succeeded yet."""
        self._reach = reach
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, _Flight] = WeakKeyDictionary()

    def resume(self, *, succeeded: bool, failed: int | None = None) -> None:
        """Calls of the run succeeded before, or not; ``failed`` of a resumed run did not, None is a new run.

        A run that was stopped by refusals of single requests must not be stopped by the same ones again. So a resumed
        run takes more refusals than it holds failures, and each time it is resumed it gets further.
        """
        self.granted = self.granted or succeeded
        if failed is not None:
            self.patience = _PATIENCE * (1 + failed)

    async def call(self, send: Callable[[], Awaitable[T]]) -> T:
        """What ``send`` gives, or its error; `CallerRefused` where no other call would fare better."""
        flight = self._flights.setdefault(asyncio.get_running_loop(), _Flight())
        await flight.decided()
        flight.calls += 1
        try:
            result = await send()
        except AgentError as error:
            flight.land(granted=self.granted)
            reach = self._reach(error)
            if reach == "caller":
                raise CallerRefused(error) from error
            if reach == "unclear" and not self.granted:
                if self.patience <= 0:
                    await flight.decide(error)
                self.patience -= 1
            raise
        except BaseException:
            flight.land(granted=self.granted)
            raise
        self.granted = True
        flight.land(granted=True)
        return result


class _Flight:
    """The calls of one event loop, and the refusal among them that is not decided yet."""

    def __init__(self) -> None:
        self.calls = 0
        self._refusal: AgentError | None = None
        self._decision: asyncio.Future[AgentError | None] | None = None

    async def decided(self) -> None:
        """Wait while it is undecided whether calls are refused; `CallerRefused` if they are."""
        while self._decision is not None:
            await self._outcome(self._decision)

    async def decide(self, error: AgentError) -> None:
        """Wait for the calls in flight; `CallerRefused` where none of them succeeds."""
        if self._decision is None:
            self._refusal = error
            self._decision = asyncio.get_running_loop().create_future()
        decision = self._decision
        self._settle(granted=False)
        await self._outcome(decision)

    def land(self, *, granted: bool) -> None:
        """A call has ended."""
        self.calls -= 1
        self._settle(granted=granted)

    def _settle(self, *, granted: bool) -> None:
        decision = self._decision
        if decision is None or not (granted or self.calls == 0):
            return
        # forgotten here: an error holds the frames it passed through, and with them all that they refer to
        refusal, self._refusal, self._decision = self._refusal, None, None
        if not decision.done():
            decision.set_result(None if granted else refusal)

    @staticmethod
    async def _outcome(decision: asyncio.Future[AgentError | None]) -> None:
        refusal = await asyncio.shield(decision)
        if refusal is not None:
            raise CallerRefused(refusal) from refusal
