"""Every operation with valid and invalid input generated from the OpenAPI document: no defect, nothing undocumented."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.transport.asgi import ASGI_TRANSPORT
from starlette.testclient import TestClient

from gradeline.service.app import application, create_app
from gradeline.service.limits import RequestLimits
from gradeline.service.openapi import openapi_of
from gradeline.service.service import build_service
from gradeline.service.settings import ServeSettings

from .conftest import BASE_URL, MASTER_KEY

schemathesis.serializer.alias("application/x-ndjson", "text/plain")

EXAMPLES = 8
_FROM_THE_PATH = {404, 405}
"""Text instead of an ID may be another path, or none."""


@pytest.fixture(params=["sqlite", "postgresql"])
def fuzzed(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """The application on either database, and its description."""
    store = "memory://" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    service = build_service(ServeSettings(store=store, secret_key=MASTER_KEY))
    app = application(service, RequestLimits(rate=1e9, burst=10**9))
    try:
        with TestClient(app, base_url=BASE_URL, raise_server_exceptions=False):
            yield without_lifespan(app), schemathesis.openapi.from_dict(openapi_of(create_app(service)))
    finally:
        service.stop()


def without_lifespan(app: Any) -> Any:
    """The fuzzer starts and stops an application more than once, the service can be started once."""

    async def started_already(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for act in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{act}.complete"})
        else:
            await app(scope, receive, send)

    return started_already


def operations(schema: Any) -> Iterator[Any]:
    for found in schema.get_all_operations():
        operation = found.ok()
        # a stream has no end
        if not operation.path.endswith("/events"):
            yield operation


def check(app: Any, operation: Any, mode: Any) -> None:
    documented = {int(status) for status in operation.definition.raw["responses"]}

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def answers_as_documented(case: Any) -> None:
        answer = ASGI_TRANSPORT.send(case, app=app, base_url=BASE_URL)
        result = (operation.label, answer.status_code, answer.text[:300])
        assert answer.status_code < 500, result
        assert answer.status_code in documented | _FROM_THE_PATH, result
        assert answer.headers["x-content-type-options"] == ["nosniff"], result

    # an operation without parameters has no input that could be wrong
    with contextlib.suppress(Unsatisfiable):
        answers_as_documented()


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_no_input_finds_a_defect_or_an_answer_that_is_not_documented(fuzzed: tuple[Any, Any], mode: Any) -> None:
    app, schema = fuzzed
    for operation in operations(schema):
        check(app, operation, mode)


LINKS = {
    "/api/test-cases": ("test_case_id", "id"),
    "/api/graders": ("grader_id", "id"),
    "/api/evaluations": ("evaluation_id", "id"),
}
"""The ID that each POST returns: the name of the parameter in other operations, and its path in the response."""
STEPS = 4
SEQUENCES = 3


def linked(description: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document, with links from each created object to every operation on it."""
    for place, (parameter, field) in LINKS.items():
        made = next(
            answer for status, answer in description["paths"][place]["post"]["responses"].items() if status < "3"
        )
        made["links"] = {
            operation["operationId"]: {
                "operationId": operation["operationId"],
                "parameters": {f"path.{parameter}": f"$response.body#/data/{field}"},
            }
            for path, operations in description["paths"].items()
            for operation in operations.values()
            # a stream has no end
            if f"{{{parameter}}}" in path and not path.endswith("/events")
        }
    return description


@pytest.mark.parametrize("fuzzed", ["sqlite"], indirect=True)
def test_no_sequence_of_requests_finds_a_defect(fuzzed: tuple[Any, Any]) -> None:
    app, schema = fuzzed
    machine = schemathesis.openapi.from_dict(linked(schema.raw_schema)).as_state_machine()
    followed: list[int] = []

    class Sequences(machine):  # type: ignore[misc, valid-type]
        def call(self, case: Any, **_: Any) -> Any:
            return ASGI_TRANSPORT.send(case, app=app, base_url=BASE_URL)

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            followed.append(response.status_code)
            assert response.status_code < 500, (case.operation.label, response.status_code, response.text[:300])

    sequences = settings(
        max_examples=SEQUENCES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    Sequences.run(settings=sequences)
    assert {status // 100 for status in followed} >= {2, 4}
