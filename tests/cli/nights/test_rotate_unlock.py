"""`gpuops rotate unlock` as typed: that very lease and no other, and a fresh one by force alone."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.execute.lease.lease import Nonces, take
from gpuops.plan.rotation.lease_rules import TTL_S
from tests.cli.conftest import Lab
from tests.wire.roles.test_least_privilege import site_of

LAB_POLICY = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")


@pytest.mark.long
def test_a_lease_left_behind(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{LAB_POLICY}\nlock_vm: bare\n")
    named = ("--policy", str(policy))
    assert lab.run("rotate", "init", *named).exit_code == 0
    free = lab.run("rotate", "unlock", *named)
    assert (free.exit_code, "no run holds the lease on bare" in free.stderr) == (3, True)
    with site_of(lab.server, tmp_path / "other") as other_site:
        take(other_site, "bare", Nonces(tmp_path / "other", other_site.vcenter.uuid))
    lease = json.loads(lab.run("rotate", "status", *named, "--output", "json").stdout)["lease"]
    assert f"(id {lease['id']})" in lab.run("rotate", "status", *named).stdout
    before = lab.effects
    assert lab.run("rotate", "night", *named, "--yes").exit_code == 6
    wrong = lab.run("rotate", "unlock", "--id", "0" * 16, *named)
    assert wrong.exit_code == 3
    assert wrong.stderr.rstrip().endswith(f"gpuops rotate unlock --id {lease['id']} --policy FILE"), "it knows no other"
    fresh = lab.run("rotate", "unlock", "--id", lease["id"], *named)
    assert (fresh.exit_code, "--force" in fresh.stderr) == (6, True)
    assert lab.effects == before
    freed = lab.run("rotate", "unlock", "--id", lease["id"], "--force", *named)
    assert (freed.exit_code, freed.stdout.startswith("given back: the lease of pid ")) == (0, True)
    assert lab.run("rotate", "night", *named, "--yes").exit_code == 0


def test_one_that_ran_out_needs_no_force(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{LAB_POLICY}\nlock_vm: bare\n")
    with site_of(lab.server, tmp_path / "other") as other_site:
        take(other_site, "bare", Nonces(tmp_path / "other", other_site.vcenter.uuid))
    lab.server.world.clock.advance(TTL_S)
    nonce = json.loads(lab.run("rotate", "status", "--policy", str(policy), "--output", "json").stdout)["lease"]["id"]
    assert lab.run("rotate", "unlock", "--id", nonce, "--policy", str(policy)).exit_code == 0
