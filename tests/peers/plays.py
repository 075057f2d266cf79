"""Plays: tasks of Ansible run against a simulated vCenter, with gpuops's collection or with community.vmware.

community.vmware needs an environment of its own (`make -C tests/peers ansible`): the package `ansible` and `vcf-sdk`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from tests.peers.processes import BINARIES, Endpoint

ROOT: Final = Path(__file__).resolve().parents[2]
COMMUNITY: Final = BINARIES / "ansible" / "bin"
"""Where its ansible-playbook is, once it is built."""

Task = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a play: what each task returned, and how long all of it took."""

    results: tuple[Mapping[str, Any], ...]
    wall_s: float


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: whose ansible-playbook, and the name of the collection."""

    name: str
    binaries: Path

    def play(self, endpoint: Endpoint, folder: Path, tasks: Sequence[Task]) -> Played:
        """Runs the tasks, each whatever became of the one before.

        Raises RuntimeError when the play itself fails, or its ansible-playbook is not there.
        """
        if not (self.binaries / "ansible-playbook").exists():
            raise RuntimeError(f"{self.name} is not there: make -C tests/peers ansible")
        book, results_file = folder / "book.yml", folder / "told.json"
        book.write_text(yaml.safe_dump(_book(tasks, results_file), sort_keys=False), encoding="utf-8")
        began = time.perf_counter()
        completed = subprocess.run(
            [self.binaries / "ansible-playbook", book],
            cwd=ROOT,
            env=environment(endpoint, folder, self.binaries),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        wall_s = time.perf_counter() - began
        if completed.returncode:
            raise RuntimeError(f"{self.name}: {completed.stdout}\n{completed.stderr}")
        return Played(tuple(json.loads(results_file.read_text(encoding="utf-8"))), wall_s)


GPUOPS: Final = Side("gpuops.vsphere", Path(sys.executable).parent)
PEER: Final = Side("community.vmware", COMMUNITY)


def _book(tasks: Sequence[Task], results_file: Path) -> list[dict[str, Any]]:
    names = [f"result_{number}" for number in range(len(tasks))]
    copy_arguments = {
        "content": "{{ [" + ", ".join(names) + "] | to_json }}",
        "dest": str(results_file),
        "mode": "0600",
    }
    return [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "vars": {"ansible_python_interpreter": "{{ ansible_playbook_python }}"},
            "tasks": [
                *({**task, "register": name, "ignore_errors": True} for task, name in zip(tasks, names, strict=True)),
                {"ansible.builtin.copy": copy_arguments, "check_mode": False},
            ],
        }
    ]


def environment(endpoint: Endpoint, folder: Path, binaries: Path) -> Mapping[str, str]:
    """Both read the same variables; the peer's pyVmomi trusts the CA files of OpenSSL."""
    where = urlsplit(endpoint.url)
    return {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT) if binaries != COMMUNITY else "",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "VMWARE_HOST": str(where.hostname),
        "VMWARE_PORT": str(where.port),
        "VMWARE_USER": endpoint.username,
        "VMWARE_PASSWORD": endpoint.password,
        "SSL_CERT_FILE": str(endpoint.ca_file),
        "REQUESTS_CA_BUNDLE": str(endpoint.ca_file),
    }
