"""`gpuops top` as typed: one table in a pipe, the same figures as the inventory, and kept current on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyte
import pytest
from typer.testing import CliRunner

from gpuops.api import catalog_of
from gpuops.cli.app import app
from gpuops.extras.web import top_screen
from gpuops.extras.web.top import Top
from gpuops.extras.web.top_screen import TopScreen, keys_of
from gpuops.extras.web.top_view import TopView
from gpuops.model.measurements.measurement import CurrentUse
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.hosts.change.rolling_plan import ChangeStatus
from gpuops.plan.rotation.night_status import RotationStatus
from gpuops.report.monitoring.fleet_view import fleet
from gpuops.sim.scenario.deviations import deviate
from gpuops.sim.server import start
from gpuops.sim.state.vm_state import Power
from gpuops.sim.wire import sim_client
from tests.cli.conftest import LAB_POLICY, Lab

WAIT_S = 60.0
COLUMNS, ROWS = 120, 30
EMPTY = Inventory("uuid", "8.0.3.0", datetime(2026, 11, 2, 18, tzinfo=UTC))
NO_NIGHT = RotationStatus("uuid", None, None, None, False, "gpuops.night", None, None, (), {})


@dataclass
class Terminal:
    """A terminal with `gpuops top` on it, as a person sees it."""

    fd: int
    pid: int
    screen: pyte.Screen = field(default_factory=lambda: pyte.Screen(COLUMNS, ROWS))
    sent: bytes = b""

    def __post_init__(self) -> None:
        self._stream = pyte.ByteStream(self.screen)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, is_shown: Callable[[str], bool]) -> str:
        """What it shows once that is so; fails after a minute."""
        end = time.monotonic() + WAIT_S
        while not is_shown(self.text):
            assert time.monotonic() < end, self.text
            self._read()
        return self.text

    def _read(self) -> None:
        if select.select([self.fd], [], [], 0.1)[0]:
            with suppress(OSError):  # the program has ended
                received = os.read(self.fd, 65_536)
                self.sent += received
                self._stream.feed(received)

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def end(self) -> int:
        """Its exit code once it ended by itself."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            self._read()
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(self.text)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    """A pseudo-terminal that `gpuops top` is typed at."""
    pid, fd = pty.fork()
    if pid == 0:
        # readline, which pytest imports, puts LINES and COLUMNS where programs that are run see them
        environ = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
        environment = {**environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "gpuops", "top", *arguments], environment)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    opened = Terminal(fd, pid)
    try:
        yield opened
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(fd)


def run_top(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["top", *arguments])


@pytest.mark.long
def test_figures_are_those_of_the_inventory(lab: Lab) -> None:
    inventory = json.loads(lab.run("inventory", "--output", "json").stdout)
    table = json.loads(lab.run("top", "--show", "gpus", "--output", "json").stdout)
    rows = {(row["host"], row["name"]): row for row in table["rows"]}
    gpus = {
        (host["name"], gpu["address"]): gpu
        for host in inventory["hosts"]
        for node in host["numa_nodes"]
        for gpu in node["gpus"]
    }
    assert set(rows) == set(gpus)
    for key, row in rows.items():
        assert row["vms"] == sorted(vm["name"] for vm in gpus[key]["holders"])
        assert (row["model"], row["memory_mib"]) == (gpus[key]["name"], gpus[key]["memory_mib"])
        whole = gpus[key]["passthrough_active"]
        assert (row["utilization_percent"] is None) == whole, "no driver of the host is at a GPU in DirectPath I/O"
    vms = json.loads(lab.run("top", "--show", "vms", "--output", "json").stdout)
    assert {row["key"] for row in vms["rows"]} == {vm["ref"] for vm in inventory["vms"]}
    assert lab.effects == []


@pytest.mark.long
def test_use_is_what_the_counters_say(lab: Lab) -> None:
    [desk] = [desktop for desktop in lab.server.world.by_type("VirtualMachine") if desktop.state.name == "vdi-01"]
    desk.state.cpu_usage_mhz = 5200
    lab.server.world.clock.advance(60)
    table = json.loads(lab.run("top", "--show", "vms", "--output", "json").stdout)
    rows = {row["name"]: row for row in table["rows"]}
    assert rows["vdi-01"]["utilization_percent"] == 10.0, "a busy VM uses 60 % of its sixth of the GPU"
    assert table["rows"][0]["name"] == "vdi-01", "the busiest first"
    mig = [row for row in table["rows"] if "a100-1-" in row["devices"] or "a100-3-" in row["devices"]]
    assert mig and all(row["utilization_percent"] is None for row in mig), "a MIG-backed vGPU has no counter"


@pytest.mark.long
def test_what_a_night_has_taken_and_the_verdict_on_desktops_are_shown(lab: Lab) -> None:
    before = json.loads(lab.run("top", "--show", "vms", "--policy", LAB_POLICY, "--output", "json").stdout)
    verdicts = {row["name"]: row["verdict"] for row in before["rows"] if row["verdict"]}
    assert verdicts["vdi-01"].startswith("idle: ")
    assert all(name.startswith("vdi-") for name in verdicts), "ML VMs are no desktops"
    assert lab.run("rotate", "night", "--policy", LAB_POLICY, "--yes").exit_code == 0
    top = lab.run("top", "--show", "vms")
    assert top.exit_code == 0
    assert "a night is open: " in top.stdout
    taken_rows = [line for line in top.stdout.splitlines() if "suspended, night: away" in line]
    assert taken_rows and all(line.startswith("vdi-") for line in taken_rows)


