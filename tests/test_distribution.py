"""The distribution is `gpuops-vsphere`; with the other project named gpuops in one folder, nothing of ours starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpuops.distribution import EXTRAS, NAME, install_extra, refuse_other_project
from gpuops.errors import UsageError
from gpuops.tasks.task_connection import ConnectionArguments, destination_of

ROOT = Path(__file__).resolve().parents[1]
OLD_FORMS = re.compile(r"\bgpuops\[|(pipx?|uv tool|uv pip) install [^\n|&`]*\bgpuops(?![-\w./])")


def _tracked_text() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in names}


@pytest.mark.long
def test_pip_knows_the_name_that_messages_and_pages_give() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"] == NAME
    this_file = str(Path(__file__).relative_to(ROOT))
    old = [name for name, text in _tracked_text().items() if name != this_file and OLD_FORMS.search(text)]
    assert old == []


@pytest.mark.parametrize("line", ["pip install gpuops", "pip install -U 'gpuops[ssh]'", "uv tool install gpuops"])
def test_the_old_forms_are_found(line: str) -> None:
    assert OLD_FORMS.search(line)


@pytest.mark.parametrize("line", ["pip install gpuops-vsphere", "pip install 'gpuops-vsphere[ssh]'"])
def test_ours_are_not_taken_for_them(line: str) -> None:
    assert not OLD_FORMS.search(line)


def test_a_hint_for_an_extra_goes_by_how_gpuops_was_installed(tmp_path: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = {extra: [re.split(r"[<>=~!;]", need)[0].strip() for need in needs] for extra, needs in extras.items()}
    brought = {extra: " ".join(packages) for extra, packages in names.items()}
    assert brought == EXTRAS
    assert install_extra("ssh", tmp_path).startswith("pip install asyncssh, in the environment ")
    assert install_extra("web", tmp_path).startswith("pip install starlette uvicorn, in the environment ")
    (tmp_path / "uv-receipt.toml").touch()
    assert "--with starlette --with uvicorn SOURCE" in install_extra("web", tmp_path)
    assert install_extra("postgresql", tmp_path).startswith("uv tool install --with 'psycopg[binary]' SOURCE")
    assert install_extra("ssh", Path("/opt/pipx/venvs/gpuops")) == "pipx inject gpuops asyncssh"


@pytest.fixture
def folder_of_both(tmp_path: Path) -> Path:
    (tmp_path / "gpuops").symlink_to(ROOT / "gpuops")
    (tmp_path / "gpuops_vsphere-1.0.dist-info").mkdir()
    refuse_other_project(tmp_path)  # ours alone is no reason
    (tmp_path / "gpuops-0.1.1.dist-info").mkdir()
    return tmp_path


@pytest.mark.parametrize("start", [["-m", "gpuops"], ["-c", "from gpuops.cli import main; main()"]])
def test_a_start_beside_the_other_project_is_refused(folder_of_both: Path, start: list[str]) -> None:
    """Our script and the one of the other project, which calls `gpuops.cli:main` as well."""
    process = subprocess.run(
        [sys.executable, *start, "inventory", "--vcenter", "sim:lab"],
        env=os.environ | {"PYTHONPATH": str(folder_of_both)},
        cwd=folder_of_both,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert "another project, also named gpuops, is installed in" in process.stderr
    assert "pip uninstall --yes gpuops && pip install --force-reinstall --no-deps SOURCE" in process.stderr


def test_so_is_a_module(folder_of_both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gpuops.tasks.task_connection.refuse_other_project", lambda: refuse_other_project(folder_of_both)
    )
    with pytest.raises(UsageError, match="another project"):
        destination_of(ConnectionArguments(hostname="sim:lab"), {})
