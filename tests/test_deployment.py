"""The manifests of runners: by the schemas of Kubernetes and of the Compose Specification, and as they would run.

No package of Python carries the schema of CloudNativePG's Cluster: of it the names that the others refer to are tested.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import ValidationError, validators

from gpuops.execute.migrations import HEAD
from gpuops.execute.state.http_listener import serve_health
from tests.execute.conftest import postgresql
from tests.execute.journal.postgres import PASSWORD, Server
from tests.ports import free_port, http_status
from tests.runner.test_due import PARIS, policy_of
from tests.test_container import environment, steps
from tests.waiting import wait_until

__all__ = ["postgresql"]
ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "templates" / "runner"
OLDEST: Final = "1.31"
"""The oldest Kubernetes whose fields are used: `unhealthyPodEvictionPolicy` is stable there."""
Edit = Callable[[Any], None]


def manifests(name: str = "kubernetes.yaml") -> dict[str, dict[str, Any]]:
    """Its objects by their kind."""
    documents = list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
    return {document["kind"]: document for document in documents}


def pods() -> dict[str, dict[str, Any]]:
    return {
        kind: document["spec"]["template"]["spec"]
        for kind, document in manifests().items()
        if "template" in document["spec"]
    }


def compose() -> dict[str, Any]:
    compose_file = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(compose_file, dict)
    return compose_file


def judge_compose(document: dict[str, Any]) -> None:
    """Raises ValidationError."""
    schema = get_builtin_schema("vendor.compose-spec")
    kind = validators.validator_for(schema, default=None)
    kind.check_schema(schema)
    kind(schema).validate(document)


@pytest.mark.parametrize("version", [OLDEST, ".".join(kubernetes_validate.latest_version().split(".")[:2])])
@pytest.mark.parametrize("kind", ["Job", "Deployment", "PodDisruptionBudget"])
def test_kubernetes_knows_every_field(kind: str, version: str) -> None:
    assert kubernetes_validate.validate(manifests()[kind], version, strict=True).startswith(version)


def _misspelt(deployment: Any) -> None:
    pod = deployment["spec"]["template"]["spec"]
    pod["terminationGracePeriod"] = pod.pop("terminationGracePeriodSeconds")


def _text_for_number(deployment: Any) -> None:
    deployment["spec"]["replicas"] = "two"


def _probe_without_port(deployment: Any) -> None:
    del deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"]


def _no_selector(deployment: Any) -> None:
    del deployment["spec"]["selector"]


@pytest.mark.parametrize("broken", [_misspelt, _text_for_number, _probe_without_port, _no_selector])
def test_a_broken_manifest_is_refused(broken: Edit) -> None:
    deployment = deepcopy(manifests()["Deployment"])
    broken(deployment)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, OLDEST, strict=True)


def test_compose_knows_every_field() -> None:
    judge_compose(compose())


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [("runner-1", "stop_grace_periods", "5m"), ("init", "command", 7), ("postgresql", "restart", ["always"])],
)
def test_a_broken_compose_file_is_refused(service: str, key: str, value: object) -> None:
    document = deepcopy(compose())
    document["services"][service][key] = value
    with pytest.raises(ValidationError):
        judge_compose(document)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "cloudnativepg.yaml", "compose.yaml"])
def test_no_password_is_in_a_manifest(name: str) -> None:
    """Secrets are referred to, and none is made; what is called a password is a reference or the path of a file."""

    def secrets_in(value: Any, key: str = "") -> Iterator[str]:
        match value:
            case {"name": str(variable), "value": _} if "PASS" in variable:
                yield variable
            case dict():
                for inner, child in value.items():
                    yield from secrets_in(child, inner)
            case list():
                for child in value:
                    yield from secrets_in(child, key)
            case str() if re.search(r"password|passfile", key, re.IGNORECASE) and not value.startswith(("/", "./")):
                yield f"{key}: {value}"

    documents = list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
    assert [line for document in documents for line in secrets_in(document)] == []
    assert "Secret" not in {document.get("kind") for document in documents}


def test_pods_run_as_the_images_user_and_may_do_nothing_else() -> None:
    """As Kubernetes' standard for restricted pods has it, and on a root file system that is only read."""
    user = int(dict(steps())["USER"].partition(":")[0])
    for pod in pods().values():
        assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (user, True)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    for name in ("init", "runner-1", "runner-2"):
        service = compose()["services"][name]
        assert (service["user"], service["read_only"], service["cap_drop"]) == (dict(steps())["USER"], True, ["ALL"])


def test_a_drain_has_the_time_that_the_unit_of_systemd_gives_it() -> None:
    unit = (ROOT / "templates" / "gpuops-runner.service").read_text(encoding="utf-8")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert pods()["Deployment"]["terminationGracePeriodSeconds"] == int(seconds)
    assert {compose()["services"][name]["stop_grace_period"] for name in ("runner-1", "runner-2")} == {f"{seconds}s"}