def test_keys_of_a_terminal() -> None:
    assert list(keys_of(b"\x1b[A\x1bOB\x1b")) == ["up", "down", "escape"]
    assert list(keys_of(b"\x1b[5~\x1b[200~x\r\x7f")) == ["page-up", "x", "enter", "back"]
    assert list(keys_of("ä€q".encode())) == ["ä", "€", "q"]
    assert list(keys_of(b"\xff\xfe")) == []


@pytest.mark.long
def test_a_terminal_is_drilled_into_and_left_as_it_was(lab: Lab) -> None:
    with terminal("--vcenter", f"sim@{lab.ready}") as screen:
        before = termios.tcgetattr(screen.fd)
        screen.until(lambda text: "q quit" in text and "esx-01.lab" in text)
        assert "hosts, by use: 2" in screen.text
        assert termios.tcgetattr(screen.fd)[3] & termios.ICANON == 0
        screen.press(b"sssss")  # once around
        screen.press(b"/esx-01\r")
        screen.until(lambda text: 'with "esx-01": 1' in text)
        screen.press(b"\r")
        assert "nvidia_a40-8q" not in screen.until(lambda text: "GPUs of esx-01.lab" in text)
        screen.press(b"v")
        screen.until(lambda text: "VMs, by use" in text and "nvidia_a40-8q" in text)
        screen.press(b"q")
        assert screen.end() == 0
        assert termios.tcgetattr(screen.fd)[3] == before[3]
    assert b"\x1b[?1049h" in screen.sent and screen.sent.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")
    assert lab.effects == []


@pytest.mark.long
def test_a_change_in_vcenter_is_seen_and_a_signal_ends_it(lab: Lab) -> None:
    with terminal("--show", "vms", "--every", "5", "--filter", "vdi-01", "--vcenter", f"sim@{lab.ready}") as screen:
        screen.until(lambda text: "vdi-01" in text and " on " in text)
        [desk] = [desktop for desktop in lab.server.world.by_type("VirtualMachine") if desktop.state.name == "vdi-01"]
        with lab.server.world.lock:
            desk.state.power = Power.OFF
            desk.power_changed()
        screen.until(lambda text: " off " in text)
        os.kill(screen.pid, signal.SIGTERM)
        assert screen.end() == 128 + signal.SIGTERM
        assert termios.tcgetattr(screen.fd)[3] & termios.ICANON
    assert screen.sent.rstrip().endswith(b"\x1b[?25h\x1b[?1049l"), "the cursor is back"


@pytest.mark.long
def test_a_vcenter_that_goes_away_is_said_above_the_last_rows(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with start("lab", clock="stepped") as server:
        sim_client.write(ready, sim_client.of(server))
        with terminal("--every", "5", "--vcenter", f"sim@{ready}") as screen:
            screen.until(lambda text: "esx-01.lab" in text)
            server.close()
            text_without_vcenter = screen.until(lambda text: "vCenter is away" in text)
            assert "esx-01.lab" in text_without_vcenter, "the rows of the last look stay"
            screen.press(b"g")
            screen.until(lambda text: "GPUs, by use" in text)
            screen.press(b"q")
            assert screen.end() == 0


def test_no_terminal_that_can_be_drawn_on_is_one_table() -> None:
    top = run_top("--vcenter", "sim:lab")
    assert top.exit_code == 0
    assert len(top.stdout.splitlines()) == 4
    assert "\x1b" not in top.stdout


def test_without_colours_a_terminal_gets_one_table_and_no_escape_sequence() -> None:
    with terminal("--no-color", "--vcenter", "sim:lab") as screen:
        assert screen.end() == 0
        assert "esx-01.lab" in screen.text
        assert b"\x1b" not in screen.sent


def test_an_error_of_a_look_ends_it_where_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not refreshed any more would look current."""

    def look() -> Top:
        raise KeyError("a bug")

    last_top = Top(fleet(EMPTY, catalog_of(EMPTY)), CurrentUse(EMPTY.taken_at), NO_NIGHT, ChangeStatus(), {})
    monkeypatch.setattr(top_screen, "_unbuffered_keys", nullcontext)
    monkeypatch.setattr(top_screen, "_keys", lambda wait_s: iter(()))
    with pytest.raises(KeyError, match="a bug"):
        TopScreen(look, 0, TopView(), last_top).run()


def test_gpus_are_the_same_under_each_form_of_their_instances(lab: Lab) -> None:
    """esx-01 has `gpu-0`, `gpu-1`, ... then, esx-02 `000:059:00.0`, ..."""
    by_address = lab.run("top", "--once", "--show", "gpus", "--output", "json")
    deviate(lab.server.world, ["gpu-counter-instances"])
    by_index = lab.run("top", "--once", "--show", "gpus", "--output", "json")
    assert json.loads(by_index.stdout)["rows"] == json.loads(by_address.stdout)["rows"]


def test_use_is_unknown_where_vcenter_has_other_counters(lab: Lab) -> None:
    """No number is made up under another name of a counter."""
    deviate(lab.server.world, ["gpu-counter-names"])
    top = lab.run("top", "--once")
    assert top.exit_code == 0
    assert "use not known" in top.stdout
