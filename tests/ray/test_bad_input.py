"""Problems with a cluster are reported with a remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from postgres_server import execute
from ray_cluster import RayCluster

from .conftest import Project

_WITHOUT_RAY = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ray" else find(name, *rest)
from gradeline.cli import main
sys.argv = ["gradeline", *sys.argv[1:]]
main()
"""


def refusal(project: Project, *arguments: str, **environment: str) -> str:
    done = project.command("run", "suite.yaml", "--engine", "ray", *arguments, **environment)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_ray_is_not_installed(project: Project) -> None:
    project.write(1)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_RAY, "run", "suite.yaml", "--engine", "ray", "--store", project.store],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Ray is not installed; install it with: pip install 'gradeline[ray]'" in done.stderr


def test_a_sqlite_store(project: Project) -> None:
    project.write(1)
    project.store = "sqlite:///store.db"
    message = refusal(project)
    assert "which requires a PostgreSQL store; select one with: --store postgresql://user@host/database" in message
    assert not (project.folder / "store.db").exists()


def test_options_of_ray_without_ray(project: Project) -> None:
    project.write(1)
    done = project.command("run", "suite.yaml", "--ray-workers", "2")
    assert (done.returncode, "--ray-workers is for --engine ray" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no cluster answers at 127.0.0.1:1 (Connection refused); check that it runs (ray status)"),
        ("nowhere", "invalid cluster address 'nowhere': use HOST:6379 or auto"),
        ("ray://127.0.0.1:10001", "run gradeline on a node of the cluster"),
    ],
)
def test_an_address_without_a_cluster(project: Project, address: str, message: str) -> None:
    project.write(1)
    assert message in refusal(project, "--ray-address", address)


def test_a_wrong_token(project: Project, cluster: RayCluster) -> None:
    project.write(1)
    project.environment = {**cluster.environment, "RAY_AUTH_TOKEN": "0" * 40}
    message = refusal(project, "--ray-address", cluster.address)
    assert f"the cluster at {cluster.address} refuses this process; set RAY_AUTH_MODE=token" in message
    assert cluster.token not in message


def test_no_token(project: Project, cluster: RayCluster) -> None:
    project.write(1)
    environment = {**cluster.environment, "RAY_AUTH_MODE": "disabled"}
    del environment["RAY_AUTH_TOKEN"]
    project.environment = environment
    assert "refuses this process" in refusal(project, "--ray-address", cluster.address)


def test_a_database_without_rights(project: Project) -> None:
    project.write(1)
    execute(project.store, "CREATE ROLE nobody_here LOGIN")
    try:
        project.store = project.store.replace("gradeline@", "nobody_here@")
        done = project.command("run", "suite.yaml", "--engine", "ray")
    finally:
        execute(project.store.replace("nobody_here@", "gradeline@"), "DROP ROLE nobody_here")
    assert done.returncode != 0
    assert "GRANT CREATE ON DATABASE" in done.stderr, done.stderr


def test_a_node_that_lacks_a_package(project: Project, cluster: RayCluster, tmp_path: Path) -> None:
    """The driver has it only through its PYTHONPATH."""
    project.environment = cluster.environment
    project.write(1)
    package = tmp_path / "only_here"
    package.mkdir()
    (package / "here_alone.py").write_text("import os\nassert os.environ['PYTHONPATH']\n")
    agent = project.folder / "agent.py"
    agent.write_text("import here_alone\n" + agent.read_text())
    message = refusal(project, "--ray-address", cluster.address, PYTHONPATH=str(package))
    assert "on node" in message
    assert "install it on every node" in message


def test_other_versions(project: Project, cluster: RayCluster) -> None:
    """The cluster is made to report another version of Ray."""
    project.write(1)
    project.environment = cluster.environment
    claim = """
import json, os, ray
from ray._common.usage import usage_constants, usage_lib
from ray._private import ray_constants
client = ray._raylet.GcsClient(address=os.environ["AT"])
said = {**usage_lib.get_cluster_metadata(client), "ray_version": os.environ["SAY"] or ray.__version__}
key, namespace = usage_constants.CLUSTER_METADATA_KEY, ray_constants.KV_NAMESPACE_CLUSTER
client.internal_kv_put(key, json.dumps(said).encode(), True, namespace=namespace)
"""

    def say(version: str) -> None:
        environment = {**cluster.environment, "AT": cluster.address, "SAY": version}
        subprocess.run([sys.executable, "-c", claim], env=environment, check=True, capture_output=True)

    say("2.1.0")
    try:
        message = refusal(project, "--ray-address", cluster.address)
    finally:
        say("")
    assert "has other versions; install the same Ray and Python here" in message
    assert "2.1.0" in message
