"""`gpuops host mig show`: hosts that do not answer are named and change the exit code."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Lab


def test_hosts_that_could_not_be_read_show_in_the_exit_code(lab: Lab, tmp_path: Path) -> None:
    reading = lab.run(
        "host", "mig", "show", "--host-shell", "ssh", "--ssh-known-hosts", str(tmp_path / "gone"), "-o", "json"
    )
    hosts = json.loads(reading.stdout)["hosts"]
    assert hosts
    assert all("gone does not exist: no SSH key of a host is known" in host["unread"][0] for host in hosts)
    assert reading.exit_code == 4
    assert lab.run("host", "mig", "show").exit_code == 0, "no host was asked"
