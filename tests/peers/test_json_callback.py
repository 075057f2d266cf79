"""The callback that prints a whole run as JSON, `ansible.posix.json`, tells no password.

It comes with the package `ansible`, as community.vmware does (`make collections`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.ansible.conftest import ROOT, Ansible, ansible
from tests.ansible.test_secrets import sweep

from .plays import PEER

__all__ = ["ansible"]

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not PEER.binaries.exists() and "CI" not in os.environ, reason="no ansible.posix: type `make collections`"
    ),
]


def test_the_run_as_json_has_no_password(ansible: Ansible, tmp_path: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = (ROOT / "gpuops", PEER.binaries.parent / "lib" / version / "site-packages")
    swept = sweep(
        ansible,
        tmp_path,
        ANSIBLE_COLLECTIONS_PATH=":".join(map(str, paths)),
        ANSIBLE_STDOUT_CALLBACK="ansible.posix.json",
    )
    stdout = swept.places["stdout"]
    run = json.loads(stdout[stdout.index("{\n") :])
    tasks = run["plays"][0]["tasks"]
    assert {"gpuops vm_gpu good", "gpuops vm_gpu bad"} <= {task["task"]["name"] for task in tasks}
    assert [secret for secret in swept.secrets if secret in stdout] == []
