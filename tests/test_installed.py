"""From an empty home, as the manual says it: a built wheel installed by pip and by uv, and what a first week types.

Nothing here is run from the sources. Also: the pages of the manual, played with what the wheel brings.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from gpuops.clock import machine_time
from tests.ansible.units import execute_unit, unit_of
from tests.notify.conftest import MailServer, mail_server
from tests.test_packaging import wheel
from tests.waiting import wait_until

__all__ = ["mail_server", "wheel"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).resolve().parents[1]
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every package that the wheel and its extra `notify` need, fetched once: in the versions of the lock file."""
    folder = tmp_path_factory.mktemp("packages")
    locked = re.findall(r"^(\w[^\\\n]*==[^\\\n]*)", (ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), re.M)
    assert len(locked) > 50
    (folder / "constraints.txt").write_text("\n".join(locked), encoding="utf-8")
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "-d",
        str(folder),
        "-c",
        str(folder / "constraints.txt"),
    ]
    subprocess.run([*fetch, f"{wheel}[notify]"], check=True, capture_output=True)
    return folder


def _by_pip(source: str, packages: Path, home: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True, capture_output=True)
    install: list[str | Path] = [
        home / "venv" / "bin" / "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        packages,
        source,
    ]
    subprocess.run(install, check=True, capture_output=True)
    return home / "venv" / "bin" / "gpuops"


def _by_uv(source: str, packages: Path, home: Path) -> Path:
    uv = Path(sys.executable).with_name("uv")
    where = {"UV_TOOL_DIR": str(home / "tools"), "UV_TOOL_BIN_DIR": str(home / "bin"), "UV_CACHE_DIR": str(home / "uv")}
    install: list[str | Path] = [
        uv,
        "tool",
        "install",
        "--python",
        sys.executable,
        "--no-index",
        "--find-links",
        packages,
        source,
    ]
    subprocess.run(install, check=True, capture_output=True, env=os.environ | where)
    return home / "bin" / "gpuops"


