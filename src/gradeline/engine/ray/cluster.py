"""The Ray cluster of a run: a local one that is started for it, or an existing one."""

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
"""Files of a suite's folder that are not sent: workers do not need them, or they are secret."""
_SAFE = {
    # the local cluster only listens on 127.0.0.1, and requires a token
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}
_ALWAYS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # seconds until a cluster that refuses this process is given up
    "RAY_NUM_REDIS_GET_RETRIES": "5",
}


class Cluster(NamedTuple):
    """A cluster that this process has joined."""

    workers: int
    """Maximum worker processes."""
    shipped: bool
    """True if the suite's folder was sent to the nodes."""
    nodes: int


def require_ray() -> None:
    """`ConfigError` if Ray is not installed. It is not imported here: it reads its environment on import."""
    if find_spec("ray") is None:
        raise ConfigError(Problem(_PLACE, "Ray is not installed; install it with: pip install 'gradeline[ray]'"))


@contextmanager
def joined(address: str | None, folder: Path | None = None, workers: int | None = None) -> Iterator[Cluster]:
    """A local cluster with this number of workers (default: one per core), or the one at ``address``.

    The ``folder`` is sent to a remote one, so that every node has the suite's code.
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
                    address="local",  # ignores RAY_ADDRESS
                    num_cpus=workers or os.cpu_count() or 1,
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=scratch,
                )
            except Exception as error:
                raise GradelineError(f"cannot start a local Ray cluster: {_one_line(error)}") from error
            yield
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _remote(address: str, folder: Path | None) -> Iterator[None]:
    if "://" in address:
        reason = (
            f"invalid cluster address {address!r}: use HOST:6379, and run gradeline on a node of the cluster (any"
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
    """Delete the files that the cluster of a killed process left; its processes end by themselves."""
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
    """Join with these options. Ray replaces the SIGTERM handler, which stops a run cleanly; it is restored."""
    import ray  # only now: it reads its environment on import

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _require_reachable(address: str) -> None:
    """`ConfigError` if nothing listens there: Ray would try for a minute and then end the process."""
    import socket

    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise ConfigError(Problem("--ray-address", f"invalid cluster address {address!r}: use HOST:6379 or auto"))
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = (
            f"no cluster answers at {address} ({getattr(error, 'strerror', None) or error}); check that it runs"
            " (ray status) and that this machine can reach its port"
        )
        raise ConfigError(Problem("--ray-address", reason)) from None


def _refusal(address: str, error: Exception) -> ConfigError:
    message = _one_line(error)
    whole = str(error)
    if "Failed to connect" in whole or "auth" in f"{type(error).__name__} {whole}".lower():
        # a refused token is not reported in any other way
        reason = (
            f"the cluster at {address} refuses this process; set RAY_AUTH_MODE=token and"
            " RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the values that the cluster was started with"
        )
    elif "Version mismatch" in whole:
        reason = f"the cluster at {address} has other versions; install the same Ray and Python here ({message})"
    elif "package" in whole.lower() and "size" in whole.lower():
        reason = f"the suite's folder is too large to send to the nodes; move data out of it ({message})"
    else:
        reason = f"cannot join the cluster at {address}: {message}"
    return ConfigError(Problem("--ray-address", reason))


def _one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables during the block."""
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
