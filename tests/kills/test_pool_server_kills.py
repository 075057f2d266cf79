"""kill -9 of `gpuops pool` between the book's entry and what a server's guest is to do: the next call does it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.advise.lending_servers import POOL_MARK
from gpuops.clock import wall_clock
from gpuops.model.workloads.lease_book import LentShare
from gpuops.model.workloads.remote_gpu import ServerCondition
from tests.cli.workloads.test_pool_guests import TypedPool, typed
from tests.pool_guests import PoolWorld

pytestmark = pytest.mark.long

__all__ = ("typed",)

DIES = """
import os, signal, sys
from gpuops.cli.app import main
from gpuops.execute.pool import call, clients

def dead(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def dead_after(deed):
    def both(*args, **kwargs):
        deed(*args, **kwargs)
        dead()
    return both

where, name = {"clients": clients.PoolGuests, "call": call}[sys.argv[1]], sys.argv[2]
setattr(where, name, dead_after(getattr(where, name)) if sys.argv[3] == "after" else dead)
sys.argv = ["gpuops", *sys.argv[4:]]
main()
"""


def killed(typed: TypedPool, where: str, name: str, after: str, *words: str) -> None:
    """A process of its own was killed before or after it did that."""
    command = [sys.executable, "-c", DIES, where, name, after, *typed.words(*words)]
    assert subprocess.run(command, capture_output=True, timeout=100).returncode == -9


def serves(world: PoolWorld, name: str) -> bool:
    return world.pool().health(world.pool_server(name)).condition is ServerCondition.SERVES


def marks(world: PoolWorld) -> dict[str, str]:
    return {vm.name: mark for vm in world.inventory().vms.values() if (mark := vm.attributes.get(POOL_MARK))}


@pytest.mark.parametrize(
    ("where", "name", "after"),
    [
        ("clients", "stop_server", "before"),
        ("clients", "stop_server", "after"),
        ("call", "unmark_servers", "before"),
        ("call", "unmark_servers", "after"),
    ],
)
def test_a_server_that_left_its_pool_serves_nobody_after_the_next_call(
    typed: TypedPool, where: str, name: str, after: str
) -> None:
    typed.run("create", "--file", str(typed.file))
    smaller = Path(typed.file).with_name("smaller.yaml")
    smaller.write_text(typed.file.read_text().replace("gpu-01, gpu-02", "gpu-01"), encoding="utf-8")
    killed(typed, where, name, after, "create", "--file", str(smaller))
    typed.run("reclaim", "--due")
    assert serves(typed.world, "gpu-01") and not serves(typed.world, "gpu-02")
    assert marks(typed.world) == {"gpu-01": "lab"}
    [found] = typed.run("show")["pools"]
    assert [each["name"] for each in found["servers"]] == ["gpu-01"]
    assert not typed.run("reclaim", "--due")["changed"]


@pytest.mark.parametrize("after", ["before", "after"])
def test_a_server_that_is_in_the_book_is_started_by_the_next_call(typed: TypedPool, after: str) -> None:
    killed(typed, "clients", "start_server", after, "create", "--file", str(typed.file))
    typed.run("reclaim", "--due")
    [found] = typed.run("show")["pools"]
    assert [each["state"] for each in found["servers"]] == ["serving", "serving"]
    assert serves(typed.world, "gpu-01") and serves(typed.world, "gpu-02")


@pytest.mark.parametrize(
    ("where", "name", "after"),
    [
        ("call", "mark_servers", "before"),
        ("call", "mark_servers", "after"),
        ("clients", "enable", "before"),
        ("clients", "enable", "after"),
    ],
)
def test_a_lease_that_is_in_the_book_is_enabled_by_the_next_call(
    typed: TypedPool, where: str, name: str, after: str
) -> None:
    typed.run("create", "--file", str(typed.file))
    killed(typed, where, name, after, "lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h")
    typed.run("reclaim", "--due")
    assert typed.world.use("ds-01", "ALLOC 8192", "ALLOC 1") == ["0 OK", "0 OK 8192", "0 NO memory"]
    assert not typed.run("reclaim", "--due")["changed"]


@pytest.mark.parametrize("after", ["before", "after"])
def test_a_lease_that_is_over_in_the_book_is_cut_off_by_the_next_call(typed: TypedPool, after: str) -> None:
    typed.run("create", "--file", str(typed.file))
    typed.run("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h")
    killed(typed, "clients", "disable", after, "return", "--client", "ds-01")
    typed.run("reclaim", "--due")
    assert typed.in_guests() == []
    [found] = typed.run("show")["pools"]
    assert found["leases"] == []


def test_what_a_server_serves_and_the_book_does_not_lend_is_cut_off(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    typed.run("lend", "--client", "ds-02", "--memory", "8GiB", "--for", "1h")
    lease = typed.world.lease("ds-01", LentShare("gpu-02", 0, 500), id="forgotten")
    typed.world.pool().enable(lease, wall_clock())
    answer = typed.run("reclaim", "--due")
    assert any("forgotten, which the book does not lend: it is cut off" in each for each in answer["warnings"])
    assert typed.world.use("ds-01", "PING")[0].startswith("not reached")
    assert typed.world.use("ds-02", "ALLOC 8192") == ["0 OK", "0 OK 8192"], "it keeps its own"
    assert typed.run("reclaim", "--due")["warnings"] == []


def test_a_lease_whose_server_was_started_anew_inside_its_guest_is_broken_and_goes_on(typed: TypedPool) -> None:
    typed.run("create", "--file", str(typed.file))
    typed.run("lend", "--client", "ds-01", "--memory", "8GiB", "--for", "1h")
    assert not typed.run("reclaim", "--due")["changed"]
    [boot] = [path for name in ("gpu-01", "gpu-02") for path in typed.world.root(name).rglob("boot")]
    boot.write_text("of another start\n")
    answer = typed.run("reclaim", "--due")
    assert sorted(each["state"] for each in answer["leases"]) == ["broken", "lent"]
    [broken] = [each for each in answer["leases"] if each["state"] == "broken"]
    assert broken["because"].endswith("has lost its session: its guest was started anew")
    assert typed.world.use("ds-01", "ALLOC 8192", "ALLOC 1") == ["0 OK", "0 OK 8192", "0 NO memory"]
    assert not typed.run("reclaim", "--due")["changed"]
