"""`gpuops metrics --listen --site` and `gpuops serve --site`: real processes, some vCenters of which are away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.clock import passed_s
from gpuops.extras.fleet.sites.site_services import SiteAway, SiteProcess
from gpuops.extras.web.metrics_source import SitePages
from gpuops.extras.web.metrics_view import MetricsWriter
from tests.cli.conftest import LAB_POLICY
from tests.cli.sites.test_sites import _timeless, configured, dead, hanging, served
from tests.document_schemas import misfits
from tests.ports import free_port, listens
from tests.prometheus import samples
from tests.waiting import wait_until

__all__ = ["configured", "dead", "hanging", "served"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("configured")]
WITHIN_S: Final = 120.0


@contextmanager
def service(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, once it listens, and its process, of a group of its own."""
    port = free_port()
    command = [sys.executable, "-m", "gpuops", words[0], "--listen", str(port), *words[1:]]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
    ) as run:
        try:
            wait_until(lambda: run.poll() is not None or listens(port), WITHIN_S)
            yield f"http://127.0.0.1:{port}", run
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)


def new_errors(run: subprocess.Popen[str]) -> str:
    """What it wrote to stderr since this was last asked; waits for nothing."""
    assert run.stderr is not None
    os.set_blocking(run.stderr.fileno(), False)
    try:
        return os.read(run.stderr.fileno(), 1 << 16).decode()
    except BlockingIOError:
        return ""


def stop_service(run: subprocess.Popen[str]) -> str:
    """Stop it; return its output. It leaves no process of its group."""
    group = run.pid
    run.terminate()
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 143
    wait_until(lambda: not processes_of(group))
    assert "Traceback" not in errors
    return errors


def processes_of(group: int) -> set[int]:
    """Those of a process group that run (proc(5))."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[:3]
        except OSError:  # it has ended
            continue
        if int(of) == group and state != "Z":
            pids.add(int(stat.parent.name))
    return pids


def up(url: str) -> dict[str, float]:
    """`gpuops_up` by vCenter."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    metrics = samples(text, with_vcenter=True)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert len(names) == len(set(names)), "a family stands there once"
    return {dict(labels)["vcenter"]: value for labels, value in metrics["gpuops_up"].items()}


def login(folder: Path, password: str = "wrong") -> dict[str, str]:
    secret = folder / "wrong.password"
    secret.touch(mode=0o600)
    secret.write_text(password, encoding="utf-8")
    return {"username": "x", "password_file": str(secret)}


@pytest.mark.long
def test_metrics_of_all_though_one_is_dead_and_one_says_nothing(
    configured: Callable[..., None], dead: str, hanging: str, tmp_path: Path
) -> None:
    # another account: first logins of one account come one after another, and this one never ends
    hung = {"host": hanging, **login(tmp_path), "username": "y"}
    configured(nyc={"host": dead, **login(tmp_path)}, hung=hung)
    with service("metrics", "--site", "all", "--every", "1", "--site-timeout", "8") as (url, run):
        wait_until(lambda: up(url) == {"fra": 1.0, "muc": 1.0, "nyc": 0.0, "hung": 0.0}, WITHIN_S)
        began_s = passed_s()
        assert up(url)["fra"] == 1.0
        assert passed_s() - began_s < 8, "the answer does not wait for unreachable sites"
        lines: list[str] = []

        def nyc_was_tried() -> bool:
            """A vCenter is down on the page before its process runs, and is tried when the page is asked for again."""
            up(url)
            lines.append(new_errors(run))
            return "nyc: " in "".join(lines)

        wait_until(nyc_was_tried, WITHIN_S)
        errors = "".join(lines) + stop_service(run)
    assert "metrics of 4 vCenters are at port" in errors
    assert "nyc: warning: 127.0.0.1:" in errors and "is not reachable" in errors


@pytest.mark.long
def test_a_process_that_dies_is_begun_anew(configured: Callable[..., None]) -> None:
    with service("metrics", "--site", "all", "--every", "1") as (url, run):
        wait_until(lambda: up(url) == {"fra": 1.0, "muc": 1.0}, WITHIN_S)
        [_, *other_pids] = sorted(processes_of(run.pid))
        before = {pid for pid in other_pids if _parent(pid) not in (run.pid, 1)}
        assert len(before) == 2, "one process for each vCenter, of the fork server"
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: bool(up(url)) and len(processes_of(run.pid) - {run.pid, *other_pids}) == 1, WITHIN_S)
        wait_until(lambda: up(url) == {"fra": 1.0, "muc": 1.0}, WITHIN_S)
        errors = stop_service(run)
    assert errors.count("its process ended by signal 9, and is restarted") == 1


@pytest.mark.long
def test_a_process_that_hears_no_signal_is_begun_anew(configured: Callable[..., None]) -> None:
    """A hanging read blocks no other vCenter, and its own only for a while."""
    with service("metrics", "--site", "all", "--every", "1", "--site-timeout", "6") as (url, run):
        wait_until(lambda: up(url) == {"fra": 1.0, "muc": 1.0}, WITHIN_S)
        hung = next(pid for pid in processes_of(run.pid) if _parent(pid) not in (run.pid, 1, os.getpid()))
        os.kill(hung, signal.SIGSTOP)
        wait_until(lambda: sorted(up(url).values()) == [0.0, 1.0], WITHIN_S)
        wait_until(lambda: up(url) == {"fra": 1.0, "muc": 1.0}, WITHIN_S)
        assert hung not in processes_of(run.pid)
        errors = stop_service(run)
    assert errors.count("its process ended by signal 9, and is restarted") == 1


