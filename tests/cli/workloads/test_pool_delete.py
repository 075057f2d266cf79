"""`gpuops pool delete` as typed: refused while somebody has something of the pool, else it is gone with its marks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpuops import clock
from gpuops.advise.lending_servers import POOL_MARK
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import SetAttribute
from gpuops.vsphere.connection import Connection
from tests.cli.workloads.test_pool import TypedPool, made, moved_clock, typed_pool
from tests.cli.workloads.test_pool_nights import PoolNight, lab, make, waited
from tests.wire.conftest import target_of

__all__ = ("lab", "made", "moved_clock", "typed_pool", "waited")

DELETE = ("delete", "--pool", "lab")
LEND = ("lend", "--memory", "40GiB", "--for", "4h", "--client")


def vms(pool: TypedPool) -> dict[str, Vm]:
    with Connection(target_of(pool.server)) as connection:
        return {vm.name: vm for vm in connection.inventory().vms.values()}


def marks(pool: TypedPool) -> dict[str, str]:
    return {name: mark for name, vm in vms(pool).items() if (mark := vm.attributes.get(POOL_MARK))}


def test_a_pool_that_was_made_is_deleted_and_its_servers_stay_as_they_are(made: TypedPool) -> None:
    before = vms(made)
    assert marks(made) == {"ml-03": "lab", "ml-04": "lab"}
    foreseen = made.told(*DELETE, "--dry-run")
    assert (foreseen["applied"], foreseen["changed"], foreseen["deleted"]) == (False, True, True)
    assert "dry run: nothing was changed" in made.said(*DELETE, "--dry-run")
    assert [each["name"] for each in made.told("show")["pools"]] == ["lab"] and vms(made) == before
    done = made.told(*DELETE, "--yes")
    assert (done["applied"], done["deleted"], done["gone"]) == (True, True, ["ml-03", "ml-04"])
    assert (done["warnings"], done["failed"], done["servers"]) == ([], [], [])
    assert made.told("show")["pools"] == [] and marks(made) == {}
    after = vms(made)
    assert {name: (vm.power, vm.devices) for name, vm in after.items()} == {
        name: (vm.power, vm.devices) for name, vm in before.items()
    }
    calls = len(made.server.world.ledger)
    for name in ((), ("--dry-run",), ("--yes",)):
        assert "there is no pool in this vCenter" in made.said(*DELETE, *name, code=2)
    changing = [each.method for each in list(made.server.world.ledger)[calls:] if each.method == "SetField"]
    assert changing == [], "the second call changes nothing"


def test_it_is_asked_about_and_nobody_there_to_ask_leaves_it(made: TypedPool) -> None:
    said = made.said(*DELETE, code=2)
    assert "the pool above is deleted, and nobody is there to ask" in said
    assert "pool lab is deleted, with its leases that are over" in said and "server ml-03 leaves the pool" in said
    assert "dry run" not in said
    assert [each["name"] for each in made.told("show")["pools"]] == ["lab"] and len(marks(made)) == 2


@pytest.mark.long
def test_another_pool_is_left_alone_and_a_name_is_always_said(made: TypedPool) -> None:
    assert "there is no pool 'other'" in made.said("delete", "--pool", "other", "--yes", code=2)
    assert "--pool" in made.said("delete", "--yes", code=2)
    for server in ("ml-03", "ml-04"):
        made.told("reclaim", "--server", server, "--yes")
    made.told("create", "--file", made.changed("name: lab", "name: other"))
    made.told(LEND[0], "--pool", "other", *LEND[1:], "ml-07")
    assert made.told(*DELETE, "--yes")["deleted"]
    [other] = made.told("show")["pools"]
    assert (other["name"], len(other["leases"])) == ("other", 1)
    assert marks(made) == {"ml-03": "other", "ml-04": "other"}, "the marks of another pool are left"


@pytest.mark.long
def test_it_is_refused_with_a_line_for_each_lease_until_all_are_given_back(made: TypedPool) -> None:
    for client in ("ml-07", "ml-08"):
        made.told(*LEND, client)
    made.told("lend", "--memory", "20GiB", "--for", "4h", "--client", "snapped")
    made.told("reclaim", "--server", "ml-03", "--grace", "30m", "--yes")
    for more in ((), ("--yes",), ("--dry-run",)):
        ends, goes_on, lent, waits = sorted(made.said(*DELETE, *more, code=3).splitlines())
        assert ends.startswith("ml-07: has the lease ") and "which ends at" in ends
        assert goes_on.startswith("ml-07: waits for the lease ") and waits.startswith("snapped: waits for the lease ")
        assert lent.startswith("ml-08: has the lease ")
        assert "pool reclaim --pool lab --server ml-04 --grace 15m takes its server back" in lent
        for client, line in (("ml-07", ends), ("ml-07", goes_on), ("ml-08", lent), ("snapped", waits)):
            assert f"(next: {'wait, or ' * (line is ends)}gpuops pool return --pool lab --client {client}" in line
    assert sorted(made.leases) == ["ml-07", "ml-08", "snapped"] and len(marks(made)) == 2
    for client in ("ml-07", "ml-08", "snapped"):
        made.told("return", "--client", client)
    assert made.told(*DELETE, "--yes")["deleted"] and marks(made) == {}


@pytest.mark.long
def test_leases_that_are_over_go_with_it_and_one_of_that_name_begins_without_them(
    made: TypedPool, moved_clock: None
) -> None:
    made.told(*LEND, "ml-07")
    clock.set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(hours=5))
    assert made.told("show")["pools"][0]["leases"][0]["state"] == "lent", "nobody has looked since"
    done = made.told(*DELETE, "--yes")
    assert done["deleted"] and [each["state"] for each in done["leases"]] == ["ended"]
    made.told("create", "--file", str(made.file))
    assert made.told("show", "--ended", "9")["pools"][0]["leases"] == []
    assert made.told(*LEND, "ml-07")["leases"][0]["state"] == "lent"


@pytest.mark.long
def test_a_server_that_is_gone_is_told_of_and_keeps_no_pool(made: TypedPool) -> None:
    with Connection(target_of(made.server)) as connection:
        [vm] = [each for each in connection.inventory().vms.values() if each.name == "ml-03"]
        wire = connection.vm(vm.ref)
        for begin in (wire.PowerOffVM_Task, wire.Destroy_Task):
            assert [end.error for end in connection.wait([TaskRef(begin()._moId)], 600.0)] == [None]
    for more in (("--dry-run",), ("--yes",)):
        done = made.told(*DELETE, *more)
        [told] = done["warnings"]
        assert told.startswith("ml-03 leaves the pool, and is not seen") and "gpuops.pool" in told
        assert done["deleted"] and done["failed"] == []
    assert made.told("show")["pools"] == [] and marks(made) == {}


def test_a_mark_that_cannot_be_cleared_keeps_the_pool_until_it_can(made: TypedPool) -> None:
    authority, username = made.server.world.authority, made.server.username
    before = list(authority.permissions)
    role = authority.add_role("no-marks", {"Global.ManageCustomFields"})
    authority.permit(username, role)
    for _ in range(2):
        done = made.told(*DELETE, "--yes", code=4)
        assert not done["deleted"] and len(done["failed"]) == 2
        assert all("its mark gpuops.pool is not as it should be" in each for each in done["failed"])
        [pool] = made.told("show")["pools"]
        assert [each["state"] for each in pool["servers"]] == ["leaving", "leaving"] and len(marks(made)) == 2
    assert "no server of pool lab lends" in made.said(*LEND, "ml-07", code=3), "it lends nothing more"
    authority.permissions[:] = before
    assert made.told("reclaim", "--due")["deleted"], "whichever call is next goes on"
    assert made.told("show")["pools"] == [] and marks(made) == {}


@pytest.mark.long
@pytest.mark.parametrize("by_night", ["take-back", "give"])
def test_a_pool_that_a_policy_names_is_deleted_all_the_same_and_a_night_says_that_it_is_not_there(
    lab: PoolNight, by_night: str
) -> None:
    make(lab, runs=by_night == "take-back")
    night = ("rotate", "night", "--policy", lab.policy(by_night, "{vm: ml-06, relocate: true}"))
    line = "lending: there is no pool lab: its servers are VMs like others to this night (gpuops pool create makes it"
    assert line not in lab.text(*night, "--dry-run")
    assert lab.run("pool", "delete", "--pool", "lab", "--yes")["deleted"]
    assert line in lab.text(*night, "--dry-run")
    assert line in lab.text(*night, "--yes")
    assert lab.power("ml-06") == "poweredOn"
    lab.run("rotate", "day", "--yes")


@pytest.mark.long
def test_a_server_whose_mark_stayed_is_left_alone_by_nights_which_say_why(lab: PoolNight, waited: list[float]) -> None:
    make(lab, runs=True)
    assert lab.run("pool", "delete", "--pool", "lab", "--yes")["deleted"]
    with Connection(target_of(lab.server)) as connection:
        server = connection.inventory().find_vm("ml-09")
        connection.submit(SetAttribute(server.ref, POOL_MARK, "lab"), connection.inventory(), "somebody")
    night = ("rotate", "night", "--policy", lab.policy("take-back", "{vm: ml-06, relocate: true}"))
    found = lab.text(*night, "--yes")
    assert "lending: there is no pool lab" in found
    assert "pool lab: ml-09 not drained, and left alone tonight: there is no pool" in found
    assert lab.power("ml-09") == "poweredOn"
