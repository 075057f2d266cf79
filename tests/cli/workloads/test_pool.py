"""`gpuops pool` as typed, on a simulated vCenter whose servers run."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from subprocess import run
from sys import executable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops import clock
from gpuops.cli.app import app
from gpuops.errors import Locked, Refused
from gpuops.execute.journal import Journal
from gpuops.execute.journal.book import Book
from gpuops.execute.journal.record import Kind
from gpuops.extras.lending.pool_guests import LONGEST_MARKING, MARKS
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import SetAttribute
from gpuops.report.layout import Shown, plain
from gpuops.sim.server import start
from gpuops.sim.wire import sim_client
from gpuops.vsphere.connection import Connection
from tests.cli.workloads.test_cluster import Typed
from tests.harness.killing import cut_off
from tests.wire.conftest import target_of

TEMPLATE = Path(__file__).parents[3] / "templates" / "pool.yaml"


class TypedPool(Typed):
    """The command line pointed at the scenario `lab`, whose ml-03 and ml-04 have an L40S each and run.

    `file` is templates/pool.yaml.
    """

    def run(self, *arguments: str) -> Result:
        return super().run("pool", *arguments)

    def said(self, *arguments: str, code: int = 0) -> str:
        completed = self.run(*arguments)
        assert completed.exit_code == code, completed.output
        return completed.stdout if code in (0, 3) else completed.stderr

    def without_servers(self) -> str:
        """The path of the file of a pool that is to be deleted."""
        return self.changed("servers: [ml-03, ml-04]", "servers: []")

    @property
    def leases(self) -> dict[str, dict[str, Any]]:
        """The open leases, by client."""
        return {lease["client"]: lease for lease in self.told("show")["pools"][0]["leases"]}


@pytest.fixture
def typed_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TypedPool]:
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    with start("lab", clock="stepped") as server:
        ready, file = tmp_path / "ready.json", tmp_path / "pool.yaml"
        sim_client.write(ready, sim_client.of(server))
        file.write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
        typed = TypedPool(server, ready, file)
        for vm, device in (("ml-03", ["--device", "0000:5e:00.0"]), ("ml-04", ["--dynamic", "--label", "l40s-ml"])):
            attach = ["attach", "--vm", vm, *device, "--power", "on", "--vcenter", f"sim@{ready}"]
            assert CliRunner().invoke(app, attach).exit_code == 0
        yield typed


@pytest.fixture
def lab_pool(typed_pool: TypedPool) -> TypedPool:
    """The same with the pool."""
    assert typed_pool.told("create", "--file", str(typed_pool.file))["changed"]
    return typed_pool


@pytest.mark.long
def test_a_pool_is_made_once_and_a_dry_run_makes_none(typed_pool: TypedPool) -> None:
    create = ("create", "--file", str(typed_pool.file))
    assert typed_pool.told(*create, "--dry-run")["changed"]
    assert typed_pool.told("show")["pools"] == []
    first = typed_pool.told(*create)
    assert [(server["name"], server["state"]) for server in first["servers"]] == [
        ("ml-03", "serving"),
        ("ml-04", "serving"),
    ]
    assert [server["gpus"] for server in first["servers"]] == [[{"gpu": 0, "memory_mib": 47 * 1024}]] * 2
    second_creation = typed_pool.told(*create)
    assert not second_creation["changed"]
    assert "nothing to do" in typed_pool.said(*create)


def test_a_share_is_lent_shown_and_given_back_and_the_same_again_changes_nothing(lab_pool: TypedPool) -> None:
    lend = ("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    assert lab_pool.told(*lend, "--dry-run")["leases"][0]["state"] == "lent"
    assert lab_pool.leases == {}
    first = lab_pool.told(*lend)
    assert first["leases"][0]["shares"] == [{"server": "ml-03", "gpu": 0, "memory_mib": 8192}]
    second_lease = lab_pool.told(*lend)
    assert not second_lease["changed"]
    assert second_lease["lease"] == first["lease"]
    assert "39 GiB" in lab_pool.said("show")
    give = ("return", "--client", "ml-07")
    assert lab_pool.told(*give)["changed"]
    assert lab_pool.leases == {}
    assert not lab_pool.told(*give)["changed"]


@pytest.fixture
def moved_clock() -> Iterator[None]:
    """Whatever the test does to the time of day is undone."""
    before = clock.wall_clock() - clock.machine_time()
    yield
    clock.set_ahead(before)


@pytest.mark.long
def test_where_there_is_no_room_a_request_is_refused_with_the_next_end(lab_pool: TypedPool) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "40GiB", "--for", "1h", "--gpus", "2")
    request = ("lend", "--client", "ml-08", "--gpu-memory", "20GiB", "--for", "1h")
    refused = lab_pool.told(*request, code=3)["rejections"][-1]
    assert refused["reason"] == "GPUs of pool lab with 20480 MiB of idle memory: needs 1, 0 there"
    assert refused["next"].startswith("a share of at most 7168MiB is idle now; the next lease ends at ")
    lab_pool.told("return", "--client", "ml-07")
    lab_pool.told(*request)


def test_a_lease_ends_by_the_clock(lab_pool: TypedPool, moved_clock: None) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "40GiB", "--for", "1h")
    assert not lab_pool.told("reclaim", "--due")["changed"], "nothing is due yet"
    assert lab_pool.said("reclaim", "--due", "--quiet") == "", "cron mails nothing"
    clock.set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(hours=1, minutes=1))
    assert [lease["state"] for lease in lab_pool.told("reclaim", "--due")["leases"]] == ["ended"]


def test_a_server_is_drained_with_a_grace_and_lends_again(lab_pool: TypedPool) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    drain = ("reclaim", "--server", "ml-03", "--grace", "30m", "--yes")
    assert lab_pool.told(*drain, "--dry-run")["changed"]
    assert lab_pool.leases["ml-07"]["state"] == "lent"
    answer = lab_pool.told(*drain)
    assert [(lease["state"], lease["shares"][0]["server"]) for lease in answer["leases"]] == [("ending", "ml-03")]
    assert not lab_pool.told(*drain)["changed"]
    assert "ml-03 is drained; it lends again after gpuops pool reclaim lab --server ml-03 --again" in (
        " ".join(lab_pool.said("show").split())
    )
    assert lab_pool.told("reclaim", "--server", "ml-03", "--again")["servers"][0]["state"] == "serving"
    # without a person and without --yes nothing is taken
    lab_pool.told("lend", "--client", "ml-08", "--gpu-memory", "40GiB", "--gpus", "2", "--for", "1h", code=3)
    lab_pool.told("return", "--client", "ml-07")
    lab_pool.told("lend", "--client", "ml-08", "--gpu-memory", "40GiB", "--gpus", "2", "--for", "1h")
    assert "there is no terminal to ask at" in lab_pool.said("reclaim", "--server", "ml-04", code=2)


def test_a_lease_that_began_while_the_admin_was_asked_is_asked_about(
    lab_pool: TypedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend = ("lend", "--gpu-memory", "8GiB", "--for", "4h", "--client")
    lab_pool.told(*lend, "ml-07")
    questions: list[str] = []

    def confirm(question: Shown, reason: str) -> None:
        questions.append(plain(question))
        if len(questions) == 1:
            lab_pool.told(*lend, "ml-08")

    monkeypatch.setattr("gpuops.console.running.confirm", confirm)
    answer = lab_pool.told("reclaim", "--server", "ml-03", "--grace", "0")
    assert [("ml-07" in question, "ml-08" in question) for question in questions] == [(True, False), (True, True)]
    assert sorted(lease["client"] for lease in answer["leases"]) == ["ml-07", "ml-08"]


@pytest.mark.long
def test_the_leases_of_a_dead_server_end_at_once(lab_pool: TypedPool) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    answer = lab_pool.told("reclaim", "--server", "ml-03", "--dead", "--yes")
    assert [lease["state"] for lease in answer["leases"]] == ["ended"]
    assert lab_pool.leases == {}
    second_lease = lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    assert second_lease["leases"][0]["shares"] == [{"server": "ml-04", "gpu": 0, "memory_mib": 8192}]


@pytest.mark.long
def test_a_server_that_is_powered_off_is_dead_for_whoever_calls_next(lab_pool: TypedPool) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    with Connection(target_of(lab_pool.server)) as connection:
        [ref] = [vm.ref for vm in connection.inventory().vms.values() if vm.name == "ml-03"]
        task = connection.vm(ref).PowerOffVM_Task()
        assert [end.error for end in connection.wait([TaskRef(task._moId)], 600.0)] == [None]
    answer = lab_pool.told("reclaim", "--due")
    assert [(server["name"], server["state"]) for server in answer["servers"]] == [("ml-03", "dead")]
    assert [lease["state"] for lease in answer["leases"]] == ["ended"]
    refused = lab_pool.told("reclaim", "--server", "ml-03", "--again", code=3)
    assert "its VM does not run (power state poweredOff)" in refused["rejections"][0]["reason"]


@pytest.mark.long
@pytest.mark.parametrize("hidden", ["ml-03", "ml-07"])
def test_a_vm_that_is_not_seen_breaks_nothing_and_is_told_of(lab_pool: TypedPool, hidden: str) -> None:
    """Gone, or hidden from this login: to a read they are the same."""
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    before = lab_pool.leases
    with Connection(target_of(lab_pool.server)) as connection:
        [vm] = [seen_vm for seen_vm in connection.inventory().vms.values() if seen_vm.name == hidden]
        wire = connection.vm(vm.ref)
        for begin in ([wire.PowerOffVM_Task] if vm.power is PowerState.ON else []) + [wire.Destroy_Task]:
            assert [end.error for end in connection.wait([TaskRef(begin()._moId)], 600.0)] == [None]
    answer = lab_pool.told("reclaim", "--due")
    advice = {
        "ml-03": "pool reclaim lab --server ml-03 --dead",
        "ml-07": "pool return lab --client ml-07",
    }
    assert [warning.split("gpuops ")[-1] for warning in answer["warnings"]] == [advice[hidden]]
    assert lab_pool.leases == before
    lab_pool.told(*advice[hidden].split()[1:], *(["--yes"] if hidden == "ml-03" else []))
    assert lab_pool.leases == {}


@pytest.mark.long
@pytest.mark.parametrize("change", [["detach", "--all"], ["attach", "--profile", "l40s-8q"]])
def test_a_server_that_lends_is_not_changed_until_it_is_drained(lab_pool: TypedPool, change: list[str]) -> None:
    def typed(*options: str) -> Result:
        return CliRunner().invoke(app, [*change, "--vm", "ml-03", *options, "--vcenter", f"sim@{lab_pool.ready}"])

    refused = typed("--power", "off", "--dry-run")
    assert refused.exit_code == 3
    assert "lends its GPUs over the network (pool lab)" in refused.output
    assert "gpuops pool reclaim --server ml-03" in refused.output
    lab_pool.told("reclaim", "--server", "ml-03", "--yes")
    assert "lends its GPUs" not in typed("--power", "off", "--dry-run").output


@pytest.mark.long
def test_two_processes_at_once_lend_no_more_than_there_is(typed_pool: TypedPool) -> None:
    lab_pool = typed_pool
    lab_pool.told("create", "--file", lab_pool.changed("  research: {memory: 80GiB, shares: 4}\nquota:", "  none:"))
    clients = ["ml-07", "ml-08", "snapped", "legacy"]

    def lend(client: str) -> int:
        share_options = ["--gpu-memory", "40GiB", "--for", "1h", "--vcenter", f"sim@{lab_pool.ready}"]
        return run(
            [executable, "-m", "gpuops", "pool", "lend", "--client", client, *share_options], check=False
        ).returncode

    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lend, clients))
    assert sorted(codes) == [0, 0, 3, 3]
    assert [lease["state"] for lease in lab_pool.leases.values()] == ["lent", "lent"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["lend", "--client", "vdi-01", "--gpu-memory", "4GiB", "--for", "1h"], 3, "has a GPU of its own"),
        (["lend", "--client", "ml-03", "--gpu-memory", "4GiB", "--for", "1h"], 3, "is a server of pool lab"),
        (["lend", "--client", "golden", "--gpu-memory", "4GiB", "--for", "1h"], 3, "is a template"),
        (["lend", "--client", "nobody", "--gpu-memory", "4GiB", "--for", "1h"], 2, "no VM 'nobody'"),
        (["lend", "--client", "ml-08", "--gpu-memory", "4", "--for", "1h"], 2, "'4' is not a size of memory"),
        (["lend", "--client", "ml-08", "--gpu-memory", "4GiB", "--for", "soon"], 2, "--for: 'soon' is not a duration"),
        (["lend", "--client", "ml-08", "--gpu-memory", "4GiB", "--for", "2d"], 3, "set --for to at most 24 h"),
        (
            ["lend", "--client", "ml-08", "--gpu-memory", "48GiB", "--for", "1h"],
            3,
            "a share of at most 48128MiB is idle now",
        ),
        (
            ["lend", "--client", "ml-08", "--gpu-memory", "40GiB", "--gpus", "3", "--for", "1h"],
            3,
            "40960 MiB of idle memory: needs 3, 2 there",
        ),
        (
            ["lend", "--client", "ml-08", "--gpu-memory", "42GiB", "--gpus", "2", "--for", "1h"],
            3,
            "memory quota of research",
        ),
        (["lend", "--client", "ml-08", "--gpu-memory", "4GiB", "--for", "1h", "x"], 2, "there is no pool 'x'"),
        (["return", "--client", "nobody"], 2, "no VM 'nobody'"),
        (["reclaim"], 2, "set either --server VM or --due"),
        (["reclaim", "--due", "--dead"], 2, "--dead cannot be used with --due"),
        (["reclaim", "--due", "--grace", "5m"], 2, "--grace cannot be used with --due"),
        (["reclaim", "--server", "ml-03", "--dead", "--grace", "5m"], 2, "--grace and --dead exclude each other"),
        (["reclaim", "--server", "ml-03", "--again", "--grace", "0"], 2, "--grace and --again exclude each other"),
        (["reclaim", "--server", "ml-03", "--grace", "now"], 2, "--grace: 'now' is not a duration"),
        (["reclaim", "--server", "ml-09", "--yes"], 3, "is not a server of pool lab"),
        (["show", "x"], 2, "there is no pool 'x'"),
    ],
)
def test_what_cannot_be_is_one_line(lab_pool: TypedPool, arguments: list[str], code: int, says: str) -> None:
    assert says in lab_pool.said(*arguments, code=code)
    assert lab_pool.leases == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("servers: [ml-03, ml-04]", "servers: [ml-07]", 3, "ml-07: has no GPU to lend"),
        ("servers: [ml-03, ml-04]", "servers: [vdi-01]", 3, "only whole GPUs are lent"),
        ("servers: [ml-03, ml-04]", "servers: [nobody]", 2, "no VM 'nobody'"),
        ("servers: [ml-03, ml-04]", "servers: [ml-03, ml-03]", 3, "ml-03: is listed twice, or has"),
        ("servers: [ml-03, ml-04]", "servers: [ml-03, /lab-dc/vm/ml/ml-03]", 3, "ml-03: is listed twice, or has"),
        ("keep: 1GiB", "keep: 48GiB", 3, "`keep` leaves no memory"),
        ("grace: 15m", "grace: quickly", 2, "grace: 'quickly' is not a duration"),
        ("# program: lupine ", "program: nothing  # ", 2, "no program 'nothing'"),
        ("owner: attribute:gpuops.owner", "owner: me", 2, "'me' does not name a source of VM owners"),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_line(
    typed_pool: TypedPool, old: str, new: str, code: int, says: str
) -> None:
    assert says in typed_pool.said("create", "--file", typed_pool.changed(old, new), code=code)


@pytest.mark.long
def test_a_server_with_leases_does_not_leave_the_pool(lab_pool: TypedPool) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    without = lab_pool.changed("servers: [ml-03, ml-04]", "servers: [ml-04]")
    assert "gpuops pool reclaim lab --server ml-03" in lab_pool.said("create", "--file", without, code=3)
    lab_pool.told("return", "--client", "ml-07")
    assert lab_pool.told("create", "--file", without)["gone"] == ["ml-03"]


@pytest.mark.long
def test_vms_are_found_by_what_they_are_called_now_and_by_what_they_were(lab_pool: TypedPool) -> None:
    def renamed(old: str, new: str) -> str:
        with Connection(target_of(lab_pool.server)) as connection:
            [vm] = [seen_vm for seen_vm in connection.inventory().vms.values() if seen_vm.name == old]
            task = connection.vm(vm.ref).Rename_Task(new)
            assert [end.error for end in connection.wait([TaskRef(task._moId)], 600.0)] == [None]
        return f"moid:{vm.ref}"

    size = ("--gpu-memory", "8GiB", "--for", "4h")
    lab_pool.told("lend", "--client", "ml-07", *size)
    first = renamed("ml-07", "x; reboot")
    for name in ("ml-07", "x; reboot", first):
        assert lab_pool.told("return", "--client", name, "--dry-run")["leases"][0]["state"] == "ended", name
    [lease] = lab_pool.leases.values()
    renamed("ml-08", "ml-07")
    assert not lab_pool.told("return", "--client", "ml-07")["changed"], "it is another VM, which has no lease"
    lab_pool.told("return", "--client", f"uuid:{lease['client_uuid']}")
    assert lab_pool.leases == {}
    lab_pool.told("lend", "--client", "x; reboot", *size)
    refusal = lab_pool.said("lend", "--client", "x; reboot", "--gpu-memory", "9GiB", "--for", "4h", code=3)
    assert "gpuops pool return lab --client 'x; reboot' first" in refusal, "it is one word of a shell"
    server = renamed("ml-03", "gpu-03")
    for name in ("ml-03", "gpu-03", server, "/lab-dc/vm/ml/gpu-03"):
        reclaimed = lab_pool.told("reclaim", "--server", name, "--yes", "--dry-run")
        assert [server_row["name"] for server_row in reclaimed["servers"]] == ["ml-03"], name
    lab_pool.told("reclaim", "--server", server, "--yes")
    assert lab_pool.told("reclaim", "--server", server, "--again")["servers"][0]["state"] == "serving"


@pytest.mark.long
def test_the_network_of_a_pool_stays_while_leases_are_set_up_in_it(lab_pool: TypedPool) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    other_file = lab_pool.changed("network: VM Network", "network: Storage")
    assert "its leases are set up with no program in the network VM Network" in lab_pool.said(
        "create", "--file", other_file, code=3
    )
    lab_pool.told("return", "--client", "ml-07")
    lab_pool.told("create", "--file", other_file)


@pytest.mark.long
def test_a_vm_is_a_server_of_one_pool_only(lab_pool: TypedPool) -> None:
    other_file = lab_pool.changed("name: lab", "name: other")
    rule = "ml-03: is already a server of pool lab (next: remove it from the file of pool lab, and run gpuops"
    for options in ((), ("--dry-run",)):
        assert rule in lab_pool.said("create", "--file", other_file, *options, code=3)
    assert [pool["name"] for pool in lab_pool.told("show")["pools"]] == ["lab"]
    for server in ("ml-03", "ml-04"):
        lab_pool.told("reclaim", "--server", server, "--yes")
    assert rule in lab_pool.said("create", "--file", other_file, code=3), "drained too: it may lend again"
    lab_pool.told("create", "--file", lab_pool.without_servers())
    lab_pool.told("create", "--file", lab_pool.changed("name: lab", "name: other"))
    assert marks(lab_pool) == {"ml-03": "other", "ml-04": "other"}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("line", "before"), [(Kind.INTENT, False), (Kind.SETTLED, True), (Kind.SETTLED, False)])
def test_marks_that_are_cut_off_are_set_and_settled_by_later_commands(
    typed_pool: TypedPool, moved_clock: None, monkeypatch: pytest.MonkeyPatch, line: Kind, before: bool
) -> None:
    create = ("create", "--file", str(typed_pool.file))
    cut_off(lambda: typed_pool.run(*create), stored_name(SetAttribute), line, monkeypatch, before=before)
    typed_pool.told(*create)
    assert marks(typed_pool) == {"ml-03": "lab", "ml-04": "lab"}
    clock.set_ahead(clock.wall_clock() - clock.machine_time() + 2 * LONGEST_MARKING)
    typed_pool.told("reclaim", "--server", "ml-03", "--yes")
    assert marks(typed_pool) == {"ml-04": "lab"}
    with Connection(target_of(typed_pool.server)) as connection:
        journal = Journal.look_into(Path(os.environ["GPUOPS_STATE_DIR"]), connection.uuid, clock.wall_clock)
    assert journal is not None
    with closing(journal):
        assert journal.open_runs((MARKS,)) == ()
        lines = [(record.kind, record.body) for record in journal.records()]
    intents = {body["op"] for kind, body in lines if kind is Kind.INTENT}
    assert intents == {body["op"] for kind, body in lines if kind is Kind.SETTLED}


@pytest.mark.long
def test_what_is_kept_of_a_gpu_leaves_room_for_all_that_is_lent_of_it(lab_pool: TypedPool) -> None:
    for client in ("ml-07", "ml-08"):
        lab_pool.told("lend", "--client", client, "--gpu-memory", "20GiB", "--for", "4h")
    assert {lease["shares"][0]["server"] for lease in lab_pool.leases.values()} == {"ml-03"}
    less = lab_pool.changed("keep: 1GiB", "keep: 20GiB")
    assert "ml-03: has lent shares of GPUs" in lab_pool.said("create", "--file", less, code=3)
    lab_pool.told("return", "--client", "ml-07")
    lab_pool.told("create", "--file", less)


@pytest.mark.long
def test_the_book_of_a_damaged_file_is_one_line(lab_pool: TypedPool) -> None:
    [file] = Path(os.environ["GPUOPS_STATE_DIR"]).rglob("journal.sqlite")
    with sqlite3.connect(file) as database:
        database.execute("UPDATE book_records SET body = '{'")
    database.close()
    assert "the book of pool lab cannot be read" in lab_pool.said("show", code=7)


def test_a_pool_without_servers_is_deleted_with_its_marks_once_no_lease_is_open(lab_pool: TypedPool) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    delete = ("create", "--file", lab_pool.without_servers())
    [refused] = lab_pool.told(*delete, code=3)["rejections"]
    assert refused["next"].endswith("ends its leases first")
    lab_pool.told("return", "--client", "ml-07")
    assert lab_pool.told(*delete, "--dry-run")["deleted"]
    assert len(lab_pool.told("show")["pools"]) == 1
    answer = lab_pool.told(*delete)
    assert (answer["deleted"], answer["gone"]) == (True, ["ml-03", "ml-04"])
    assert lab_pool.told("show")["pools"] == []
    with Connection(target_of(lab_pool.server)) as connection:
        assert {vm.attributes.get("gpuops.pool", "") for vm in connection.inventory().vms.values()} == {""}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("program", ["/gone/mine.yaml", "lupine", "juice"])
def test_leases_that_are_set_up_keep_their_program(lab_pool: TypedPool, program: str) -> None:
    """A file that cannot be read now may be there for another machine; without a program nothing is cut off."""
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    [file] = Path(os.environ["GPUOPS_STATE_DIR"]).rglob("journal.sqlite")
    with sqlite3.connect(file) as database:
        change = "UPDATE book_records SET body = replace(body, '\"program\":null', ?)"
        database.execute(change, (f'"program":"{program}"',))
    database.close()
    rule = f"its leases are set up with {program} in the network VM Network"
    assert rule in lab_pool.said("create", "--file", str(lab_pool.file), code=3)
    lupine = (TEMPLATE.parent / "remote-gpu" / "lupine.yaml").read_text(encoding="utf-8")
    lab_pool.file.with_name("mine.yaml").write_text(lupine, encoding="utf-8")
    other_file = lab_pool.changed("# program: lupine ", "program: ./mine.yaml # ")
    assert rule in lab_pool.said("create", "--file", other_file, code=3)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("grace", ["0h", "0", "0m", "0d0h"])
def test_a_grace_of_zero_takes_a_server_back_at_once(lab_pool: TypedPool, grace: str) -> None:
    lab_pool.told("lend", "--client", "ml-07", "--gpu-memory", "8GiB", "--for", "4h")
    lab_pool.told("reclaim", "--server", "ml-03", "--grace", grace, "--yes")
    assert lab_pool.leases == {}


def marks(pool: TypedPool) -> dict[str, str]:
    """Return the marks of VMs, by name."""
    with Connection(target_of(pool.server)) as connection:
        vms = connection.inventory().vms.values()
        return {vm.name: mark for vm in vms if (mark := vm.attributes.get("gpuops.pool"))}


def test_no_server_loses_its_mark_before_it_has_left_the_pool(
    lab_pool: TypedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command may have lent its GPUs meanwhile."""
    without = lab_pool.changed("servers: [ml-03, ml-04]", "servers: [ml-04]")

    def locked(*_: object) -> None:
        raise Locked("another command changes it")

    with monkeypatch.context() as patched:
        patched.setattr(Book, "changing", locked)
        lab_pool.said("create", "--file", without, code=6)
    assert marks(lab_pool) == {"ml-03": "lab", "ml-04": "lab"}
    assert lab_pool.told("create", "--file", without)["gone"] == ["ml-03"]
    assert marks(lab_pool) == {"ml-04": "lab"}


def test_a_mark_of_the_pool_on_any_other_vm_is_cleared_by_the_next_command(lab_pool: TypedPool) -> None:
    with Connection(target_of(lab_pool.server)) as connection:
        inventory = connection.inventory()
        for name, mark in (("ml-07", "lab"), ("ml-08", "another"), ("ml-04", "")):
            connection.submit(SetAttribute(inventory.find_vm(name).ref, "gpuops.pool", mark), inventory, "test-mark")
    lab_pool.told("reclaim", "--due")
    assert marks(lab_pool) == {"ml-03": "lab", "ml-04": "lab", "ml-08": "another"}


@pytest.mark.long
def test_a_pool_stays_in_the_book_until_its_marks_are_cleared(
    lab_pool: TypedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise Refused("no privilege")

    delete = ("create", "--file", lab_pool.without_servers())
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "submit", refused)
        answer = lab_pool.told(*delete, code=4)
    assert (answer["deleted"], len(answer["failed"])) == (False, 2)
    assert marks(lab_pool) == {"ml-03": "lab", "ml-04": "lab"}
    assert lab_pool.told(*delete)["deleted"]
    assert (marks(lab_pool), lab_pool.told("show")["pools"]) == ({}, [])
