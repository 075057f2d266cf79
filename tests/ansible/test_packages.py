"""What is built is what Ansible finds: a wheel without configuration, and a tarball that Galaxy's client takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from gpuops import __version__
from gpuops.distribution import NAME
from tests.ansible.conftest import COLLECTION, ROOT, Ansible
from tests.ansible.test_collection import NAMES
from tests.test_packaging import wheel

__all__ = ["wheel"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def module_files(ansible: Ansible, cwd: Path, **environ: str) -> dict[str, str]:
    """Where ansible-doc finds each module, and the inventory plugin."""
    names = [f"gpuops.vsphere.{name}" for name in NAMES]
    documents = json.loads(ansible("doc", "--json", *names, cwd=cwd, **environ).stdout)
    documents |= json.loads(
        ansible("doc", "--json", "-t", "inventory", "gpuops.vsphere.gpus", cwd=cwd, **environ).stdout
    )
    return {name: document["doc"]["filename"] for name, document in documents.items()}


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip makes of the wheel."""
    folder = tmp_path_factory.mktemp("wheel") / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_tarball_installs_with_playbooks_roles_and_templates(
    ansible: Ansible, tmp_path: Path, unpacked: Path
) -> None:
    """As `make collection` builds it; its playbooks find their templates and its role where they are installed."""
    ansible(
        "galaxy", "collection", "build", unpacked / COLLECTION.relative_to(ROOT / "gpuops"), "--output-path", tmp_path
    )
    (tarball,) = tmp_path.glob("gpuops-vsphere-*.tar.gz")
    ansible("galaxy", "collection", "install", "--offline", tarball, "-p", tmp_path / "installed", cwd=tmp_path)
    elsewhere = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "installed")}
    documents = module_files(ansible, tmp_path, **elsewhere)
    assert len(documents) == len(NAMES) + 1
    assert all(path.startswith(str(tmp_path)) for path in documents.values())
    report = ["-e", "gpuops_hostname=sim:lab", "-e", f"gpuops_report_file={tmp_path}/report.md"]
    ansible("playbook", "gpuops.vsphere.fleet_report", *report, cwd=tmp_path, **elsewhere)
    assert "esx-01.lab" in (tmp_path / "report.md").read_text(encoding="utf-8")
    schedule = [
        "-e",
        "gpuops_hostname=vc",
        "-e",
        f"gpuops_policy={ROOT / 'templates' / 'policy.yaml'}",
        "-e",
        f"gpuops_schedule_dir={tmp_path}/units",
    ]
    ansible("playbook", "gpuops.vsphere.schedule", *schedule, cwd=tmp_path, **elsewhere)
    assert (tmp_path / "units" / "gpuops-night.service").is_file()


def test_an_execution_environment_gets_this_version_of_the_package(unpacked: Path) -> None:
    collection = unpacked / COLLECTION.relative_to(ROOT / "gpuops")
    environment_file = yaml.safe_load((collection / "meta" / "execution-environment.yml").read_text(encoding="utf-8"))
    (line,) = (collection / environment_file["dependencies"]["python"]).read_text(encoding="utf-8").split()
    assert line == f"{NAME}=={__version__}"


def test_ansible_builder_takes_the_collection_into_an_execution_environment(
    ansible: Ansible, tmp_path: Path, unpacked: Path
) -> None:
    """Its own words for what the installed collection needs, and the context of an image that would have it."""
    builder = Path(sys.executable).with_name("ansible-builder")
    collection = unpacked / COLLECTION.relative_to(ROOT / "gpuops")
    ansible("galaxy", "collection", "build", collection, "--output-path", tmp_path)
    (tarball,) = tmp_path.glob("gpuops-vsphere-*.tar.gz")
    ansible("galaxy", "collection", "install", "--offline", tarball, "-p", tmp_path / "there", cwd=tmp_path)
    command: list[str | Path] = [builder, "introspect", tmp_path / "there"]
    introspection = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    assert yaml.safe_load(introspection)["python"] == [f"{NAME}=={__version__}  # from collection gpuops.vsphere"]
    manual = (ROOT / "gpuops" / "manual" / "container.md").read_text(encoding="utf-8")
    (definition,) = re.findall(r"```yaml\n(version: 3\n.*?)```", manual, re.DOTALL)
    (listed,) = yaml.safe_load(definition)["dependencies"]["galaxy"]["collections"]
    assert Path(listed["name"]).name == tarball.name
    (tmp_path / "dist").mkdir()
    shutil.copy(tarball, tmp_path / "dist")
    (tmp_path / "ee.yml").write_text(definition, encoding="utf-8")
    create: list[str | Path] = [builder, "create", "-f", tmp_path / "ee.yml", "-c", tmp_path / "context"]
    subprocess.run(create, check=True, capture_output=True, cwd=tmp_path)
    containerfile = next((tmp_path / "context").glob("*file")).read_text(encoding="utf-8")
    assert "FROM $EE_BASE_IMAGE" in containerfile
    assert containerfile.index("ENV PIP_FIND_LINKS=/dist") > containerfile.lower().index(" as builder")
    assert (tmp_path / "context" / "_build" / Path(listed["name"]).relative_to("/build")).exists(), "in its place"


def test_the_wheel_is_enough(ansible: Ansible, tmp_path: Path, unpacked: Path) -> None:
    elsewhere = {"PYTHONPATH": str(unpacked)}  # as pip would put it on sys.path, far from any ansible.cfg
    documents = module_files(ansible, tmp_path, **elsewhere)
    assert len(documents) == len(NAMES) + 1
    assert all(path.startswith(str(unpacked)) for path in documents.values())
    graph = ansible("inventory", "-i", _inventory(tmp_path), "--graph", cwd=tmp_path, **elsewhere).stdout
    assert "ml-01" in graph


def _inventory(folder: Path) -> Path:
    path = folder / "lab.gpus.yml"
    path.write_text("plugin: gpuops.vsphere.gpus\nhostname: sim:lab\n", encoding="utf-8")
    return path
