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
    found = list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
    return {each["kind"]: each for each in found}


def pods() -> dict[str, dict[str, Any]]:
    return {kind: each["spec"]["template"]["spec"] for kind, each in manifests().items() if "template" in each["spec"]}


def compose() -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


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

    def told(value: Any, key: str = "") -> Iterator[str]:
        match value:
            case {"name": str(variable), "value": _} if "PASS" in variable:
                yield variable
            case dict():
                for inner, each in value.items():
                    yield from told(each, inner)
            case list():
                for each in value:
                    yield from told(each, key)
            case str() if re.search(r"password|passfile", key, re.IGNORECASE) and not value.startswith(("/", "./")):
                yield f"{key}: {value}"

    documents = list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
    assert [line for each in documents for line in told(each)] == []
    assert "Secret" not in {each.get("kind") for each in documents}


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
    found, database = manifests(), manifests("cloudnativepg.yaml")["Cluster"]["metadata"]["name"]
    assert len({json.dumps(pod["volumes"]) for pod in pods().values()}) == 1
    assert len({json.dumps(pod["containers"][0]["env"]) for pod in pods().values()}) == 1
    for pod in pods().values():
        (container,) = pod["containers"]
        keys = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each]
        assert keys == [{"name": f"{database}-app", "key": "password"}]
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert volumes["database"]["secret"]["secretName"] == f"{database}-ca"
        assert {each["name"] for each in container["volumeMounts"]} == set(volumes)
    assert f"@{database}-rw/" in (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Job"]["spec"]["template"]["metadata"]["labels"] != labels
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] < found["Deployment"]["spec"]["replicas"]


def test_each_probe_asks_what_is_answered_there() -> None:
    (container,) = pods()["Deployment"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    probes = [container[each]["httpGet"] for each in ("startupProbe", "livenessProbe", "readinessProbe")]
    told = container["args"][container["args"].index("--health") + 1]
    assert {ports[each["port"]] for each in probes} == {int(told.rpartition(":")[2])}
    port = free_port()
    with serve_health(("127.0.0.1", port)) as health:
        health.note_look()
        assert {http_status(port, each["path"]) for each in probes} == {200}
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
        mounts = [each.split(":")[1:] for each in compose()["services"][name]["volumes"]]
        read_only = [target for target, *mode in mounts if mode == ["ro"]]
        assert len(read_only) == 2
        assert [target for target, *_ in mounts for above in read_only if target.startswith(f"{above}/")] == []


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="not root: files of others are made by root")
def test_the_job_and_the_deployment_run_with_what_is_mounted(postgresql: Server, tmp_path: Path) -> None:
    """ConfigMaps and Secrets as a kubelet mounts them: links to files of another user that our group may read."""
    pod, (init,) = pods()["Deployment"], pods()["Job"]["containers"]
    (container,) = pod["containers"]
    places = {each["mountPath"]: tmp_path / each["name"] for each in container["volumeMounts"]}
    url = postgresql.database()
    config = (
        f'[fleet]\nurl = "{url.replace(f":{urlsplit(url).password}@", "@")}"\n[targets.prod]\nhost = "127.0.0.1:1"\n'
        f'username = "gpuops"\npassword_file = "{places["/etc/gpuops-passwords"]}/prod.password"\n'
        f'rotations = ["{places["/etc/gpuops"]}/vdi.yaml"]\n'
    )
    mounted(places["/etc/gpuops"], {"config.toml": config, "vdi.yaml": policy_of(PARIS).text})
    mounted(places["/etc/gpuops-passwords"], {"prod.password": "s3cret"})
    places["/tmp"].mkdir()

    def there(text: str) -> str:
        mount = next((each for each in places if f"{text}/".startswith(f"{each}/")), None)
        return text.replace(mount, str(places[mount]), 1) if mount is not None else text

    said = {each["name"]: each.get("value", PASSWORD) for each in container["env"]}
    assert Path(said["GPUOPS_STATE_DIR"]).parent == Path("/dev/shm"), "which only its own user can write, below"
    said["GPUOPS_STATE_DIR"] = str(tmp_path / "state")
    env = {name: there(value) for name, value in (environment() | said).items() if name != "PATH"}
    gpuops = [sys.executable, "-m", "gpuops"]
    for line in (
        f"the tables of the queue were made; all others are of revision {HEAD} now, of none before\n",
        f"the tables of the queue are there; all others are of revision {HEAD}, as before\n",
    ):
        made = subprocess.run(
            [*gpuops, *init["args"]], cwd=ROOT, env=env, capture_output=True, encoding="utf-8", check=False, timeout=60
        )
        assert (made.returncode, made.stdout) == (0, line), made.stderr
    port = free_port()
    words = [each.replace("0.0.0.0:9464", f"127.0.0.1:{port}") for each in container["args"]]
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


def mounted(place: Path, files: dict[str, str]) -> None:
    """As a kubelet does: a link of each name to `..data`, which is a link to the folder of this version."""
    version = place / "..2026_11_27"
    version.mkdir(parents=True)
    (place / "..data").symlink_to(version.name)
    for name, text in files.items():
        (version / name).write_text(text, encoding="utf-8")
        (version / name).chmod(0o440)
        os.chown(version / name, 65531, os.getgid())
        (place / name).symlink_to(f"..data/{name}")
