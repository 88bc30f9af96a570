"""Rows of the log of routed requests: from decisions, and as rewards of policies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import fsum

import msgspec

from gradeline.model import Storage
from gradeline.model.observation import utc_text
from gradeline.model.route import LoggedRequest, RouteCall, RouteChoice
from gradeline.store.route_log import JudgedRequest, arm_totals, judged_requests
from gradeline.trust.off_policy import LoggedReward
from gradeline.trust.outcomes import LABEL
from gradeline.trust.route_file import RouteFile


def logged_request(
    route: RouteFile,
    choice: RouteChoice,
    *,
    served_by: str | None,
    calls: Sequence[RouteCall] = (),
    latency_ms: float | None = None,
    at: datetime | None = None,
) -> LoggedRequest:
    """The row of a decision and of the calls made for it. Its cost is unknown if that of any call is."""
    costs = [call.cost for call in calls]
    known = [cost for cost in costs if cost is not None]
    return LoggedRequest(
        id=choice.id,
        route=route.route,
        at=utc_text(at or datetime.now(UTC)),
        family=choice.family,
        arm=choice.arm,
        propensities=msgspec.json.encode(choice.propensities).decode(),
        served_by=served_by,
        table_number=choice.table,
        reason=choice.reason,
        calls=msgspec.json.encode(list(calls)).decode(),
        cost=fsum(known) if costs and len(known) == len(costs) else None,
        latency_ms=latency_ms,
    )


def logged_rewards(storage: Storage, route: RouteFile) -> tuple[list[LoggedReward], int]:
    """The rewards of the route's requests, and the number of requests without one.

    A reward is the outcome, a label before a judge's verdict, minus the weighted cost. Where cost counts and the cost
    of a request is unknown, that of its arm in the route file is used; without it the reward is unknown.
    """
    outcomes: dict[str, JudgedRequest] = {}
    after = 0
    while page := judged_requests(storage, route.route, after):
        after = page[-1].request.n
        for one in page:
            before = outcomes.get(one.request.id)
            if before is None or before.outcome.source != LABEL or one.outcome.source == LABEL:
                outcomes[one.request.id] = one
    rewards = [reward for one in outcomes.values() if (reward := _reward(route, one)) is not None]
    return rewards, sum(arm.requests for arm in arm_totals(storage, route.route)) - len(rewards)


def _reward(route: RouteFile, found: JudgedRequest) -> LoggedReward | None:
    request = found.request
    cost = request.cost
    if cost is None:
        cost = next((arm.cost for arm in route.arms if arm.name == request.arm), None)
    if route.cost_weight > 0 and cost is None:
        return None
    propensities = msgspec.json.decode(request.propensities, type=dict[str, float])
    reward = found.outcome.score - (route.cost_weight * cost if cost is not None else 0.0)
    return LoggedReward(request.family, request.arm, propensities, reward)
