"""Clients of vCenter from PyPI, unmodified, ask the scenario `lab` what `clients.yaml` says, on the default clock.

Monitoring plugins run as commands, vmware_exporter serves its metrics, and the MCP servers are asked over stdio.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpuops.sim.server import SimServer
from tests.peers.processes import BINARIES
from tests.ports import free_port

pytestmark = [pytest.mark.peer, pytest.mark.timeout(200)]

CLIENTS = BINARIES / "clients" / "bin"
TABLE: Mapping[str, Sequence[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("clients.yaml").read_text(encoding="utf-8")
)
MCP_SERVERS = ("vmware-privateai", "vmware-monitor", "vmware-aiops")


@pytest.fixture(autouse=True)
def require_clients() -> None:
    """Fail in CI, where `make peers` installs the clients first; skip elsewhere, saying what to type."""
    if (CLIENTS.parent / ".installed").exists():
        return
    message = "the clients from PyPI are not installed: make -C tests/peers clients"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.mark.parametrize("name", MCP_SERVERS)
def test_an_mcp_server_answers_as_the_table_says(name: str, lab: SimServer, tmp_path: Path) -> None:
    with McpServer.running(name, lab, tmp_path) as server:
        unlisted = server.tools() - {_call(row)[0] for row in TABLE[name]}
        differences = [_difference(row, *server.call(*_call(row))) for row in TABLE[name]]
    assert [difference for difference in differences if difference] == []
    # vmware-aiops has all of vmware-monitor's investigations again, and changes that the others do not make.
    assert name == "vmware-aiops" or unlisted == set()


def test_the_plugins_of_checkvsphere_print_what_the_table_says(shared_lab: SimServer, tmp_path: Path) -> None:
    address = urlsplit(shared_lab.url)
    assert address.hostname
    login = ["-s", address.hostname, "-o", str(address.port), "-u", shared_lab.username]
    environment = {**_environment(shared_lab, tmp_path), "VSPHERE_PASS": shared_lab.password}
    for row in TABLE["checkvsphere"]:
        completed = subprocess.run(
            [str(CLIENTS / "check_vsphere"), *row["arguments"].split(), *login],
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        lines = [line.strip() for line in completed.stdout.splitlines() if line.strip()]
        printed_lines = [line for line in lines if "monplugin_time" not in line]
        assert (printed_lines, completed.returncode) == (row["prints"], row.get("exit", 0)), row["arguments"]


def test_vmware_exporter_serves_the_metrics_of_the_table(shared_lab: SimServer, tmp_path: Path) -> None:
    samples = [
        sample
        for family in text_string_to_metric_families(_exported_metrics(shared_lab, tmp_path))
        for sample in family.samples
    ]
    for row in TABLE["vmware_exporter"]:
        name, labels = _call(row)
        values = [sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()]
        assert values == row["gives"], row


def _exported_metrics(vcenter: SimServer, home: Path) -> str:
    """Return the text of the metrics that vmware_exporter serves for the vCenter."""
    port = free_port()
    environment = {
        **_environment(vcenter, home),
        "VSPHERE_HOST": urlsplit(vcenter.url).netloc,
        "VSPHERE_USER": vcenter.username,
        "VSPHERE_PASSWORD": vcenter.password,
    }
    command = [str(CLIENTS / "vmware_exporter"), "-a", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as exporter:
        try:
            for _ in range(200):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
                        return str(response.read().decode())
                except ConnectionRefusedError:
                    pass
                except urllib.error.URLError as error:
                    if not isinstance(error.reason, ConnectionRefusedError):
                        raise
                time.sleep(0.1)
        finally:
            exporter.terminate()
    raise AssertionError("vmware_exporter did not listen within 20 seconds")


class McpServer:
    """An MCP server that talks JSON-RPC over its standard input and output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._number = 0
        client = {"name": "gpuops-tests", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._send({"method": "notifications/initialized"})

    @classmethod
    @contextmanager
    def running(cls, name: str, vcenter: SimServer, home: Path) -> Iterator[McpServer]:
        """Start the server of this name with the vCenter as its only target."""
        address, folder = urlsplit(vcenter.url), home / f".{name}"
        folder.mkdir(mode=0o700)
        target = {"name": "lab", "host": address.hostname, "port": address.port, "username": vcenter.username}
        (folder / "config.yaml").write_text(yaml.safe_dump({"targets": [target]}), encoding="utf-8")
        # Each server has its own name for the variable.
        passwords = dict.fromkeys(("VMWARE_LAB_PASSWORD", "VMWARE_PRIVATEAI_LAB_PASSWORD"), vcenter.password)
        with (
            (home / "stderr").open("w", encoding="utf-8") as errors,
            subprocess.Popen(
                [CLIENTS / f"{name}-mcp"],
                env=_environment(vcenter, home) | passwords,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            ) as process,
        ):
            try:
                yield cls(process)
            finally:
                process.terminate()

    def tools(self) -> set[str]:
        return {tool["name"] for tool in self._ask("tools/list", {})["tools"]}

    def call(self, tool: str, arguments: Mapping[str, Any]) -> tuple[bool, Any]:
        """Return whether the call failed, and the document or the text that it answered."""
        answer = self._ask("tools/call", {"name": tool, "arguments": arguments})
        text = "".join(part["text"] for part in answer["content"])
        try:
            return answer["isError"], json.loads(text)
        except ValueError:
            return answer["isError"], text

    def _ask(self, method: str, parameters: Mapping[str, Any]) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": parameters})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == self._number:
                return message["result"]
        raise AssertionError("the MCP server ended")

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()


def _environment(vcenter: SimServer, home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "SSL_CERT_FILE": str(vcenter.ca_file)}


def _call(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return what a row of the table asks: the first key and its arguments."""
    return next(iter(row.items()))


def _difference(row: Mapping[str, Any], failed: bool, answer: Any) -> str:
    """Return how the answer differs from the row, or nothing."""
    if "refused" in row:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return "" if failed and row["refused"] in text else f"{_call(row)}: not refused as the table says: {answer}"
    difference = f"failed: {answer}" if failed else _mismatch(row["gives"], answer)
    return f"{_call(row)}: {difference}" if difference else ""


def _mismatch(expected: Any, answer: Any) -> str:
    """Return the first difference. A document may hold more keys than expected; a list has exactly these elements."""
    if isinstance(expected, dict) and isinstance(answer, dict):
        parts = [
            f"no {key} in {answer}" if key not in answer else _mismatch(expected[key], answer[key]) for key in expected
        ]
        return next(filter(None, parts), "")
    if isinstance(expected, list) and isinstance(answer, list) and len(expected) == len(answer):
        return next(filter(None, map(_mismatch, expected, answer)), "")
    return "" if expected == answer else f"{answer!r}, not {expected!r}"
