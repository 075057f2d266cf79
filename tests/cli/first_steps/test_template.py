"""The templates: listed, printed and written whole, where an installation from the wheel has no folder of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app

Gpuops = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[3]
FILES = {str(path.relative_to(ROOT / "templates")): path for path in (ROOT / "templates").rglob("*") if path.is_file()}
FILES |= {path.name: path for path in (ROOT / "gpuops" / "sim" / "scenarios").glob("*-policy.yaml")}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of a user, not the sources."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_each_is_listed_with_what_it_says_of_itself(gpuops: Gpuops) -> None:
    listing = json.loads(gpuops("--output", "json", "template", "list").stdout)
    assert (listing["kind"], set(listing["templates"])) == ("template-list", set(FILES))
    assert all(listing["templates"].values())
    assert listing["templates"]["policy.yaml"].startswith("A rotation policy")
    assert listing["templates"]["runbook.html.j2"].endswith("is escaped.")


@pytest.mark.parametrize("name", sorted(FILES))
def test_one_is_printed_and_written_as_it_is(gpuops: Gpuops, elsewhere: Path, name: str) -> None:
    text = FILES[name].read_text(encoding="utf-8")
    assert gpuops("template", "show", name).stdout == text.rstrip("\n") + "\n"
    assert gpuops("template", "write", name).stdout == f"templates/{name}: written\n"
    assert (elsewhere / "templates" / name).read_text(encoding="utf-8") == text
    assert gpuops("template", "write", name).stdout == f"templates/{name}: is there already\n"


def test_a_changed_file_is_kept_and_then_none_is_written(gpuops: Gpuops, elsewhere: Path) -> None:
    (elsewhere / "templates").mkdir()
    policy = elsewhere / "templates" / "policy.yaml"
    policy.write_text("mine\n", encoding="utf-8")
    refused = gpuops("template", "write", "requests.yaml", "policy.yaml")
    assert refused.exit_code == 2
    assert "templates/policy.yaml exists and has other content" in refused.stderr
    assert [path.name for path in (elsewhere / "templates").iterdir()] == ["policy.yaml"]
    assert policy.read_text(encoding="utf-8") == "mine\n"
    gpuops("template", "write", "policy.yaml", "--force")
    assert policy.read_bytes() == FILES["policy.yaml"].read_bytes()


def test_a_missing_file_of_the_examples_says_how_to_have_it(gpuops: Gpuops, saved_lab: Path) -> None:
    example = ("place", "--file", "templates/requests.yaml", "--inventory", str(saved_lab))
    assert "next: gpuops template write requests.yaml" in gpuops(*example).stderr
    gpuops("template", "write", "requests.yaml")
    assert "cannot be read" not in gpuops(*example).stderr
    assert "check the path" in gpuops("place", "--file", "mine/requests.yaml", *example[3:]).stderr


@pytest.mark.long
def test_the_wheel_brings_them(tmp_path: Path) -> None:
    """From the package that the wheel unpacks, in a directory where no sources are."""
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    script = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gpuops.cli import main; main()"
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "installed"), "template", "write", "policy.yaml"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert (tmp_path / "templates" / "policy.yaml").read_bytes() == FILES["policy.yaml"].read_bytes()


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ,
    reason="no systemd-analyze: apt-get install systemd",
)
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With a program that is there in the place of /usr/local/bin/gpuops."""
    units = [tmp_path / name for name in FILES if name.endswith(".service")]
    assert len(units) >= 3
    for unit in units:
        text = FILES[unit.name].read_text(encoding="utf-8")
        assert "ExecStart=/usr/local/bin/gpuops " in text
        unit.write_text(text.replace("/usr/local/bin/gpuops", "/bin/true"), encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, encoding="utf-8", check=False
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "gpuops" in line]) == (0, [])


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ,
    reason="no systemd-analyze: apt-get install systemd",
)
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".service")])
def test_a_unit_leaves_a_service_little_to_do_harm_with(name: str) -> None:
    """Below 2 of 10 by `systemd-analyze security`, and with a limit of memory."""
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(FILES[name])],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout.splitlines()[-1:]
    assert re.search(r"^MemoryMax=\dG$", FILES[name].read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".service")])
def test_units_type_commands_that_there_are(name: str) -> None:
    words = re.findall(r"^ExecStart=/usr/local/bin/gpuops (.*)$", FILES[name].read_text(encoding="utf-8"), re.MULTILINE)
    [command] = [line.split() for line in words]
    options_used = [word for word in command if word.startswith("-")]
    verb = command[: command.index(options_used[0])] if options_used else command
    usage = CliRunner().invoke(app, [*verb, "--help"])
    assert usage.exit_code == 0
    assert all(option in usage.stdout for option in options_used), options_used
