"""`rotate unlock` gives back that very lease, and one that was planted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, Refused, UsageError
from gpuops.execute.lease.lease import Nonces, take
from gpuops.execute.rotation.rotation_lock import unlock
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.plan.rotation.lease import CALL_TIMEOUT_S, HEARTBEAT_S, KEY, Lease, lease_text
from tests.execute.lease.leased import LOCK, POLICY, acts, read_lease, run, site
from tests.execute.nights import POLICY_TEXT
from tests.execute.small_vcenter import START, World


def test_unlock_gives_back_that_very_lease_and_no_other(world: World, tmp_path: Path) -> None:
    mine = site(world, tmp_path / "b")
    with pytest.raises(Refused, match="no run holds the lease"):
        unlock(POLICY, mine, None)
    taken_lease = take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    lease = read_lease(world)
    assert lease is not None
    with pytest.raises(Refused, match="holds the lease until") as refusal:
        unlock(POLICY, mine, "another")
    assert lease.nonce in refusal.value.hint
    assert status(mine, POLICY).lease == lease
    with pytest.raises(Locked, match="its run is alive, or died just now") as fresh:
        unlock(POLICY, mine, lease.nonce)
    assert fresh.value.hint.endswith(f"gpuops rotate unlock --id {lease.nonce} --force --policy FILE")
    assert read_lease(world) == lease
    assert unlock(POLICY, mine, lease.nonce, force=True) == lease
    assert status(mine, POLICY).lease is None
    world.now += timedelta(seconds=HEARTBEAT_S)
    assert "somebody gave it back" in (taken_lease.objection() or "")
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    world.now += timedelta(seconds=HEARTBEAT_S + CALL_TIMEOUT_S + 2)
    stale = read_lease(world)
    assert stale is not None
    assert unlock(POLICY, mine, stale.nonce) == stale, "not renewed for longer than a heartbeat and a call"
    with pytest.raises(UsageError, match="has no lock_vm"):
        unlock(parse_policy(POLICY_TEXT, "plain"), mine, None)


@pytest.mark.long
def test_a_lease_that_was_planted_for_years_is_named_and_can_be_taken_away(world: World, tmp_path: Path) -> None:
    """A user who may write to the lock VM can prevent nights, until an admin looks."""
    planted = Lease("nobody", "0123", 7, START + timedelta(days=3650))
    world.set("vm-99", extra_config={KEY: lease_text(planted)})
    mine = site(world, tmp_path)
    with pytest.raises(Locked, match="nobody holds the lease until 2036-"):
        run(world, RunKind.NIGHT, tmp_path)
    assert acts(world) == []
    assert status(mine, POLICY).lease == planted
    assert unlock(POLICY, mine, "0123", force=True) == planted
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == 0
    assert acts(world) != []