@pytest.fixture(scope="module", params=[_by_pip, _by_uv], ids=["pip", "uv tool"])
def gpuops(
    wheel: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """The command, installed into an environment of its own."""
    executable: Path = request.param(f"{wheel}[notify]", packages, tmp_path_factory.mktemp("environment"))
    return executable


@pytest.fixture
def typed(gpuops: Path, tmp_path: Path) -> Typed:
    """Types a line in an empty home; `code` is how it is to end."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gpuops").symlink_to(gpuops)
    environ = {"HOME": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "LANG": "C.UTF-8"}

    def run(line: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=environ, capture_output=True, encoding="utf-8", check=False
        )
        assert process.returncode == code, f"{line}: {process.returncode}\n{process.stdout}\n{process.stderr}"
        return process

    return run


@pytest.fixture
def vcenter(gpuops: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What `gpuops sim serve` of that installation says of the vCenter that it serves."""
    ready = tmp_path / "ready.json"
    serve: list[str | Path] = [gpuops, "sim", "serve", "--scenario", "lab", "--ready-file", ready]
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(serve, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(ready.exists, process=process)
            yield json.loads(ready.read_text(encoding="utf-8"))
        finally:
            process.terminate()


def test_a_first_week(typed: Typed, vcenter: dict[str, Any], mail_server: MailServer, tmp_path: Path) -> None:
    """Configuration, login, role, doctor, policy, a night by its unit, a killed morning, its mail, the history."""
    assert "(gpuops-vsphere)" in typed("gpuops --version").stdout
    refused = typed("gpuops inventory", code=2)
    assert "config init" in refused.stderr, refused.stderr
    host = urlsplit(vcenter["url"]).netloc
    (tmp_path / "password").write_text(vcenter["password"], encoding="utf-8")
    (tmp_path / "password").chmod(0o600)
    target = f"--address {host} --username {vcenter['username']} --password-file {tmp_path}/password"
    typed(f"gpuops config init --target prod {target} --ca-file {vcenter['ca_file']}")
    typed(f"gpuops config set prod.notify {shlex.quote(mail_server.url)}")
    assert "8.0" in typed("gpuops login test").stdout
    assert typed("gpuops notify test").stdout.startswith("accepted")
    typed("gpuops template write roles/night.yaml")
    assert "not as wanted" in typed("gpuops roles show --file templates/roles/night.yaml").stdout
    typed("gpuops roles apply --file templates/roles/night.yaml")
    typed("gpuops doctor")
    typed("gpuops template write lab-policy.yaml")
    _write_policy_with_a_window(tmp_path)
    typed("gpuops rotate init --policy policy.yaml")
    running = _running(typed)
    units = _render_units(typed, host, tmp_path)
    _execute(units / "gpuops-night.service", tmp_path)
    suspended = running - _running(typed)
    assert len(suspended) > 3, "the night took desktops"
    _kill_in_its_midst(tmp_path)
    _execute(units / "gpuops-day.service", tmp_path)  # its return begins hours later: nothing is due yet
    typed("gpuops rotate day --policy policy.yaml --yes")
    assert running - _running(typed) == set()
    subjects = [str(mail["Subject"]) for mail in mail_server.mails]
    signs = (" test:", "rotate night", "rotate day, begun")
    assert [sum(sign in subject for subject in subjects) for sign in signs] == [1, 1, 1], subjects
    history = json.loads(typed("gpuops history --output json").stdout)
    (night,) = history["nights"]
    typed(f"gpuops history show {shlex.quote(night['night'])}")
    assert json.loads(typed("gpuops rotate status --output json").stdout)["away"] == 0
    assert vcenter["password"] not in (tmp_path / ".config" / "gpuops" / "config.toml").read_text(encoding="utf-8")


def test_a_newcomer_types_what_the_readme_prints(typed: Typed, vcenter: dict[str, Any], tmp_path: Path) -> None:
    """Its ten minutes, line by line, until the timers of a night.

    `gpuops setup` asks at a terminal (tests/cli/first_steps/test_setup.py): here the commands that it names without
    one. The policy is that of the lab.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    minutes = readme.partition("## The first real vCenter, in ten minutes")[2].partition("\n## ")[0]
    lines = [
        line.strip() for block in re.findall(r"```sh\n(.*?)```", minutes, re.DOTALL) for line in block.splitlines()
    ]
    lines = [line for line in lines if line]
    assert (lines[0], len(lines)) == ("gpuops setup", 10)
    assert "missing: --address" in typed("gpuops setup </dev/null", code=2).stderr
    (tmp_path / "password").write_text(vcenter["password"], encoding="utf-8")
    (tmp_path / "password").chmod(0o600)
    host = urlsplit(vcenter["url"]).netloc
    login = f"--username {vcenter['username']} --password-file {tmp_path}/password --ca-file {vcenter['ca_file']}"
    typed(f"gpuops config init --target prod --address {host} {login}")
    typed("gpuops template write lab-policy.yaml")
    _write_policy_with_a_window(tmp_path)
    outputs = [typed(line.replace("/etc/gpuops/policy.yaml", "policy.yaml")).stdout for line in lines[1:]]
    attached, planned = (next(at for at, line in enumerate(lines[1:]) if part in line) for part in ("attach", "plan"))
    assert "nothing changed" in outputs[attached] and "1 step done" in outputs[attached + 1]
    assert "would start" in outputs[planned]
    assert "OnCalendar=" in outputs[-1]


def _write_policy_with_a_window(home: Path) -> None:
    """The policy of the template with a window that opened hours ago, for timers need to know when to call."""
    now = machine_time().astimezone(UTC)
    opens, closes = f"{now - timedelta(hours=2):%H:%M}", f"{now + timedelta(hours=4):%H:%M}"
    text = (home / "templates" / "lab-policy.yaml").read_text(encoding="utf-8")
    assert "\nwindows: any" in text
    windows = f"\nwindows: [{{opens: '{opens}', closes: '{closes}', zone: UTC}}]"
    (home / "policy.yaml").write_text(text.replace("\nwindows: any", windows), encoding="utf-8")


def _render_units(typed: Typed, host: str, home: Path) -> Path:
    """The units that the installed collection's playbook makes for what stands in the home."""
    values = {
        "gpuops_schedule_dir": home / "units",
        "gpuops_schedule_command": home / "bin" / "gpuops",
        "gpuops_schedule_target": "prod",
        "gpuops_schedule_config": home / ".config" / "gpuops" / "config.toml",
        "gpuops_schedule_password_file": home / "password",
        "gpuops_schedule_state_dir": home / ".local" / "state" / "gpuops",
        "gpuops_policy": home / "policy.yaml",
        "gpuops_hostname": host,
    }
    variables = shlex.quote(json.dumps({name: str(value) for name, value in values.items()}))
    playbook = "LC_ALL=C.UTF-8 $(dirname $(readlink -f $(which gpuops)))/ansible-playbook"
    typed(f"{playbook} gpuops.vsphere.schedule -e {variables}")
    return home / "units"


def _execute(unit: Path, home: Path) -> None:
    variables = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    process = execute_unit(unit_of(unit), home, variables)
    assert process.returncode == 0, f"{unit.name}\n{process.stdout}\n{process.stderr}"


def _running(typed: Typed) -> set[str]:
    vms = json.loads(typed("gpuops inventory --vms --output json").stdout)["vms"]
    return {vm["name"] for vm in vms if vm["power"] == "poweredOn" and vm["name"].startswith("vdi-")}


def _kill_in_its_midst(home: Path) -> None:
    """Kill a `rotate day` as soon as its notice is sent and its journal says that it has begun."""
    state = home / ".local" / "state" / "gpuops"
    environ = {"HOME": str(home), "PATH": f"{home / 'bin'}:/usr/bin:/bin"}
    command: list[str | Path] = [
        home / "bin" / "gpuops",
        "rotate",
        "day",
        "--policy",
        "policy.yaml",
        "--yes",
        "--vcenter",
        "prod",
    ]
    before_kill = _written_files(state, "notices.db*")
    with subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.DEVNULL) as morning:
        while _written_files(state, "notices.db*") == before_kill:
            assert morning.poll() is None, "it ended before it was killed"
        begun = _written_files(state, "journal.sqlite*")
        while _written_files(state, "journal.sqlite*") == begun:
            assert morning.poll() is None, "it ended before it was killed"
        morning.kill()
        assert morning.wait() == -signal.SIGKILL


def _written_files(folder: Path, pattern: str) -> set[tuple[str, int, int]]:
    """Name, size and time of the last change of each."""
    return {
        (path.name, file_stat.st_size, file_stat.st_mtime_ns)
        for path in folder.glob(pattern)
        for file_stat in [path.stat()]
    }


def test_every_page_is_played_with_what_the_wheel_brings(wheel: Path, tmp_path: Path) -> None:
    """The tests of the documents, in a copy of the tree whose package is the wheel's."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith("gpuops/") and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    shutil.unpack_archive(wheel, tmp_path, "zip")
    play = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_docs.py"]
    process = subprocess.run(play, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert process.returncode == 0, process.stdout[-3000:]
    assert int(re.findall(r"(\d+) passed", process.stdout)[0]) > 80
