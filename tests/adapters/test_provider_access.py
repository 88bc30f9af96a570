"""One refusal ends a run only where no call succeeds: the calls in flight decide, and no others are sent meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gradeline.adapters import ModelError
from gradeline.adapters.errors import CallerRefused, ErrorReport, ProviderAccess

FORBIDDEN = ModelError("status", "no", http_status=403, report=ErrorReport("no"))
UNAUTHORIZED = ModelError("status", "no", http_status=401, report=ErrorReport("no"))
BROKEN = ModelError("status", "broken", http_status=500)


def giving(outcome: str | ModelError, when: asyncio.Event | None = None) -> Callable[[], Awaitable[str]]:
    async def send() -> str:
        if when is not None:
            await when.wait()
        if isinstance(outcome, ModelError):
            raise ModelError(outcome.type, str(outcome), http_status=outcome.http_status, report=outcome.report)
        return outcome

    return send


async def outcomes(*calls: Awaitable[str]) -> list[str]:
    done = await asyncio.gather(*calls, return_exceptions=True)
    return [one if isinstance(one, str) else type(one).__name__ for one in done]


def test_a_refusal_without_any_success_ends_the_run() -> None:
    async def run() -> list[str]:
        return await outcomes(ProviderAccess().call(giving(FORBIDDEN)))

    assert asyncio.run(run()) == ["CallerRefused"]


def test_a_refusal_after_a_success_fails_only_that_request() -> None:
    async def run() -> list[str]:
        access = ProviderAccess()
        return await outcomes(access.call(giving("yes"))) + await outcomes(access.call(giving(FORBIDDEN)))

    assert asyncio.run(run()) == ["yes", "ModelError"]


def test_a_wrong_key_ends_the_run_at_once_whatever_is_in_flight() -> None:
    async def run() -> list[str]:
        access, late = ProviderAccess(), asyncio.Event()
        other = asyncio.ensure_future(access.call(giving("yes", late)))
        await asyncio.sleep(0)
        refused = await outcomes(access.call(giving(UNAUTHORIZED)))
        late.set()
        return [*refused, await other, *await outcomes(access.call(giving(UNAUTHORIZED)))]

    assert asyncio.run(run()) == ["CallerRefused", "yes", "CallerRefused"]


@pytest.mark.parametrize(
    ("other", "decided"), [("yes", ["ModelError", "yes"]), (BROKEN, ["CallerRefused", "ModelError"])]
)
def test_a_call_in_flight_decides_the_refusal(other: str | ModelError, decided: list[str]) -> None:
    async def run() -> list[str]:
        access, late = ProviderAccess(), asyncio.Event()
        slow = asyncio.ensure_future(access.call(giving(other, late)))
        refused = asyncio.ensure_future(access.call(giving(FORBIDDEN)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not refused.done()
        late.set()
        return await outcomes(refused, slow)

    assert asyncio.run(run()) == decided


def test_no_further_call_is_sent_while_a_refusal_is_undecided() -> None:
    async def run() -> tuple[list[str], list[str]]:
        access, late, sent = ProviderAccess(), asyncio.Event(), list[str]()

        async def further() -> str:
            sent.append("sent")
            return "further"

        calls = [asyncio.ensure_future(access.call(giving(FORBIDDEN, when))) for when in (late, None)]
        for _ in range(3):
            await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(access.call(further)))
        for _ in range(3):
            await asyncio.sleep(0)
        late.set()
        return await outcomes(*calls), sent

    assert asyncio.run(run()) == (["CallerRefused"] * 3, [])


def test_waiting_calls_are_sent_once_a_call_has_succeeded() -> None:
    async def run() -> list[str]:
        access, late = ProviderAccess(), asyncio.Event()
        calls = [
            asyncio.ensure_future(access.call(giving("yes", late))),
            asyncio.ensure_future(access.call(giving(FORBIDDEN))),
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        calls += [
            asyncio.ensure_future(access.call(giving(FORBIDDEN))),
            asyncio.ensure_future(access.call(giving("too"))),
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        late.set()
        return await outcomes(*calls)

    assert asyncio.run(run()) == ["yes", "ModelError", "ModelError", "too"]


def test_a_cancelled_call_does_not_hold_up_the_decision() -> None:
    async def run() -> list[str]:
        access = ProviderAccess()
        hanging = asyncio.ensure_future(access.call(giving("never", asyncio.Event())))
        refused = asyncio.ensure_future(access.call(giving(FORBIDDEN)))
        for _ in range(3):
            await asyncio.sleep(0)
        hanging.cancel()
        return await outcomes(refused)

    assert asyncio.run(run()) == ["CallerRefused"]


def test_a_later_attempt_is_sent_again() -> None:
    async def run() -> list[str]:
        access = ProviderAccess()
        return await outcomes(access.call(giving(FORBIDDEN))) + await outcomes(access.call(giving("fixed")))

    assert asyncio.run(run()) == ["CallerRefused", "fixed"]


def test_a_resumed_run_treats_the_first_refusals_as_single_requests() -> None:
    async def run() -> list[str]:
        access = ProviderAccess()
        access.resume(succeeded=False, failed=0)
        return [one for _ in range(3) for one in await outcomes(access.call(giving(FORBIDDEN)))]

    assert asyncio.run(run()) == ["ModelError", "ModelError", "CallerRefused"]


def test_resume_gets_past_stored_refusals() -> None:
    async def run() -> list[str]:
        access = ProviderAccess()
        access.resume(succeeded=False, failed=3)
        return [one for _ in range(9) for one in await outcomes(access.call(giving(FORBIDDEN)))]

    assert asyncio.run(run()) == ["ModelError"] * 8 + ["CallerRefused"]


def test_it_works_across_event_loops() -> None:
    access = ProviderAccess()
    with pytest.raises(CallerRefused):
        asyncio.run(access.call(giving(FORBIDDEN)))
    assert asyncio.run(access.call(giving("yes"))) == "yes"
    with pytest.raises(ModelError):
        asyncio.run(access.call(giving(FORBIDDEN)))
