"""The linters of Ansible's world: ansible-lint's production profile, and ansible-test's sanity without a container."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ansible.conftest import ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

GET_PIP = """
import ensurepip
ensurepip.bootstrap()
"""
"""What ansible-test would fetch from a server of its own, by the pip that comes with Python."""

LINTED = ("playbooks", "inventories", "gpuops/ansible_collections/gpuops/vsphere")


def test_the_production_profile_passes(ansible: Ansible) -> None:
    lint = ansible("lint", "--strict", "--nocolor", *LINTED)
    assert "Profile 'production' was required" in lint.stderr + lint.stdout
    assert "0 failure(s), 0 warning(s)" in lint.stderr + lint.stdout


def test_every_sanity_test_passes(ansible: Ansible, tmp_path: Path) -> None:
    """Each makes an environment of its own with what it needs, from the package registry."""
    collections = tmp_path / "ansible_collections"
    ignored = shutil.ignore_patterns("__pycache__", "output")
    shutil.copytree(ROOT / "gpuops" / "ansible_collections", collections, ignore=ignored)
    cache = tmp_path / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True)
    for version in _pip_versions():
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(GET_PIP, encoding="utf-8")
    sanity = ansible(
        "test",
        "sanity",
        "--python",
        "3.11",
        "--color",
        "no",
        cwd=collections / "gpuops" / "vsphere",
        HOME=str(tmp_path),
    )
    ran = set(re.findall(r'^Running sanity test "([a-z-]+)"', sanity.stdout + sanity.stderr, re.MULTILINE))
    assert {"ansible-doc", "import", "validate-modules", "pylint", "yamllint", "runtime-metadata"} <= ran


def _pip_versions() -> list[str]:
    """The versions of pip that this ansible-test would fetch."""
    spec = find_spec("ansible_test")
    assert spec is not None
    source = Path(str(spec.origin)).parent / "_internal" / "python_requirements.py"
    return re.findall(r"pip='([\d.]+)'", source.read_text(encoding="utf-8"))
