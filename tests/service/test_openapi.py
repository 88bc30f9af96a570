"""The OpenAPI document describes the actual responses of the service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from msgspec import Struct
from pydantic import BaseModel

from gradeline.service.app import create_app
from gradeline.service.auth import KeyScope, scope_of
from gradeline.service.errors import Code, ServiceError
from gradeline.service.openapi import COMPONENTS, EXAMPLE, document_responses, failure_schema, openapi_of, operations_of
from gradeline.service.responses import failure
from gradeline.service.service import build_service
from gradeline.service.settings import ServeSettings

from .conftest import Call

Operation = tuple[str, str, dict[str, Any]]


def has_envelope(path: str) -> bool:
    return path != "/api/openapi.json" and not path.endswith("/export")


@pytest.fixture(scope="module")
def document() -> Iterator[dict[str, Any]]:
    service = build_service(ServeSettings(store="memory://"))
    try:
        yield openapi_of(create_app(service))
    finally:
        service.stop()


def operations(document: dict[str, Any]) -> list[Operation]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "put", "post", "delete", "patch")
    ]


def whole(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """A self-contained schema."""
    return {**schema, "components": document["components"]}


def test_the_document_is_served_without_an_envelope(call: Call) -> None:
    answer = call("GET", "/api/openapi.json")
    assert (answer.status, answer.body["openapi"], answer.body["info"]["title"]) == (200, "3.1.0", "gradeline")


def test_every_operation_has_a_unique_id_and_a_description(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in ids)
    assert [path for _, path, operation in operations(document) if not operation.get("description")] == []
    assert [path for _, path, operation in operations(document) if not operation.get("tags")] == []


def test_422_is_documented_only_for_starting_a_run(document: dict[str, Any]) -> None:
    documented = [(method, path) for method, path, operation in operations(document) if "422" in operation["responses"]]
    assert documented == [("post", "/api/evaluations")]
    assert "ValidationError" not in str(document)


def test_every_answer_with_json_is_the_envelope(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items():
            if status == "204":
                assert "content" not in response
                continue
            documented = response.get("content", {}).get("application/json")
            if not status.startswith("2"):
                assert documented is not None, (method, path, status)
                assert documented["schema"] == {"$ref": "#/components/schemas/Failure"}, (method, path, status)
            elif documented is not None and has_envelope(path):
                schema = documented["schema"]
                assert schema["required"] == ["success", "data", "error"], (method, path, status)


def test_every_operation_documents_success_and_the_common_failures(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        statuses = set(operation["responses"])
        assert any(status.startswith("2") for status in statuses), (method, path)
        assert statuses >= {"403", "421", "429", "500", "503"}, (method, path)
        if operation["security"]:
            assert "401" in statuses, (method, path)
        if "requestBody" in operation:
            assert statuses >= {"400", "408", "413", "415"}, (method, path)
        assert ("507" in statuses) is (method != "get"), (method, path)


def test_every_operation_documents_its_scope(document: dict[str, Any]) -> None:
    service = build_service(ServeSettings(store="memory://"))
    scopes = {
        (method.lower(), route.path_format): scope_of(route.endpoint)
        for route, method in operations_of(create_app(service))
    }
    service.stop()
    assert set(document["components"]["securitySchemes"]) == {"key", "session"}
    for method, path, operation in operations(document):
        scope = scopes[method, path]
        assert scope is not None
        if scope is KeyScope.PUBLIC:
            assert operation["security"] == []
        else:
            assert operation["security"] == [{"key": []}, {"session": []}]
            assert f"scope `{scope.value}`" in operation["description"]


def test_every_body_has_an_example_that_fits_it(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            examples = (
                [content["example"]]
                if "example" in content
                else [one["value"] for one in content.get("examples", {}).values()]
            )
            assert examples, (method, path, kind)
            if kind == "application/json":
                checker = jsonschema_rs.validator_for(whole(content["schema"], document))
                for example in examples:
                    assert [str(error) for error in checker.iter_errors(example)] == [], (method, path)


def required_query(operation: dict[str, Any]) -> str:
    """The required query parameters with their examples."""
    names = [one for one in operation.get("parameters", []) if one["in"] == "query" and one["required"]]
    query = "&".join(f"{one['name']}={one['schema']['examples'][0]}" for one in names)
    return f"?{query}" if query else ""


def test_the_example_bodies_are_accepted(document: dict[str, Any], call: Call) -> None:
    """Only the IDs in them are invented."""
    for method, path, operation in operations(document):
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            example, filled = content["example"], f"{path.replace('{', '').replace('}', '')}{required_query(operation)}"
            if kind == "application/json":
                answer = call(method.upper(), filled, json=example)
            elif kind == "multipart/form-data":
                answer = call(method.upper(), filled, files={"file": ("cases.csv", example["file"], "text/csv")})
            else:
                answer = call(method.upper(), filled, content=example.encode(), headers={"Content-Type": kind})
            if answer.status not in (200, 201):
                code = answer.error["code"]
                assert code in ("NOT_FOUND", "UNAUTHORIZED", "INVALID_TEST_CASE_ID"), (method, path, answer.body)


def test_every_example_of_an_answer_fits_its_schema(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items():
            for content in response.get("content", {}).values():
                if "example" in content and "schema" in content:
                    checker = jsonschema_rs.validator_for(whole(content["schema"], document))
                    errors = [str(error) for error in checker.iter_errors(content["example"])]
                    assert errors == [], (method, path, status)


def test_every_answer_with_data_has_an_example(document: dict[str, Any]) -> None:
    without = [
        (method, path, status)
        for method, path, operation in operations(document)
        for status, response in operation["responses"].items()
        for kind, content in response.get("content", {}).items()
        if kind == "application/json" and "example" not in content and has_envelope(path)
    ]
    assert without == []


def test_every_reference_resolves_and_no_internal_keys_are_left(document: dict[str, Any]) -> None:
    text = str(document)
    names = set(re.findall(r"#/components/schemas/([\w.-]+)", text))
    assert names - set(document["components"]["schemas"]) == set()
    assert "x-gradeline" not in text


def test_parameters_have_types_and_numbers_have_bounds(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", []):
            schema = parameter["schema"]
            kinds = [schema, *schema.get("anyOf", [])]
            assert any("type" in kind or "$ref" in kind or "enum" in kind for kind in kinds), (method, path, parameter)
            for kind in kinds:
                if kind.get("type") == "integer":
                    assert {"minimum", "maximum"} <= kind.keys(), (method, path, parameter["name"])


def test_the_headers_of_the_contract_are_documented(document: dict[str, Any]) -> None:
    def headers(method: str, path: str) -> set[str]:
        parameters = document["paths"][path][method].get("parameters", [])
        return {one["name"].lower() for one in parameters if one["in"] == "header"}

    assert "idempotency-key" in headers("post", "/api/evaluations")
    (events,) = [path for path in document["paths"] if path.endswith("/events")]
    assert "last-event-id" in headers("get", events)


def test_a_failure_fits_its_schema() -> None:
    checker = jsonschema_rs.validator_for(failure_schema())
    for code in Code:
        for details in (None, {"errors": []}):
            body = bytes(failure(ServiceError(code, "m", details=details)).body)
            import json

            assert checker.is_valid(json.loads(body))


class Inner(Struct):
    a: int


class Outer(Struct):
    inner: Inner | None
    """None where there is none."""


class Model(BaseModel):
    inner: list[int]


def test_responses_are_documented_from_their_types() -> None:
    documented = document_responses(Outer, 201, (404,), example=Outer(None))
    assert set(documented) == {201, 404}
    content = documented[201]["content"]["application/json"]
    assert content["schema"]["properties"]["data"] == {"$ref": "#/components/schemas/Outer"}
    assert content[EXAMPLE] == '{"success":true,"data":{"inner":null},"error":null}'
    assert set(documented[201][COMPONENTS]) == {"Inner", "Outer"}


def test_models_schemas_and_empty_responses_can_be_documented_too() -> None:
    model = document_responses(Model)[200]["content"]["application/json"]["schema"]["properties"]["data"]
    assert model["properties"]["inner"] == {"items": {"type": "integer"}, "title": "Inner", "type": "array"}
    plain = document_responses({"type": "string"}, content_type="text/csv", errors=())
    assert plain[200]["content"] == {"text/csv": {"schema": {"type": "string"}}}
    assert document_responses(status=204, errors=()) == {204: {"description": "Done.", COMPONENTS: {}}}