def test_what_belongs_together_has_one_name() -> None:
    kinds, database = manifests(), manifests("cloudnativepg.yaml")["Cluster"]["metadata"]["name"]
    assert len({json.dumps(pod["volumes"]) for pod in pods().values()}) == 1
    assert len({json.dumps(pod["containers"][0]["env"]) for pod in pods().values()}) == 1
    for pod in pods().values():
        (container,) = pod["containers"]
        keys = [variable["valueFrom"]["secretKeyRef"] for variable in container["env"] if "valueFrom" in variable]
        assert keys == [{"name": f"{database}-app", "key": "password"}]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["database"]["secret"]["secretName"] == f"{database}-ca"
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert f"@{database}-rw/" in (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["Job"]["spec"]["template"]["metadata"]["labels"] != labels
    assert kinds["PodDisruptionBudget"]["spec"]["minAvailable"] < kinds["Deployment"]["spec"]["replicas"]


def test_each_probe_asks_what_is_answered_there() -> None:
    (container,) = pods()["Deployment"]["containers"]
    ports = {container_port["name"]: container_port["containerPort"] for container_port in container["ports"]}
    probes = [container[probe_name]["httpGet"] for probe_name in ("startupProbe", "livenessProbe", "readinessProbe")]
    health_address = container["args"][container["args"].index("--health") + 1]
    assert {ports[probe["port"]] for probe in probes} == {int(health_address.rpartition(":")[2])}
    port = free_port()
    with serve_health(("127.0.0.1", port)) as health:
        health.note_look()
        assert {http_status(port, probe["path"]) for probe in probes} == {200}
    health.note_look(is_available=False)
    alive, ready = container["livenessProbe"]["httpGet"]["path"], container["readinessProbe"]["httpGet"]["path"]
    with serve_health(("127.0.0.1", port)) as health:
        health.note_look(is_available=False)
        assert (http_status(port, alive), http_status(port, ready)) == (200, 503), (
            "a database that is away restarts nothing"
        )


def test_nothing_is_mounted_below_what_is_only_read() -> None:
    """There is no folder to mount it at."""
    for name in ("init", "runner-1", "runner-2"):
        mounts = [mount.split(":")[1:] for mount in compose()["services"][name]["volumes"]]
        read_only = [target for target, *mode in mounts if mode == ["ro"]]
        assert len(read_only) == 2
        assert [target for target, *_ in mounts for above in read_only if target.startswith(f"{above}/")] == []


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="not root: files of others are made by root")
def test_the_job_and_the_deployment_run_with_what_is_mounted(postgresql: Server, tmp_path: Path) -> None:
    """ConfigMaps and Secrets as a kubelet mounts them: links to files of another user that our group may read."""
    pod, (init,) = pods()["Deployment"], pods()["Job"]["containers"]
    (container,) = pod["containers"]
    places = {volume_mount["mountPath"]: tmp_path / volume_mount["name"] for volume_mount in container["volumeMounts"]}
    url = postgresql.database()
    config = (
        f'[fleet]\nurl = "{url.replace(f":{urlsplit(url).password}@", "@")}"\n[targets.prod]\nhost = "127.0.0.1:1"\n'
        f'username = "gpuops"\npassword_file = "{places["/etc/gpuops-passwords"]}/prod.password"\n'
        f'rotations = ["{places["/etc/gpuops"]}/vdi.yaml"]\n'
    )
    mount_files(places["/etc/gpuops"], {"config.toml": config, "vdi.yaml": policy_of(PARIS).text})
    mount_files(places["/etc/gpuops-passwords"], {"prod.password": "s3cret"})
    places["/tmp"].mkdir()

    def on_this_machine(text: str) -> str:
        mount = next((place for place in places if f"{text}/".startswith(f"{place}/")), None)
        return text.replace(mount, str(places[mount]), 1) if mount is not None else text

    variables = {variable["name"]: variable.get("value", PASSWORD) for variable in container["env"]}
    assert Path(variables["GPUOPS_STATE_DIR"]).parent == Path("/dev/shm"), "which only its own user can write, below"
    variables["GPUOPS_STATE_DIR"] = str(tmp_path / "state")
    env = {name: on_this_machine(value) for name, value in (environment() | variables).items() if name != "PATH"}
    gpuops = [sys.executable, "-m", "gpuops"]
    for line in (
        f"the tables of the queue were made; all others are of revision {HEAD} now, of none before\n",
        f"the tables of the queue are there; all others are of revision {HEAD}, as before\n",
    ):
        process = subprocess.run(
            [*gpuops, *init["args"]], cwd=ROOT, env=env, capture_output=True, encoding="utf-8", check=False, timeout=60
        )
        assert (process.returncode, process.stdout) == (0, line), process.stderr
    port = free_port()
    words = [argument.replace("0.0.0.0:9464", f"127.0.0.1:{port}") for argument in container["args"]]
    with subprocess.Popen(
        [*gpuops, *words], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as runner:
        try:
            wait_until(lambda: http_status(port, container["readinessProbe"]["httpGet"]["path"]) == 200, process=runner)
            runner.send_signal(signal.SIGTERM)
            _, errors = runner.communicate(timeout=60)
        finally:
            runner.kill()
    assert runner.returncode == 0, errors
    assert errors.startswith("plays prod: nights\n")
    assert "Traceback" not in errors


def mount_files(place: Path, files: dict[str, str]) -> None:
    """As a kubelet does: a link of each name to `..data`, which is a link to the folder of this version."""
    version = place / "..2026_11_27"
    version.mkdir(parents=True)
    (place / "..data").symlink_to(version.name)
    for name, text in files.items():
        (version / name).write_text(text, encoding="utf-8")
        (version / name).chmod(0o440)
        os.chown(version / name, 65531, os.getgid())
        (place / name).symlink_to(f"..data/{name}")
