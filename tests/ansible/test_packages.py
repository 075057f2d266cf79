"""What is built is what Ansible finds: a wheel without configuration, and a tarball that Galaxy's client takes."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.ansible.conftest import COLLECTION, ROOT, Ansible
from tests.ansible.test_collection import NAMES

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def documented(ansible: Ansible, cwd: Path, **environ: str) -> dict[str, str]:
    """Where ansible-doc finds each module, and the inventory plugin."""
    names = [f"gpuops.vsphere.{name}" for name in NAMES]
    found = json.loads(ansible("doc", "--json", *names, cwd=cwd, **environ).stdout)
    found |= json.loads(ansible("doc", "--json", "-t", "inventory", "gpuops.vsphere.gpus", cwd=cwd, **environ).stdout)
    return {name: each["doc"]["filename"] for name, each in found.items()}


def test_the_tarball_installs(ansible: Ansible, tmp_path: Path) -> None:
    ansible("galaxy", "collection", "build", COLLECTION, "--output-path", tmp_path)
    (tarball,) = tmp_path.glob("gpuops-vsphere-*.tar.gz")
    ansible("galaxy", "collection", "install", "--offline", tarball, "-p", tmp_path / "installed", cwd=tmp_path)
    found = documented(ansible, tmp_path, ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "installed"))
    assert len(found) == len(NAMES) + 1
    assert all(path.startswith(str(tmp_path)) for path in found.values())


def test_the_wheel_is_enough(ansible: Ansible, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    elsewhere = {"PYTHONPATH": str(site)}  # as pip would put it on sys.path, far from any ansible.cfg
    found = documented(ansible, tmp_path, **elsewhere)
    assert len(found) == len(NAMES) + 1
    assert all(path.startswith(str(site)) for path in found.values())
    shown = ansible("inventory", "-i", _inventory(tmp_path), "--graph", cwd=tmp_path, **elsewhere).stdout
    assert "ml-01" in shown


def _inventory(folder: Path) -> Path:
    path = folder / "lab.gpus.yml"
    path.write_text("plugin: gpuops.vsphere.gpus\nhostname: sim:lab\n", encoding="utf-8")
    return path
