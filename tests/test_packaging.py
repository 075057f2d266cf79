"""The wheel holds what the program reads: facts, scenarios, manual. Nothing names a machine or a registry host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EPOCH = "1767225600"
"""2026-01-01 in UTC: a release says its commit's time there (`git log -1 --format=%ct`)."""


def built(where: Path, folder: Path, **environ: str) -> Path:
    """The wheel of the project in `where`, put into `folder`."""
    process = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=where,
        env=os.environ | environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert process.returncode == 0, process.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"), SOURCE_DATE_EPOCH=EPOCH)


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def test_another_machine_builds_the_same_wheel_to_the_byte(wheel: Path, tmp_path: Path) -> None:
    """Elsewhere, at another time, in another zone, by a user with other habits: what was read is what is run."""
    elsewhere = tmp_path / "elsewhere"
    for name in ("gpuops", "playbooks", "templates"):
        shutil.copytree(ROOT / name, elsewhere / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, elsewhere / name)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o700 if path.is_dir() else 0o600)
    second_wheel = built(
        elsewhere, tmp_path / "built", SOURCE_DATE_EPOCH=EPOCH, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7"
    )
    assert second_wheel.name == wheel.name
    assert second_wheel.read_bytes() == wheel.read_bytes()


def _tracked_files(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_every_data_file_of_the_package_is_in_the_wheel(wheel_names: frozenset[str]) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for pattern in ("*.yaml", "*.md", "*.tsv")
        for path in (ROOT / "gpuops").rglob(pattern)
        if "ansible_collections" not in path.parts
    }
    assert {Path(name).suffix for name in expected} == {".yaml", ".md", ".tsv"}
    assert expected <= wheel_names


def test_templates_land_in_the_collection(wheel_names: frozenset[str]) -> None:
    assert "ansible_collections/gpuops/vsphere/templates/policy.yaml" in wheel_names


def test_tests_and_tools_stay_out_of_the_wheel(wheel_names: frozenset[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ansible_collections", "gpuops"}


def test_the_collection_lands_where_ansible_finds_it(wheel_names: frozenset[str]) -> None:
    collection = ROOT / "gpuops" / "ansible_collections"
    expected = {
        str(path.relative_to(collection.parent))
        for path in _tracked_files(str(collection.relative_to(ROOT)))
        if path.exists()
    }
    assert "ansible_collections/gpuops/vsphere/plugins/modules/vm_gpu.py" in expected
    assert expected <= wheel_names
    assert not any(name.startswith("gpuops/ansible_collections/") for name in wheel_names)


def test_every_dependency_says_what_it_is_for() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = [requirement for group in project["optional-dependencies"].values() for requirement in group]
    silent = [
        requirement
        for requirement in [*project["dependencies"], *extras]
        if not re.search(re.escape(f'"{requirement}"') + r"\]?,?\s+# \w", text)
    ]
    assert silent == []


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "requirements-fleet.lock", "requirements-site.lock"]
)
def test_lock_files_hold_pins_and_hashes_and_no_host(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "--hash=sha256:" in text
    assert "://" not in text
    assert "--index" not in text


def test_nothing_is_installed_without_its_hash() -> None:
    """What CI and people install from is the lock: every package of it, and ours from the tree without its own."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install (.*)", makefile)
    assert len(installs) == 3
    for line in installs:
        assert re.search(r"--require-hashes -r requirements-(dev|site)\.lock", line) or (
            "--no-deps --no-build-isolation --editable ." in line
        )
    assert not re.search(r"pip3? install|uv pip install|pipx", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    for name, least in (("requirements.lock", 20), ("requirements-dev.lock", 20), ("requirements-fleet.lock", 5)):
        pins = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / name).read_text(encoding="utf-8").strip())
        assert len(pins) > least
        assert [pin.split()[0] for pin in pins if not re.match(r"\S+==\S+", pin) or "--hash=sha256:" not in pin] == []


def test_what_the_image_has_for_runners_is_what_their_tests_had() -> None:
    fleet, tested = (
        set(re.findall(r"^\S+==\S+", (ROOT / name).read_text(encoding="utf-8"), re.M))
        for name in ("requirements-fleet.lock", "requirements-dev.lock")
    )
    assert fleet <= tested
    assert {"procrastinate", "psycopg", "psycopg-binary", "psycopg-pool"} <= {
        requirement.split("==")[0] for requirement in fleet
    }


def test_no_file_names_a_registry_host() -> None:
    # go.sum and the locks name modules, not hosts; an https link to documentation is fine, a package index is not
    index = re.compile(r"index.url|://[^\s/]*(?:pypi|registry|proxy\.golang)[^\s]*")
    named = [
        str(path.relative_to(ROOT))
        for path in _tracked_files(
            "*.py", "*.toml", "*.yaml", "*.yml", "*.md", "*.lock", "*.mod", "*.sum", "Makefile", ".ci"
        )
        if path != Path(__file__) and path.exists() and index.search(path.read_text(encoding="utf-8"))
    ]
    assert named == []
