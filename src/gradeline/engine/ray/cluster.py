"""The Ray cluster that runs are worked on: one of this machine alone, or one that is there already."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, GradelineError, Problem

NAMESPACE = "gradeline"
_PLACE = "--engine ray"
_SCRATCH = "gl-ray-"
_NOT_SENT = (
    ".env",
    ".env.*",
    ".git/",
    ".gradeline/",
    ".venv/",
    "node_modules/",
    "__pycache__/",
    "*.db",
    "*.db-shm",
    "*.db-wal",
)
"""Of a suite's folder: what no worker needs, and what nobody else is to see."""
_SAFE = {
    # the local cluster listens on 127.0.0.1 alone, and asks for its token
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}
_ALWAYS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # seconds for which a cluster is tried that does not let this process in
    "RAY_NUM_REDIS_GET_RETRIES": "5",
}


class Cluster(NamedTuple):
    """A cluster that this process has joined."""

    workers: int
    """Processes that can work at the same time."""
    shipped: bool
    """Whether the suite's folder was sent to the nodes."""
    nodes: int


def require_ray() -> None:
    """`ConfigError` where Ray is not installed. It is not loaded yet: it reads its environment when it is."""
    if find_spec("ray") is None:
        raise ConfigError(Problem(_PLACE, "Ray is not installed; install it with: pip install 'gradeline[ray]'"))


@contextmanager
def joined(address: str | None, folder: Path | None = None, workers: int | None = None) -> Iterator[Cluster]:
    """A cluster of this machine with so many workers, by default one for each core; or the one at ``address``.

    To the latter the ``folder`` is sent, so that every node has the suite's code.
    """
    require_ray()
    with _local(workers) if address is None else _remote(address, folder):
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        cpus = int(resources.get("CPU", 0))
        alive = sum(bool(node["Alive"]) for node in nodes)
        try:
            yield Cluster(max(1, min(workers or cpus, cpus)), address is not None and folder is not None, alive)
        finally:
            ray.shutdown()


@contextmanager
def _local(workers: int | None) -> Iterator[None]:
    # a short path: the names of sockets within it are limited to some 100 characters
    _clear_away()
    scratch = tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-")
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with _environment({**_ALWAYS, **_SAFE, **token, "RAY_TMPDIR": scratch}):
            try:
                _join(
                    address="local",  # whatever RAY_ADDRESS says
                    num_cpus=workers or os.cpu_count() or 1,
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=scratch,
                )
            except Exception as error:
                raise GradelineError(f"a Ray cluster of this machine could not be started: {_told(error)}") from error
            yield
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _remote(address: str, folder: Path | None) -> Iterator[None]:
    if "://" in address:
        reason = (
            f"{address!r} is no address of a cluster; write HOST:6379, and run gradeline on a node of the cluster (any"
            " node, or by: ray job submit)"
        )
        raise ConfigError(Problem("--ray-address", reason))
    _require_reachable(address)
    sent: dict[str, Any] = {} if folder is None else {"working_dir": str(folder), "excludes": list(_NOT_SENT)}
    with _environment(_ALWAYS):
        try:
            _join(address=address, runtime_env=sent)
        except Exception as error:
            raise _refusal(address, error) from error
        yield


def _clear_away() -> None:
    """What the cluster of a killed process left behind; the processes themselves end with it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*-*"):
        owner = folder.name.removeprefix(_SCRATCH).partition("-")[0]
        if owner.isdecimal() and not _lives(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _join(**options: Any) -> None:
    """Ray sets a handler of its own, by which a polite kill would no longer end a run in good order."""
    import ray  # only now: it reads its environment once, when it is loaded

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _require_reachable(address: str) -> None:
    """Ray itself tries for a minute, and then ends the whole process."""
    import socket

    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise ConfigError(Problem("--ray-address", f"{address!r} is no address; write HOST:6379, or auto"))
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = (
            f"no cluster answers at {address} ({getattr(error, 'strerror', None) or error}); see that it runs"
            " (ray status), and that this machine may reach its port"
        )
        raise ConfigError(Problem("--ray-address", reason)) from None


def _refusal(address: str, error: Exception) -> ConfigError:
    told = _told(error)
    whole = str(error)
    if "Failed to connect" in whole or "auth" in f"{type(error).__name__} {whole}".lower():
        # a refused token is told in no other way
        reason = (
            f"the cluster at {address} answers, and does not let this process in; set RAY_AUTH_MODE=token and"
            " RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to what the cluster was started with"
        )
    elif "Version mismatch" in whole:
        reason = f"the cluster at {address} has other versions; install the same Ray and Python there and here ({told})"
    elif "package" in whole.lower() and "size" in whole.lower():
        reason = f"the suite's folder is too large to be sent to the nodes; move data out of it ({told})"
    else:
        reason = f"the cluster at {address} could not be joined: {told}"
    return ConfigError(Problem("--ray-address", reason))


def _told(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for Ray's processes, as long as the block lasts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                with suppress(KeyError):
                    del os.environ[name]
            else:
                os.environ[name] = value
