"""Whatever is killed in the middle of a run on two nodes, every sample is there once in the end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from time import monotonic, sleep

import pytest

from gradeline.engine.aggregate import summarise
from gradeline.engine.ray.chunks import MOST
from gradeline.store import open_storage
from postgres_server import Server, execute
from ray_cluster import RayCluster

from .conftest import Project

CASES = 8_000


@pytest.fixture
def own_cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    cluster.add_node()
    yield cluster
    cluster.stop()


def until_called(project: Project, process: subprocess.Popen[str], times: int) -> None:
    deadline = monotonic() + 200
    while project.call_count < times:
        assert process.poll() is None, process.communicate()
        assert monotonic() < deadline, f"{project.call_count} calls, {times} awaited"
        sleep(0.05)


def test_every_sample_is_stored_once(own_cluster: RayCluster, project: Project, postgres_server: Server) -> None:
    """A worker, PostgreSQL, a node and the driver, one after the other."""
    project.store = postgres_server.url
    project.environment = own_cluster.environment
    project.write(CASES)
    on_cluster = ("--engine", "ray", "--ray-address", own_cluster.address)
    driver = project.begin("run", "suite.yaml", *on_cluster)

    until_called(project, driver, CASES // 10)
    os.kill(own_cluster.workers()[0], signal.SIGKILL)

    until_called(project, driver, CASES * 3 // 10)
    postgres_server.halt("immediate")
    sleep(2)
    postgres_server.start()

    until_called(project, driver, CASES // 2)
    own_cluster.kill_node(1)

    until_called(project, driver, CASES * 7 // 10)
    os.kill(driver.pid, signal.SIGKILL)
    error_output = driver.communicate()[1]

    ((run,),) = execute(project.store, "SELECT id FROM gradeline.runs")
    resumed = project.command("resume", str(run), *on_cluster)
    assert resumed.returncode == 0, (error_output, resumed.stderr)
    stored = execute(
        project.store,
        "SELECT (SELECT count(*) FROM gradeline.responses WHERE status = 'success'),"
        " (SELECT count(DISTINCT case_key) FROM gradeline.responses), (SELECT count(*) FROM gradeline.grades),"
        " (SELECT count(DISTINCT case_key) FROM gradeline.grades WHERE outcome = 'pass')",
    )
    assert stored == [(CASES, CASES, CASES, CASES)]
    with open_storage(project.store) as storage:
        found = storage.find_run(str(run))
        summary = summarise(found, storage.counts(found.id))
    assert (found.status, found.total) == ("completed", CASES)
    assert (summary.graders["exact"].passed, summary.graders["exact"].mean) == (CASES, 1.0)
    # the killed worker, PostgreSQL, the node, the driver
    repeated = len(project.calls) - CASES
    assert set(project.calls) == {f"c{n}" for n in range(CASES)}
    assert repeated <= 4 * MOST
    print(f"{repeated} calls repeated after 4 kills; chunks have up to {MOST} cases")  # noqa: T201 - a figure to read
    assert "a worker died" in error_output
