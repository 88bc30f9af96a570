from __future__ import annotations

import pytest

from gradeline.engine.execute import ConnectionBreaker
from gradeline.errors import Fault
from gradeline.model import ErrorInfo, Response


def failed(error_type: str = "connect") -> Response:
    return Response(status="error", error=ErrorInfo(error_type, "no one listens", Fault.INFRASTRUCTURE))


def reasons(breaker: ConnectionBreaker, *responses: Response) -> list[str | None]:
    """Its results for consecutive calls."""
    return [breaker.end(breaker.begin(), response.error) for response in responses]


@pytest.mark.parametrize("error_type", ["connect", "dns", "tls", "reset"])
def test_it_stops_the_run_at_the_limit_with_a_remedy(error_type: str) -> None:
    *before, last = reasons(ConnectionBreaker(3), *[failed(error_type)] * 3)
    assert before == [None, None]
    assert last == (
        f"the agent cannot be reached: 3 calls in a row failed, the last one with {error_type}: no one listens;"
        " check that the agent is running and that its address is right"
    )


@pytest.mark.parametrize("reached", [Response(text="4"), failed("status"), failed("timeout"), failed("bad_response")])
def test_any_response_of_the_agent_resets_the_count(reached: Response) -> None:
    breaker = ConnectionBreaker(3)
    assert reasons(breaker, failed(), failed(), reached, failed(), failed()) == [None] * 5
    assert reasons(breaker, failed())[0] is not None


def test_calls_in_flight_when_the_agent_went_down_count_once() -> None:
    breaker = ConnectionBreaker(3)
    together = [breaker.begin() for _ in range(50)]
    assert [breaker.end(call, failed().error) for call in together] == [None] * 50
    assert [reason is None for reason in reasons(breaker, failed(), failed())] == [True, False]


def test_zero_disables_the_limit() -> None:
    assert reasons(ConnectionBreaker(0), *[failed()] * 100) == [None] * 100
