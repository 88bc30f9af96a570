"""Agents that a suite's own code makes on a letta server, one for each sample, and the client it makes them with.

Only a worker process calls `make_agent` and `letta_client`; `Made` is what it tells of an agent.
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

ROLE = "agent_factory"
PACKAGE = "letta-client"
"""What must be installed for the client that a factory is given."""
INSTALL = f"pip install '{PACKAGE}>=1,<2'"
INSTALL_OLD = f"pip install '{PACKAGE}<1'"
"""For code that was written before release 1.0: that has no CreateBlock and no MessageCreate any more."""


# As letta gives it to a factory, which may change what is asked and with what variables. Made by hand because no
# checker of types believes that a frozen struct can have a child that is not.
_FactorySample = msgspec.defstruct("Sample", [], bases=(Sample,), module=__name__, frozen=False)


class Made(msgspec.Struct, frozen=True):
    """The agent, and what the sample has become."""

    agent_id: str
    input: str | list[str]
    extra_vars: dict[str, Any]


def is_client_installed() -> bool:
    """Whether the real client is there, not only our stand-in for its message classes."""
    spec = find_spec("letta_client")
    return spec is not None and spec.origin != "gradeline.compat"


async def make_agent(factory: Callable[..., Any], sample: Sample, config: Mapping[str, Any], reference: str) -> str:
    """Call a factory with a client and the sample; gives a `Made` as JSON.

    A class is made without arguments; what it has as ``create_agent``, else the object itself, is called.
    """
    given: Any = _FactorySample(**{name: getattr(sample, name) for name in Sample.__struct_fields__})
    maker = factory() if isinstance(factory, type) else factory
    agent_id = getattr(maker, "create_agent", maker)(letta_client(**config), given)
    if inspect.isawaitable(agent_id):
        agent_id = await agent_id
    if not isinstance(agent_id, str) or not agent_id.strip():
        kind = type(agent_id).__name__
        raise BadReplyError(f"{reference} returned {quote(agent_id)} ({kind}); return the agent's id (str)")
    try:
        data = clean_data({"agent_id": agent_id, "input": given.input, "extra_vars": given.extra_vars or {}}, "sample")
        made = msgspec.convert(data, Made)
    except (DataError, msgspec.ValidationError) as error:
        raise BadReplyError(f"{reference} left a sample that cannot be asked: {error}") from None
    return msgspec.json.encode(made).decode()


@lru_cache(maxsize=8)
def letta_client(base_url: str, api_key: str | None, project_id: str | None, timeout: float) -> Any:
    """A client of the server, or `ImportError` that says what to install.

    It is kept: it holds its connections, and a worker has one loop for all calls.
    """
    client = import_module("letta_client").AsyncLetta
    # the class of releases before 1.0 passes whatever it is given on to its base
    known = {name for kind in client.__mro__ for name in inspect.signature(kind.__init__).parameters}
    offered = {
        "base_url": base_url,
        "api_key": api_key,
        "project_id": project_id,
        # as releases before 1.0 call them
        "token": api_key,
        "project": None if "project_id" in known else project_id,
        "timeout": timeout,
    }
    return client(**{name: value for name, value in offered.items() if name in known and value is not None})
