"""Tables are brought to the revision of this gpuops: from none and from older ones, once, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from pytest_mock import MockerFixture
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, inspect, text

from gpuops.errors import StateDamaged
from gpuops.execute import migrations
from gpuops.execute.journal import Journal, stores
from gpuops.execute.journal import database as journal_tables
from gpuops.execute.journal.audit import verify
from gpuops.execute.journal.database import Database, statements, upgrade
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.stores import SqlStore, look_into_store, make_file, open_database, open_store
from gpuops.execute.migrations import HEAD, REVISIONS, Contents
from gpuops.extras.fleet.runner import shared_targets
from gpuops.extras.jobs import job_store
from gpuops.extras.jobs.job import ContainerJob, ContainerRuntime, JobEvent, JobRecord, Mount
from gpuops.extras.lending.lease_book import LeaseBook, LeaseState, LendingPool, LentShare, PoolQuota, ServerState
from gpuops.extras.lending.pool_book import EARLIER_FILE, PoolBooks
from gpuops.extras.observe import store_reads as measurement_tables
from gpuops.extras.observe.store import Measurements
from tests.execute.journal import old_tables
from tests.execute.journal.postgres import PASSWORD, Server
from tests.execute.journal.test_audit import NOW, clock
from tests.recorded.victim import FORKED

TABLES: dict[Contents, tuple[MetaData, ...]] = {
    Contents.JOURNAL: (journal_tables.metadata, job_store._metadata),
    Contents.MEASUREMENTS: (measurement_tables.metadata,),
    Contents.POOLS: (),
    Contents.RUNNERS: (),
}


@dataclass(frozen=True)
class Place:
    """A journal's database: a file, or one of PostgreSQL."""

    state_dir: Path
    url: str

    def opened(self) -> Database:
        return open_database(self.url) if self.url else make_file(self.state_dir)

    def schema(self) -> dict[str, Any]:
        """All that the database itself says of its tables."""
        with closing(self.opened()) as database, database.reading() as connection:
            inspector = inspect(connection)
            return {
                name: (
                    [
                        (column["name"], repr(column["type"]), column["nullable"])
                        for column in inspector.get_columns(name)
                    ],
                    inspector.get_pk_constraint(name)["constrained_columns"],
                    inspector.get_indexes(name),
                )
                for name in sorted(inspector.get_table_names())
            }

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with closing(self.opened()) as database, database.reading() as connection:
            return [tuple(row) for row in connection.execute(text(f"SELECT * FROM {table}"))]

    def do(self, *statements: str) -> None:
        with closing(self.opened()) as database:
            old_tables.make(database, *statements)

    def age(self, *statements: str) -> None:
        """Makes it as it was before revisions, with records of two vCenters."""
        self.do(*old_tables.JOURNAL, *statements)
        with closing(self.opened()) as database:
            for vcenter in ("vc-1", "vc-2"):
                journal = Journal(SqlStore(database, vcenter), vcenter, clock())
                for number in range(3):
                    journal.end(journal.begin("attach", policy=f"policy {number}"))

    def records(self, vcenter: str = "vc-1") -> list[Record]:
        """As a run reads them, which brings the tables up."""
        with closing(open_store(self.state_dir, self.url, vcenter)) as store:
            return list(store.read(0))

    def seen(self, vcenter: str = "vc-1") -> list[Record]:
        """As who only looks reads them: nothing is changed."""
        store = look_into_store(self.state_dir, self.url, vcenter)
        assert store is not None
        with closing(store):
            return list(store.read(0))

    def revisions(self) -> list[tuple[str]]:
        return self.rows("alembic_version")


