"""The files of docs/deploy parse, and their gradeline commands exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from starlette.routing import Route

from gradeline.cli.commands import cli
from gradeline.service.app import ROUTERS
from gradeline.service.settings import ServeSettings

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = [one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if one]
GRACE_S = 2
"""How much longer than --drain-seconds a drain may take."""


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options of a gradeline command line; click refuses an unknown command or option."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None, arguments
        command = found
        context = click.Context(command, parent=context, info_name=name)
    return command.make_context(command.name, arguments, parent=context.parent).params


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod of each workload, by its kind and name."""
    for one in KUBERNETES:
        spec = one.get("spec", {})
        template = spec.get("template") or spec.get("jobTemplate", {}).get("spec", {}).get("template")
        if template is not None:
            yield f"{one['kind']}/{one['metadata']['name']}", template["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods():
        for container in pod["containers"]:
            if "gradeline" in container["image"]:
                yield name, container


def kubernetes_object(kind: str, name: str = "gradeline") -> dict[str, Any]:
    (found,) = (one for one in KUBERNETES if one["kind"] == kind and one["metadata"]["name"] == name)
    return dict(found)


CALLS = {
    "Containerfile": json.loads(re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)[-1]),
    **{f"compose {name}": one["command"] for name, one in COMPOSE["services"].items() if "gradeline" in one["image"]},
    **{f"kubernetes {name}": one["args"] for name, one in containers()},
}


@pytest.mark.parametrize("place", CALLS)
def test_every_command_line_is_accepted(place: str) -> None:
    parsed([str(word) for word in CALLS[place]])


def test_an_invalid_command_line_is_refused() -> None:
    with pytest.raises(click.UsageError):
        parsed(["serve", "--drain", "30"])
    with pytest.raises(click.UsageError):
        parsed(["store", "save", "x.db"])


@pytest.mark.parametrize("page", sorted(DEPLOY.glob("*.md")), ids=lambda page: page.name)
def test_every_gradeline_command_of_a_page_exists(page: Path) -> None:
    for line in re.findall(r"^ *gradeline (.*)$", page.read_text(), re.MULTILINE):
        parsed(shlex.split(line, comments=True))


def test_container_commands_use_existing_options() -> None:
    text = (DEPLOY / "container.md").read_text()
    calls = re.findall(r"docker compose run --rm gradeline (.*)$", text, re.MULTILINE)
    calls += re.findall(r"^gl gradeline:0.1.0 (.*)$", text, re.MULTILINE)
    assert len(calls) == 2
    for line in calls:
        parsed(shlex.split(line))


def test_the_container_file_is_pinned_installs_offline_and_is_not_root() -> None:
    bases = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+-", base) for base in bases)
    assert "--require-hashes" in CONTAINERFILE
    assert re.findall(r"pip install (.*?) \\", CONTAINERFILE, re.DOTALL) == [
        "--no-cache-dir --no-index --no-deps /build/wheels/*.whl /own/gradeline-*.whl"
    ]
    assert re.findall(r"^USER (.*)$", CONTAINERFILE, re.MULTILINE) == ["10001"]
    assert "HEALTHCHECK" in CONTAINERFILE
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", CONTAINERFILE, re.MULTILINE)[0]) == ["gradeline"]


def test_stop_timeouts_are_longer_than_the_drain() -> None:
    compose = COMPOSE["services"]["gradeline"]
    grace_period = int(compose["stop_grace_period"].removesuffix("s"))
    assert grace_period >= parsed([str(word) for word in compose["command"]])["drain_s"] + GRACE_S
    pod = kubernetes_object("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] >= parsed(container["args"])["drain_s"] + GRACE_S
    systemd = re.findall(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "systemd.md").read_text(), re.MULTILINE)
    assert int(systemd[0]) >= ServeSettings().drain_s + GRACE_S


def test_probes_use_existing_routes() -> None:
    routes = {route.path for router in ROUTERS for route in router.routes if isinstance(route, Route)}
    (container,) = kubernetes_object("Deployment")["spec"]["template"]["spec"]["containers"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["path"] for probe in probes.values()} <= routes
    assert probes["readiness"]["path"] == "/api/ready"
    assert {probe["port"] for probe in probes.values()} == {container["ports"][0]["name"]}
    assert set(re.findall(r"127\.0\.0\.1:8000(/\S+?)'", CONTAINERFILE)) <= routes


def test_references_in_the_manifests_resolve() -> None:
    keys = set(kubernetes_object("Secret")["stringData"])
    volumes = {one["metadata"]["name"] for one in KUBERNETES if one["kind"] == "PersistentVolumeClaim"}
    for name, pod in pods():
        mounted = {volume["name"]: volume for volume in pod.get("volumes", ())}
        for volume in mounted.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in volumes, name
        for container in pod["containers"]:
            for variable in container["env"]:
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["name"] == "gradeline"
                    assert reference["key"] in keys, name
    deployment = kubernetes_object("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == kubernetes_object("Service")["spec"]["selector"] == labels
    assert {one["metadata"]["namespace"] for one in KUBERNETES if one["kind"] != "Namespace"} == {"gradeline"}
    declared = set(COMPOSE["volumes"])
    for service in COMPOSE["services"].values():
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= declared
        assert {one["source"] for one in service.get("secrets", ())} <= set(COMPOSE["secrets"])


def test_no_container_of_the_service_is_or_can_become_root() -> None:
    for name, container in containers():
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["capabilities"] == {"drop": ["ALL"]}
    for name, pod in pods():
        if name != "StatefulSet/database":
            assert pod["securityContext"]["runAsNonRoot"] is True, name
    assert COMPOSE["services"]["gradeline"]["cap_drop"] == ["ALL"]
