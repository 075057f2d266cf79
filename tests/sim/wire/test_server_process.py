"""A simulated vCenter outlives the process that started it, and keeps none of its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.sim.wire import sim_client

SECRETS = ("GPUOPS_PASSWORD", "VMWARE_PASSWORD", "GOVC_URL", "PGPASSWORD", "GPUOPS_JOURNAL_URL")


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_it_inherits_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "https://Cn4ry@vc.example.com")
    monkeypatch.setenv("KEPT", "yes")
    path = tmp_path / "ready.json"
    running = sim_client.start(path, ["--scenario", "lab"])
    try:
        environ = Path(f"/proc/{running.pid}/environ").read_bytes()
    finally:
        sim_client.stop(path, running)
    assert b"Cn4ry" not in environ
    assert b"KEPT=yes" in environ