@pytest.mark.long
def test_a_vcenter_whose_process_is_being_started_is_not_away_for_long() -> None:
    """However seldom a page is made anew."""
    text = MetricsWriter("fra").text(None)

    class Started(SiteProcess):
        asked = 0

        def ask(self, question: Any, timeout_s: float) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise SiteAway("fra: its process does not run")
            return text.replace(b'"fra"} 0', b'"fra"} 1'), 0.1

    pages = SitePages([Started("fra", print, (), print)], 3600.0, 5.0)
    assert b'gpuops_up{vcenter="fra"} 0' in pages.ask()
    wait_until(lambda: b'gpuops_up{vcenter="fra"} 1' in pages.ask(), 20.0)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


@pytest.mark.long
def test_a_login_that_is_refused_ends_its_site_alone(
    configured: Callable[..., None], served: Any, tmp_path: Path
) -> None:
    """Tried again and again it would lock the account."""
    configured(wrong={**served["fra"], **login(tmp_path)})
    with service("metrics", "--site", "all", "--every", "1") as (url, run):
        wait_until(lambda: up(url) == {"fra": 1.0, "muc": 1.0, "wrong": 0.0}, WITHIN_S)
        for _ in range(3):
            assert up(url)["fra"] == 1.0
        errors = stop_service(run)
    assert errors.count("error: wrong: ") == 1


@pytest.mark.long
def test_where_every_login_is_refused_it_ends(configured: Callable[..., None], served: Any, tmp_path: Path) -> None:
    configured(**{name: {**served[name], **login(tmp_path)} for name in ("fra", "muc")})
    with service("serve", "--site", "all") as (_, run):
        _, errors = run.communicate(timeout=WITHIN_S)
    assert (run.returncode, errors.count("error: ")) == (5, 2), errors
    assert {"error: fra: ", "error: muc: "} == {line[:12] for line in errors.splitlines() if line.startswith("error")}


@pytest.mark.long
def test_the_pages_of_all_though_one_is_dead(configured: Callable[..., None], dead: str, tmp_path: Path) -> None:
    configured(nyc={"host": dead, **login(tmp_path)})
    with service("serve", "--site", "all") as (url, run), httpx.Client(base_url=url, timeout=60) as client:
        table = lambda: client.get("/").text  # noqa: E731
        wait_until(lambda: table().count("<td>followed</td>") == 2, WITHIN_S)
        assert "2 of 3 sites followed now" in table()
        assert "is not reachable: Connection refused" in table()
        assert client.get("/healthz").status_code == 200
        for path, code in (
            ("/sites/fra/", 200), ("/sites/fra/healthz", 200), ("/sites/nyc/healthz", 503), ("/sites/nyc/", 200),
            ("/sites/fra/page.js", 200), ("/sites/muc/api/doctor", 200), ("/sites/muc/api/idle", 404),
            ("/api/idle", 404), ("/sites/fra", 404), ("/sites/none/", 404), ("/sites/fra/../muc/x", 404),
        ):  # fmt: skip
            assert (path, client.get(path).status_code) == (path, code)
        assert 'href="../../"' in client.get("/sites/fra/").text
        for name in ("report", "inventory", "capacity", "doctor", "history"):
            document = client.get(f"/api/{name}").json()
            assert misfits(document) == [], name
            assert (document["of"], list(document["sites"]), list(document["unreachable"])) == (
                name, ["fra", "muc"], ["nyc"],
            )  # fmt: skip
            assert document["sites"]["muc"].keys() == client.get(f"/sites/muc/api/{name}").json().keys()
        typed = CliRunner().invoke(app, ["capacity", "--site", "all", "-o", "json"])
        printed, got = json.loads(typed.stdout)["sites"], client.get("/api/capacity").json()["sites"]
        assert _timeless(printed) == _timeless(got)
        assert up(url) == {"fra": 1.0, "muc": 1.0, "nyc": 0.0}
        assert up(f"{url}/sites/muc") == {"muc": 1.0}
        errors = stop_service(run)
    assert "the page of 3 vCenters is at http://127.0.0.1:" in errors


@pytest.mark.long
def test_the_policy_of_each_site(configured: Callable[..., None], served: Any) -> None:
    """What none of them says is said by none: `fra` has one of its own."""
    configured(fra={**served["fra"], "policy": LAB_POLICY})
    with service("serve", "--site", "all") as (url, run), httpx.Client(base_url=url, timeout=60) as client:
        wait_until(lambda: client.get("/").text.count("<td>followed</td>") == 2, WITHIN_S)
        answer = client.get("/api/idle").json()
        assert (list(answer["sites"]), list(answer["unreachable"])) == (["fra"], ["muc"])
        assert answer["unreachable"]["muc"]["message"] == "it has no document idle"
        stop_service(run)
