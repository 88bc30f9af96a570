"""Secrets as a caller describes them, and what is checked before one is stored."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from gradeline.model import quote
from gradeline.model.masking import SHORTEST_MASKED, is_scheme
from gradeline.service.audit import Recorder
from gradeline.service.failures import ApiError, Code
from gradeline.service.keys import Keys
from gradeline.service.secrets import Binding, SecretInfo, Secrets

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])(?::[0-9]{{1,5}})?", re.ASCII | re.IGNORECASE)


def _checked_host(host: str) -> str:
    port = host.rpartition(":")[2]
    if _HOST.fullmatch(host) is None or (port.isdecimal() and not 0 < int(port) < 65_536):
        raise ValueError("write host or host:port, such as agent.example.com; the scheme has its own field")
    return host


Host = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_checked_host)]
KeyId = Annotated[str, Field(pattern="^[0-9a-f]{12}$")]


class SecretBody(BaseModel):
    """A secret, and where it may be sent."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"value": "Bearer 8f3kZq0w", "host": "agent.example.com", "scopes": ["run"]}]},
    )

    value: Annotated[
        str,
        Field(
            min_length=SHORTEST_MASKED,
            max_length=10_000,
            description="The whole value of the header, parameter or field; without its scheme at least 8 characters.",
        ),
    ]
    host: Annotated[
        Host | None, Field(description="Where it may be sent: `host`, or `host:port`. No port: the scheme's own.")
    ] = None
    hosts: Annotated[
        list[Host] | None, Field(min_length=1, max_length=20, description="Several such, instead of `host`.")
    ] = None
    scheme: Annotated[
        Literal["https", "http"],
        Field(description="`http` sends it unencrypted. A loopback host may be called by either."),
    ] = "https"
    place: Annotated[Literal["header", "query", "body"], Field(description="Where in a request it may be.")] = "header"
    scopes: Annotated[
        list[Literal["admin", "run"]],
        Field(max_length=2, description="The scopes of keys that may use it; `admin` always may."),
    ] = ["admin"]
    keys: Annotated[
        list[KeyId], Field(max_length=100, description="Ids of further keys that may use it.", examples=[[]])
    ] = []

    @field_validator("value")
    @classmethod
    def _can_be_sent_and_masked(cls, value: str) -> str:
        if not value.strip() or any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in value):
            raise ValueError("a secret has no line breaks or control characters and is not blank")
        scheme, _, token = value.partition(" ")
        if is_scheme(scheme) and len(token.strip()) < SHORTEST_MASKED:
            raise ValueError(f"a secret has at least {SHORTEST_MASKED} characters after {scheme}")
        return value

    def binding(self) -> Binding:
        """Where it may be sent, and who may use it."""
        if (self.host is None) is (self.hosts is None):
            if self.host is None:
                raise ApiError(Code.MISSING_FIELD, "Field 'host' is required (or 'hosts')")
            raise ApiError(Code.INVALID_INPUT, "Fields 'host' and 'hosts' exclude each other")
        hosts = dict.fromkeys(self.hosts or [self.host or ""])
        return Binding(tuple(hosts), self.scheme, self.place, tuple(sorted({"admin", *self.scopes})), tuple(self.keys))


class SecretList(Struct, frozen=True):
    """All secrets, without their values."""

    secrets: list[SecretInfo]
    count: int
    total: int


def store_secret(secrets: Secrets, keys: Keys, name: str, body: SecretBody, record: Recorder) -> SecretInfo:
    """Store a secret, or replace it; `ApiError` where its name is invalid or it is for a key that does not exist."""
    if _NAME.fullmatch(name) is None:
        reason = "is not a valid name: letters, digits, _, - and ., at most 100"
        raise ApiError(Code.INVALID_INPUT, f"{quote(name, 120)} {reason}")
    binding = body.binding()
    for key in binding.keys:
        if keys.get(key) is None:
            raise ApiError(
                Code.INVALID_INPUT, f"Field 'keys': no key {quote(key)}; list them with: gradeline keys list"
            )
    return secrets.put(name, body.value, binding, record)
