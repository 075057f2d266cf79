"""kill -9 of `gpuops pool delete` before and after each thing that it does: the same call, or any other, ends it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.workloads.test_pool_guests import TypedPool, typed
from tests.kills.test_pool_server_kills import marks, serves
from tests.pool_guests import SERVERS

__all__ = ("typed",)

DIES = """
import os, signal, sys
from gpuops.cli.app import main
from gpuops.execute.pool import book, call, clients, guest_work

where = {"book": book.PoolBooks, "call": call, "clients": clients.PoolGuests, "work": guest_work.PoolGuestWork}
deed, name, after = getattr(where[sys.argv[1]], sys.argv[2]), sys.argv[2], sys.argv[3] == "after"
left = int(sys.argv[4])

def dies(*args, **kwargs):
    global left
    left -= 1
    if left == 0 and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    done = deed(*args, **kwargs)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

setattr(where[sys.argv[1]], name, dies)
sys.argv = ["gpuops", *sys.argv[5:]]
main()
"""
DELETE = ("delete", "--pool", "lab", "--yes")
STEPS = (
    ("book", "change", 1),
    ("clients", "stop_server", 1),
    ("clients", "stop_server", 2),
    ("call", "unmark_servers", 1),
    ("work", "without_left", 1),
    ("book", "change", 2),
    ("book", "remove", 1),
)
"""In their order: the book says that the servers leave, their programs stop, their marks go, they are out of the book,
and then the pool is."""


@pytest.mark.drawn_cases(4)
@pytest.mark.long
@pytest.mark.parametrize("ends_it", [DELETE, ("reclaim", "--due")], ids=["same", "due"])
@pytest.mark.parametrize("after", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=[f"{name}-{time}" for _, name, time in STEPS])
def test_a_pool_whose_deletion_was_killed_is_deleted_by_the_next_call(
    typed: TypedPool, step: tuple[str, str, int], after: str, ends_it: tuple[str, ...]
) -> None:
    typed.run("create", "--file", str(typed.file))
    typed.run("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h")
    typed.run("return", "--client", "ds-01")
    assert marks(typed.world) == dict.fromkeys(SERVERS, "lab") and all(serves(typed.world, name) for name in SERVERS)
    where, name, time = step
    command = [sys.executable, "-c", DIES, where, name, after, str(time), *typed.words(*DELETE)]
    assert subprocess.run(command, capture_output=True, timeout=100).returncode == -9
    found = typed.run("show")["pools"]
    if step == STEPS[0] and after == "before":
        assert [each["state"] for each in found[0]["servers"]] == ["serving", "serving"], "nothing had begun"
        ends_it = DELETE
    if step in (STEPS[-1], ("work", "without_left", 1)) and after == "after":
        assert found == [] and "there is no pool" in typed.run(*ends_it, exit_code=2)["message"]
    else:
        assert typed.run(*ends_it)["deleted"]
    assert typed.run("show")["pools"] == [] and typed.in_guests() == []
    assert marks(typed.world) == {} and not any(serves(typed.world, name) for name in SERVERS)
    made_anew = typed.run("create", "--file", str(typed.file))
    assert [each["state"] for each in made_anew["servers"]] == ["serving", "serving"]
    assert typed.run("show", "--ended", "9")["pools"][0]["leases"] == [], "nothing of the first one is left"


@pytest.mark.long
def test_a_suspended_server_keeps_no_pool_and_it_is_told_that_its_program_is_not_stopped(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    guest = typed.world.guests["gpu-02"]
    guest.wait(guest.vm.SuspendVM_Task())
    done = typed.run(*DELETE)
    assert done["deleted"] and done["failed"] == []
    assert done["warnings"] == ["gpu-02 leaves the pool, and does not run (suspended): its program is not stopped"]
    assert marks(typed.world) == {} and not serves(typed.world, "gpu-01")