@pytest.fixture(params=["sqlite", "postgresql"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    def new_database() -> Place:
        name = f"state-{len(list(tmp_path.iterdir()))}"
        (tmp_path / name).mkdir(mode=0o700)
        url = request.getfixturevalue("postgresql").database() if request.param == "postgresql" else ""
        return Place(tmp_path / name, url)

    return new_database


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


def test_the_revisions_that_are_named_are_those_of_the_scripts_in_their_order() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == REVISIONS
    assert scripts.get_heads() == [HEAD]


@pytest.mark.long
def test_the_tables_of_a_new_database_are_those_of_the_code(place: Place, tmp_path: Path) -> None:
    def lacking(connection: Connection, contents: set[Contents]) -> list[Any]:
        context = MigrationContext.configure(connection)
        expected_tables = [tables for content in sorted(contents, key=str) for tables in TABLES[content]]
        return compare_metadata(context, expected_tables)  # type: ignore[arg-type]

    databases: dict[Contents, Database | None] = {
        Contents.JOURNAL: place.opened(),
        Contents.MEASUREMENTS: measurement_tables.open_to_write(place.state_dir, place.url),
    }
    assert place.records() == []
    for contents, opened in databases.items():
        assert opened is not None
        with closing(opened) as database, database.reading() as connection:
            assert lacking(connection, set(Contents) if place.url else {contents}) == []


@pytest.mark.long
@pytest.mark.parametrize("with_requests", ["", "requests", "all"])
def test_a_database_from_before_becomes_what_a_new_one_is_and_keeps_all(
    new_place: Callable[[], Place], with_requests: str
) -> None:
    old, new = new_place(), new_place()
    shared = (*old_tables.MEASUREMENTS, *old_tables.VGPUS, *old_tables.RUNNERS) if old.url else ()
    old.age(*(old_tables.REQUESTS if with_requests else ()), *(shared if with_requests == "all" else ()))
    audited = verify(old.state_dir, old.url)
    rows_before = {name: old.rows(name) for name in old.schema() if name not in ("site_requests", "runner_targets")}
    records_before = [old.seen(vcenter) for vcenter in ("vc-1", "vc-2")]
    assert "alembic_version" not in old.schema(), "to read it changes nothing"
    assert [old.records(vcenter) for vcenter in ("vc-1", "vc-2")] == records_before
    assert [len(records_of_vcenter) for records_of_vcenter in records_before] == [6, 6]
    assert new.records() == []
    assert old.schema() == new.schema()
    assert {name: old.rows(name) for name in rows_before} == rows_before
    second_audit = verify(old.state_dir, old.url)
    assert second_audit == audited
    assert second_audit.whole, second_audit
    assert [chain.good for chain in second_audit.chains] == [6, 6]
    assert old.revisions() == new.revisions() == [(HEAD,)]


@pytest.mark.parametrize("has_requests", [True, False])
def test_requests_across_sites_are_named_once_when_their_table_is_dropped(
    place: Place, caplog: pytest.LogCaptureFixture, has_requests: bool
) -> None:
    place.age(*old_tables.REQUESTS)
    if not has_requests:
        place.do("DELETE FROM site_requests")
    named = "'ml-1' was assigned to 'prod'; next: name each of these VMs in the queue of one vCenter's policy"
    if place.url:
        assert (named in statements(place.opened())) is has_requests
    for _ in range(2):
        assert len(place.records()) == 6
    warnings = [record.getMessage() for record in caplog.records if "across sites" in record.getMessage()]
    assert len(warnings) == has_requests
    assert all(named in warning and "\n" not in warning for warning in warnings)
    assert "site_requests" not in place.schema()


@pytest.mark.long
def test_measurements_from_before_are_kept_too(new_place: Callable[[], Place]) -> None:
    old, new = new_place(), new_place()
    with closing(measurement_tables._open_database(old.state_dir, old.url)) as database:
        old_tables.make(database, *old_tables.MEASUREMENTS)
    for place in (old, new):
        measurement_tables.open_to_write(place.state_dir, place.url).close()
    with Measurements.open(old.state_dir, old.url, "vc-1") as store:
        assert [(span.begin.timestamp(), span.until.timestamp()) for span in store.observed_spans()] == [
            (1764000000, 1764000300)
        ]
    if old.url:
        assert old.schema() == new.schema()


def _come(state_dir: Path, url: str, gate: Any, answers: Any) -> None:
    database = open_database(url) if url else make_file(state_dir)
    with closing(database):
        gate.wait(30)
        answers.put(upgrade(database, Contents.JOURNAL))


@pytest.mark.long
@pytest.mark.parametrize("is_new", [True, False])
def test_of_processes_that_come_at_once_one_does_it(place: Place, is_new: bool) -> None:
    if not is_new:
        place.age()
    gate, answers = FORKED.Barrier(4), FORKED.Queue()
    processes = [FORKED.Process(target=_come, args=(place.state_dir, place.url, gate, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    before = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert sorted(before, key=str) == [HEAD, HEAD, HEAD, None], "three found it done"
    assert len(place.records()) == (0 if is_new else 6)
    assert verify(place.state_dir, place.url).whole
    assert place.revisions() == [(HEAD,)]


@pytest.mark.long
def test_threads_of_one_process_that_make_tables_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    places, gate = [tmp_path / str(number) for number in range(8)], Barrier(8)

    def make(state_dir: Path) -> str | None:
        with closing(make_file(state_dir)) as database:
            gate.wait(30)
            return upgrade(database, Contents.JOURNAL)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(make, places)) == [None] * 8
    assert [Place(place, "").revisions() for place in places] == [[(HEAD,)]] * 8


def _killed_after(state_dir: Path, url: str, count: int) -> None:
    """Ends by SIGKILL when the upgrade has sent so many statements."""
    database = open_database(url) if url else make_file(state_dir)
    left = count

    def count_down(*_arguments: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(database.engine, "after_cursor_execute", count_down)
    with closing(database):
        upgrade(database, Contents.JOURNAL)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("first", [1, 3, 5])
def test_an_upgrade_that_is_killed_at_any_statement_changed_nothing_and_is_done_by_the_next(
    new_place: Callable[[], Place], first: int
) -> None:
    count, is_killed = first, True
    while is_killed:
        place = new_place()
        place.age()
        before, records_before = place.schema(), place.seen()
        victim = FORKED.Process(target=_killed_after, args=(place.state_dir, place.url, count))
        victim.start()
        victim.join(60)
        is_killed = victim.exitcode == -signal.SIGKILL
        assert is_killed or victim.exitcode == 0
        if is_killed:
            assert place.schema() == before, f"after statement {count}"
        assert place.records() == records_before
        assert place.revisions() == [(HEAD,)]
        count += 15 if place.url else 6  # each of them takes a database
    assert count > 10, "it was killed in the middle"


NIGHT = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)


def _pools(place: Place, vcenter: str = "vc-1", *, write: bool) -> dict[str, LeaseBook]:
    with PoolBooks.open(place.state_dir, place.url, vcenter, write=write) as books:
        return books.read()


def _before_the_book(place: Place) -> None:
    """Makes a database of pools as the version before the book left it."""
    with closing(place.opened() if place.url else make_file(place.state_dir, EARLIER_FILE)) as database:
        old_tables.make_revision(database, "0004", Contents.POOLS)
        old_tables.fill(database, Contents.POOLS)


def _check_pools(pools: dict[str, LeaseBook]) -> None:
    assert list(pools) == ["empty", "lab"]
    lab = pools["lab"]
    assert lab is not None
    assert lab.pool == LendingPool("lab", "net", quotas={"Physik ü": PoolQuota(memory_mib=1)})
    assert [(server.name, server.state) for server in lab.servers] == [
        ("gpu-01", ServerState.SERVING), ("gpu-02", ServerState.DEAD), ("gpu-03", ServerState.DRAINING)
    ]  # fmt: skip
    assert [(lease.id, lease.state, lease.wish.owner) for lease in lab.leases] == [
        ("a1", LeaseState.ENDING, 'say "x" \\ '), ("a3", LeaseState.ENDING, 'say "x" \\ '),
        ("a2", LeaseState.LENT, 'say "x" \\ '),
    ]  # fmt: skip
    assert lab.leases[2].shares == (LentShare("gpu-01", 0, 10_240),)


def test_pools_of_before_the_book_are_read_as_they_are_and_moved_into_it_by_the_first_that_writes(place: Place) -> None:
    _before_the_book(place)
    before = place.schema()
    _check_pools(_pools(place, write=False))
    assert place.schema() == before, "to read it changes nothing"
    for _ in range(2):
        _check_pools(_pools(place, write=True))
        _check_pools(_pools(place, write=False))
    assert list(_pools(place, "vc-2", write=False)) == ["lab"]
    assert not {"pools", "pool_leases", "pools_schema"} & place.schema().keys()
    assert not (place.state_dir / EARLIER_FILE).exists()
    assert [record[3] for record in place.rows("book_records")] == [0, 0, 0]
    with PoolBooks.open(place.state_dir, place.url, "vc-1", write=True) as books:
        books.remove_empty("empty")
    assert list(_pools(place, write=True)) == ["lab"]
    assert verify(place.state_dir, place.url).whole


def test_jobs_of_before_the_book_are_read_as_they_are_and_moved_into_it_by_the_first_that_writes(place: Place) -> None:
    with closing(place.opened()) as database:
        old_tables.make_revision(database, "0004", Contents.JOURNAL)
        old_tables.fill(database, Contents.JOURNAL)
    before, jobs = place.schema(), job_store.JobStore("vc-1", place.state_dir, place.url)
    fit, score = jobs.read()
    assert place.schema() == before, "to read it changes nothing"
    assert (fit.number, fit.by, fit.submitted_at) == (1, 'ada "x" \\ ü@b', NIGHT)
    assert fit.job == ContainerJob(
        "fit", "quay.io/lab/fit:2", ("python", "a b; $(reboot) '"), "a40-8q", 2, 4096, timedelta(hours=3),
        runtime=ContainerRuntime.DOCKER, mounts=(Mount("/data", "/in"), Mount("/out", "/out", True)),
        checkpoint=("save", "--now"), resumes=2, owner="vision", busy=0.25,
    )  # fmt: skip
    assert fit.records == (
        JobRecord(JobEvent.BEGUN, NIGHT, vm="uuid-1", vm_name="job-1"), JobRecord(JobEvent.STARTED, NIGHT),
        JobRecord(
            JobEvent.ENDED, NIGHT + timedelta(hours=1), exit_code=3, ran=timedelta(minutes=7, milliseconds=5),
            reason='x "y" \\ ü',
        ),
    )  # fmt: skip
    assert (score.job.name, score.job.run_time, score.records) == ("score", timedelta(minutes=1), ())
    begun = jobs.add(score, JobRecord(JobEvent.BEGUN, NIGHT, vm="uuid-2"))
    assert jobs.read() == (fit, begun)
    assert jobs.output(fit) == (b"one two \xff\x00\n", 0)
    assert [job.number for job in job_store.JobStore("vc-2", place.state_dir, place.url).read()] == [1]
    assert not {"container_jobs", "container_job_records"} & place.schema().keys()
    assert verify(place.state_dir, place.url).whole


def test_targets_of_runners_of_before_the_book_are_moved_into_it(postgresql: Server, tmp_path: Path) -> None:
    place = Place(tmp_path, postgresql.database())
    with closing(place.opened()) as database:
        old_tables.make_revision(database, "0004", Contents.RUNNERS)
    rows = "('a', 'b = \"\\x\"', '{{\"/f\": \"c\"}}', true, now()), ('b', '', '{{}}', false, now())"
    place.do(f"INSERT INTO runner_targets VALUES {rows}")
    exchanged = shared_targets.exchange(place.url, {}, {}, ())
    assert exchanged.known == {"a", "b"}
    assert exchanged.orphaned == {"a": shared_targets.SharedTarget('b = "\\x"', '{"/f": "c"}', is_left=True)}
    assert "runner_targets" not in place.schema()
    assert verify(place.state_dir, place.url).whole


def _move_pools(state_dir: Path, count: int) -> None:
    """Ends by SIGKILL when so many statements were sent."""
    left = count

    def count_down(*_arguments: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "after_cursor_execute", count_down)
    event.listen(Engine, "commit", count_down)
    _pools(Place(state_dir, ""), write=True)


@pytest.mark.long
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_move_of_pools_that_is_killed_at_any_point_is_finished_by_the_next_command(
    tmp_path: Path, first: int
) -> None:
    count, is_killed = first, True
    while is_killed:
        (tmp_path / f"{count}").mkdir(mode=0o700)
        place = Place(tmp_path / f"{count}", "")
        _before_the_book(place)
        assert place.records() == []
        victim = FORKED.Process(target=_move_pools, args=(place.state_dir, count))
        victim.start()
        victim.join(60)
        is_killed = victim.exitcode == -signal.SIGKILL
        assert is_killed or victim.exitcode == 0
        _check_pools(_pools(place, write=False))
        with PoolBooks.open(place.state_dir, "", "vc-1", write=True) as books:
            books.remove_empty("empty")
        assert list(_pools(place, write=True)) == ["lab"], "what was removed stays removed"
        count += 4
    assert count > 10, "it was killed in the middle"


def test_a_database_of_a_later_gpuops_is_refused_in_one_line_and_left_as_it_is(place: Place) -> None:
    assert place.records() == []
    place.do("UPDATE alembic_version SET version_num = '9999'")
    before = place.schema()
    jobs = job_store.JobStore("vc-1", place.state_dir, place.url)
    ways: list[Callable[[], object]] = [
        lambda: open_store(place.state_dir, place.url, "vc-1"),
        lambda: look_into_store(place.state_dir, place.url, "vc-1"),
        lambda: verify(place.state_dir, place.url),
        jobs.read,
        lambda: jobs.submit((), "ada", NOW),
    ]
    if place.url:
        ways += [
            lambda: Measurements.open(place.state_dir, place.url, "vc-1"),
            lambda: Measurements.open_if_exists(place.state_dir, place.url, "vc-1"),
            lambda: _pools(place, write=True),
            lambda: _pools(place, write=False),
            lambda: shared_targets.exchange(place.url, {}, {}, ()),
            lambda: statements(place.opened()),
        ]
    for way in ways:
        with pytest.raises(
            StateDamaged, match=f"of revision 9999, which is newer than this gpuops: .* to {HEAD}"
        ) as no:
            way()
        assert "\n" not in f"{no.value.message}{no.value.hint}"
        assert no.value.exit_code == 7
        assert "use the gpuops that made them, or a later one" in (no.value.hint or "")
    assert place.schema() == before
    with closing(Journal.open(place.state_dir, "vc-1", lambda: NOW, url=place.url, returning=True)) as journal:
        journal.begin("return")
        assert journal.lost is not None, "a return goes on without it"


@pytest.mark.long
def test_a_return_does_not_wait_for_an_upgrade_that_stands_still(
    postgresql: Server, tmp_path: Path, mocker: MockerFixture
) -> None:
    """The other machine has the lock; so long as for any lock it is waited for, then desktops come back without."""
    place = Place(tmp_path, postgresql.database())
    place.age()
    patient = stores._make_commits_durable

    def impatient(connection: Any, revision: object) -> None:
        patient(connection, revision)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout TO '0.3s'")
        connection.commit()

    with closing(place.opened()) as database, database.writing() as lock_connection:
        lock_connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('gpuops tables'))"))
        mocker.patch.object(stores, "_make_commits_durable", impatient)
        with closing(Journal.open(tmp_path, "vc-1", lambda: NOW, url=place.url, returning=True)) as journal:
            journal.begin("return")
            assert "lock timeout" in str(journal.lost)
    assert len(place.records()) == 6


@pytest.mark.long
def test_an_account_that_may_make_no_tables_is_told_what_one_that_may_runs(postgresql: Server, tmp_path: Path) -> None:
    place = Place(tmp_path, postgresql.database())
    place.age()
    place.do(
        "DROP ROLE IF EXISTS reader",
        f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD.replace(chr(39), 2 * chr(39)).replace(':', chr(92) + ':')}'",
    )
    grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader"
    place.do(grant)
    narrow = Place(tmp_path, place.url.replace("//gpuops:", "//reader:"))
    before = place.schema()
    with pytest.raises(StateDamaged, match="may not make or change the tables") as no:
        narrow.records()
    assert "gpuops runner init --sql" in (no.value.hint or "")
    assert "\n" not in f"{no.value.message}{no.value.hint}"
    assert PASSWORD not in f"{no.value.message}{no.value.hint}"
    with closing(Journal.open(tmp_path, "vc-1", lambda: NOW, url=narrow.url, returning=True)) as journal:
        journal.begin("return")
        assert journal.lost is not None, "a return goes on without it"
    printed = statements(narrow.opened())
    assert place.schema() == before, "to print it changes nothing"
    engine = create_engine(place.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with closing(engine.raw_connection()) as connection:
        connection.cursor().execute(printed)
    engine.dispose()
    place.do(grant)
    assert statements(narrow.opened()) == ""
    assert len(narrow.records()) == 6
    new = Place(tmp_path, postgresql.database())
    assert new.records() == []
    assert place.schema() == new.schema()
    place.do("DROP OWNED BY reader", "DROP ROLE reader")


def test_a_journal_of_this_revision_is_opened_without_alembic(tmp_path: Path) -> None:
    Place(tmp_path, "").records()
    program = (
        "import sys; from pathlib import Path; from gpuops.execute.journal.stores import open_store; "
        "store = open_store(Path(sys.argv[1]), '', 'vc-1'); store.read(None); store.close(); "
        "print(sorted(each for each in sys.modules if each.partition('.')[0] in ('alembic', 'mako')))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert (process.returncode, process.stdout) == (0, "[]\n"), process.stderr
