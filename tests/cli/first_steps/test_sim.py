"""`gpuops sim`: served as a process of its own, found by its ready file, stopped like any service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.report.first_steps.simulator_view import client_lines
from gpuops.sim.server import SimServer, start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "gpuops", "sim", "serve", "--scenario", "lab", "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("serving lab at https://127.0.0.1:")
            assert process.stdout.readline() == "\n"
            assert process.stdout.readline() == "# govc\n", "what other clients need is printed at once"
            document = json.loads(ready.read_text(encoding="utf-8"))
            assert set(document) == {"url", "username", "password", "ca_file", "pid"}
            assert document["pid"] == process.pid
            listed = CliRunner().invoke(app, ["sim", "ledger", "--ready-file", str(ready), "--output", "json"])
            assert json.loads(listed.stdout) == {"schema_version": 1, "kind": "ledger", "entries": []}
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert not ready.exists()
    assert not Path(document["ca_file"]).exists()


def test_a_ready_file_takes_the_place_of_nothing_but_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = CliRunner().invoke(app, ["sim", "serve", "--ready-file", str(pipe)])
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2,
        f"error: {pipe} cannot be written: it is not a file",
    )
    assert pipe.is_fifo()


def client_blocks(server: SimServer) -> dict[str, str]:
    """What `sim serve` prints for each client."""
    lines = client_lines(server.url, server.username, server.password, server.ca_file)
    return {head.removeprefix("# "): text for head, _, text in (block.partition("\n") for block in lines.split("\n\n"))}


@pytest.mark.parametrize("tls", [True, False])
def test_the_lines_for_pyvmomi_log_in(tls: bool) -> None:
    with start("lab", tls=tls) as server:
        script = client_blocks(server)["pyVmomi"] + "\nprint(vcenter.content.about.instanceUuid)"
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)
        assert process.stdout.strip() == server.world.get("ServiceInstance").instance_uuid


def test_the_lines_for_shells_name_the_address_the_login_and_the_authority() -> None:
    with start("lab", password="it's $HOME") as server:
        blocks = client_blocks(server)
        for name, prefix in (("govc", "GOVC_"), ("Ansible", "VMWARE_"), ("Terraform", "VSPHERE_")):
            process = subprocess.run(
                ["sh", "-c", f"{blocks[name]}\nenv"], env={}, capture_output=True, encoding="utf-8", check=True
            )
            variables = dict(line.split("=", 1) for line in process.stdout.splitlines())
            assert variables[f"{prefix}PASSWORD"] == "it's $HOME"
            assert server.ca_file in (variables.get("SSL_CERT_FILE"), variables.get("GOVC_TLS_CA_CERTS"))
            assert (
                f"{server.port}"
                in f"{variables.get('GOVC_URL')} {variables.get('VMWARE_PORT')} {variables.get('VSPHERE_SERVER')}"
            )


def test_over_http_ansible_and_terraform_have_no_lines() -> None:
    with start("lab", tls=False) as server:
        assert set(client_blocks(server)) == {
            "govc",
            "pyVmomi",
            "Ansible and Terraform need TLS: start the simulator without --http",
        }
