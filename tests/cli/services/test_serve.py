"""`gpuops serve` as typed: what it refuses, what it answers beside the commands, a vCenter that is away, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.clock import passed_s
from gpuops.sim.core.sim_clock import ClockMode
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from tests.canary import CANARY, require_hidden, require_no_file
from tests.cli.conftest import LAB_POLICY
from tests.cli.services.test_metrics_listen import is_down
from tests.document_schemas import misfits
from tests.prometheus import require_taken
from tests.waiting import wait_until
from tests.web.conftest import events, service

PASSWORD = "correct horse battery"
PASSWORD_OF_CANARY = f"{CANARY}-{CANARY}"


@pytest.fixture
def lab() -> Iterator[SimServer]:
    """Its waits take the time that they say."""
    with SimServer(build("lab", clock=ClockMode.REAL)) as server:
        yield server
    assert server.world.bugs == []


def run_command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuops", *words],
        capture_output=True, encoding="utf-8", timeout=100, env={**os.environ, **environ}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def private(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def login(tmp_path: Path) -> str:
    return private(tmp_path / "serve.login", f"ann:{PASSWORD}\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0 is refused: others reach that address, and no login is set"),
        (["--listen", "[::]:0"], "--listen :: is refused: others reach that address"),
        (["--listen", "localhost.example.com:0"], "others reach that address"),
        (["--listen", "10.0.0.5:0", "--web-name", "gpus.example.com"], "others reach that address"),
        (["--listen", "here"], "--listen 'here' is not [HOST:]PORT"),
        (["--listen", "127.0.0.1:70000"], "is not [HOST:]PORT"),
        (["--web-name", "http://gpus"], "--web-name 'http://gpus' is not a host name"),
        (["--login-file", "/nowhere"], "/nowhere"),
        (["--proxy-header", "X-User"], "the login by a proxy needs --proxy-from and --proxy-secret-file too"),
        (["--proxy-from", "10.0.0.5"], "the login by a proxy needs --proxy-header and --proxy-secret-file too"),
        (["--policy", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--since", "yesterday"], "--since"),
        (["--by", "shoe"], "--by"),
    ],
)
def test_what_it_cannot_do_it_says_in_a_line(words: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--vcenter", "sim:lab", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    first, following = result.stderr.splitlines()
    assert first.startswith("error: ") and reason in first and following.startswith("next: ")


@pytest.mark.long
def test_a_file_of_logins_that_others_read_is_refused(tmp_path: Path, login: str) -> None:
    Path(login).chmod(0o644)
    result = run_command("serve", "--vcenter", "sim:lab", "--login-file", login)
    assert result.returncode == 2 and "644" in result.stderr and PASSWORD not in result.stderr


@pytest.mark.long
def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        result = run_command("serve", "--vcenter", "sim:lab", "--listen", str(listener.getsockname()[1]))
    assert result.returncode == 2 and "cannot be used: Address already in use" in result.stderr


@pytest.mark.long
def test_without_the_extra_it_says_what_brings_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['starlette'] = None\n",
        encoding="utf-8",
    )
    result = run_command("serve", "--vcenter", "sim:lab", PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    first, following = result.stderr.splitlines()
    assert first == "error: gpuops serve needs starlette and uvicorn, and they are not installed"
    assert "install starlette uvicorn" in following


@pytest.mark.long
def test_its_documents_are_those_of_the_commands(lab: SimServer, tmp_path: Path) -> None:
    with service(lab, tmp_path, "--policy", LAB_POLICY) as (url, _):
        wait_until(lambda: httpx.get(f"{url}/healthz", timeout=60).status_code == 200)
        served = {
            name: httpx.get(f"{url}/api/{name}", timeout=60).json()
            for name in ("report", "inventory", "capacity", "idle", "doctor", "history")
        }
        require_taken(httpx.get(f"{url}/metrics", timeout=60).text)
    for name, document in served.items():
        assert misfits(document) == [], name
        with_policy = ["--policy", LAB_POLICY] if name in ("report", "capacity", "idle") else []
        at = f"sim@{tmp_path / 'ready.json'}"
        result = CliRunner().invoke(app, [name, "--vcenter", at, "--output", "json", *with_policy])
        printed = json.loads(result.stdout)
        assert set(document) == set(printed) and document["kind"] == printed["kind"] == name
        if name in ("inventory", "capacity"):
            assert without_times(document) == without_times(printed), name


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in ("read_at", "taken_at")}


@pytest.mark.long
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_though_many_watch(lab: SimServer, tmp_path: Path, number: int) -> None:
    with service(lab, tmp_path) as (url, run), httpx.Client(timeout=60) as client:
        wait_until(lambda: client.get(f"{url}/healthz").status_code == 200)
        with client.stream("GET", f"{url}/events") as response:
            received_events = events(response)
            assert next(received_events)["edition"] == "1"
            began_s = passed_s()
            run.send_signal(number)
            _, errors = run.communicate(timeout=60)
            assert passed_s() - began_s < 30, "it would wait for ever for who watches"
    assert run.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert "Traceback" not in errors and "Exception" not in errors
    assert list(lab.world.sessions) == [], "it logged out"


@pytest.mark.long
def test_a_refused_login_at_vcenter_ends_it(lab: SimServer, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    sim_client.write(ready, sim_client.of(lab))
    connection = json.loads(ready.read_text(encoding="utf-8"))
    ready.write_text(json.dumps(connection | {"password": "another"}), encoding="utf-8")
    result = run_command("serve", "--listen", "0", "--vcenter", f"sim@{ready}")
    assert result.returncode == 5 and "error: " in result.stderr


@pytest.mark.long
def test_a_vcenter_that_goes_away_and_comes_back_ends_nothing(lab: SimServer, tmp_path: Path) -> None:
    """It is away at the start, then it restarts: it forgets sessions and filters, and takes a while."""
    is_down(lab.world, down=True)
    with service(lab, tmp_path) as (url, run), httpx.Client(base_url=url, timeout=60) as client:
        assert client.get("/healthz").status_code == 503
        assert "gpuops_up" in client.get("/metrics").text
        is_down(lab.world, down=False)
        wait_until(lambda: client.get("/healthz").status_code == 200)
        is_down(lab.world, down=True)
        with lab.world.lock:
            lab.world.changed.notify_all()
        wait_until(lambda: client.get("/healthz").status_code == 503)
        assert client.get("/api/report").status_code == 200, "the page stays"
        assert 'gpuops_up{vcenter="' in client.get("/metrics").text
        with client.stream("GET", "/events") as response:
            event = next(events(response))
            assert event["edition"] == "1" and event["trouble"] and event["age_s"] > 0
        is_down(lab.world, down=False)
        wait_until(lambda: client.get("/healthz").status_code == 200)
        run.terminate()
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 143 and "Traceback" not in errors
    assert 0 < errors.count("warning: ") < 6, "a trouble is said once, not at each try"


@pytest.mark.long
def test_passwords_are_seen_nowhere(clean: Path, tmp_path: Path) -> None:
    with SimServer(build("lab"), password=CANARY) as server:
        path = tmp_path / "serve.login"
        words = ["--login-file", private(path, f"ann:{PASSWORD_OF_CANARY}\n")]
        environ = {"GPUOPS_DEBUG": "1"}
        with (
            service(server, tmp_path, *words, environ=environ) as (url, run),
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            right = httpx.BasicAuth("ann", PASSWORD_OF_CANARY)
            wait_until(lambda: client.get("/healthz").status_code == 200)
            for auth in (right, httpx.BasicAuth("ann", f"{PASSWORD_OF_CANARY}x"), httpx.BasicAuth("bob", CANARY)):
                for address in ("/", "/api/report", "/metrics", "/nowhere"):
                    answer = client.get(address, auth=auth)
                    assert answer.status_code == (401 if auth is not right else 404 if "no" in address else 200)
                    require_hidden(address, answer.text + repr(answer.headers))
            run.terminate()
            out, errors = run.communicate(timeout=60)
    require_hidden("stdout and stderr", out + errors)
    require_no_file(clean)


@pytest.mark.long
def test_an_address_that_others_reach_with_a_login_is_served_and_warned_of(
    lab: SimServer, tmp_path: Path, login: str
) -> None:
    ready = tmp_path / "ready.json"
    sim_client.write(ready, sim_client.of(lab))
    words = [sys.executable, "-m", "gpuops", "serve", "--listen", "0.0.0.0:0", "--login-file", login]
    with subprocess.Popen([*words, "--vcenter", f"sim@{ready}"], stderr=subprocess.PIPE, encoding="utf-8") as run:
        assert run.stderr is not None
        warned, at = run.stderr.readline(), run.stderr.readline()
        port = at.rpartition(":")[2].strip().strip("/")
        assert "warning: names and passwords are sent without encryption" in warned
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_until(lambda: client.get("/healthz").status_code == 200)
            assert client.get("/").status_code == 401
            assert client.get("/", auth=("ann", PASSWORD)).status_code == 200
        run.terminate()
        run.wait(60)


def test_its_session_refuses_changes_before_they_are_sent(lab: SimServer) -> None:
    from gpuops.api.connection import only_read
    from gpuops.clock import wall_clock
    from gpuops.errors import Refused
    from gpuops.execute.site import Site
    from gpuops.model.vcenter.vm import PowerState
    from gpuops.plan.core.steps import PowerOffVm
    from gpuops.vsphere.connection import Connection
    from tests.wire.conftest import target_of

    with Connection(target_of(lab)) as vcenter:
        site = only_read(Site(vcenter, Path("/nowhere"), wall_clock))
        inventory = site.vcenter.inventory()
        running = next(vm.ref for vm in inventory.vms.values() if vm.power is PowerState.ON)
        with pytest.raises(Refused, match="this command only reads vCenter"):
            site.vcenter.submit(PowerOffVm(running), inventory, "somebody")
        with pytest.raises(Refused, match="only reads"):
            site.vcenter.define_attribute("gpuops.test", "somebody")
    assert lab.world.ledger.to_json(after_sequence=0) == []
