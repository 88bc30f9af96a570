"""Agent factories: a suite's own functions that create an agent on a letta server for each sample.

Only a worker process calls `create_agent` and `letta_client`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from gradeline.errors import BadReplyError, DataError
from gradeline.model import Sample, clean_data, quote

AGENT_FACTORY = "agent_factory"
CLIENT_PACKAGE = "letta-client"
"""The package of the client that a factory gets."""
INSTALL_COMMAND = f"pip install '{CLIENT_PACKAGE}>=1,<2'"
INSTALL_OLD_COMMAND = f"pip install '{CLIENT_PACKAGE}<1'"
"""For code written before release 1.0, which removed CreateBlock and MessageCreate."""


# Letta lets a factory change the input and the variables of its sample. Built with `defstruct`, since type checkers
# refuse a mutable subclass of a frozen struct.
_FactorySample = msgspec.defstruct("Sample", [], bases=(Sample,), module=__name__, frozen=False)


class CreatedAgent(msgspec.Struct, frozen=True):
    """The agent, and the sample as the factory left it."""

    agent_id: str
    input: str | list[str]
    extra_vars: dict[str, Any]


def is_client_installed() -> bool:
    """True if the real client is installed, not only gradeline's stand-in for its message classes."""
    spec = find_spec("letta_client")
    return spec is not None and spec.origin != "gradeline.compat"


async def create_agent(factory: Callable[..., Any], sample: Sample, config: Mapping[str, Any], reference: str) -> str:
    """Call a factory with a client and the sample; returns a `CreatedAgent` as JSON.

    A class is instantiated without arguments; its ``create_agent`` method, else the object itself, is called.
    """
    own_sample: Any = _FactorySample(**{name: getattr(sample, name) for name in Sample.__struct_fields__})
    creator = factory() if isinstance(factory, type) else factory
    agent_id = getattr(creator, "create_agent", creator)(letta_client(**config), own_sample)
    if inspect.isawaitable(agent_id):
        agent_id = await agent_id
    if not isinstance(agent_id, str) or not agent_id.strip():
        kind = type(agent_id).__name__
        raise BadReplyError(f"{reference} returned {quote(agent_id)} ({kind}); return the agent's id (str)")
    try:
        data = clean_data(
            {"agent_id": agent_id, "input": own_sample.input, "extra_vars": own_sample.extra_vars or {}}, "sample"
        )
        created = msgspec.convert(data, CreatedAgent)
    except (DataError, msgspec.ValidationError) as error:
        raise BadReplyError(f"{reference} left an invalid sample: {error}") from None
    return msgspec.json.encode(created).decode()


@lru_cache(maxsize=8)
def letta_client(base_url: str, api_key: str | None, project_id: str | None, timeout: float) -> Any:
    """A client of the server, or `ImportError` with the command that installs it.

    It is cached, with its connections: a worker has one event loop for all calls.
    """
    client = import_module("letta_client").AsyncLetta
    # in releases before 1.0 the class passes all arguments on to its base class
    known = {name for kind in client.__mro__ for name in inspect.signature(kind.__init__).parameters}
    arguments = {
        "base_url": base_url,
        "api_key": api_key,
        "project_id": project_id,
        # the names of releases before 1.0
        "token": api_key,
        "project": None if "project_id" in known else project_id,
        "timeout": timeout,
    }
    return client(**{name: value for name, value in arguments.items() if name in known and value is not None})
