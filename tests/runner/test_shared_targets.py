"""What runners play is in the database that they share: where their machines are gone, another one returns it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from gpuops.extras.fleet.runner.due import Rotations
from gpuops.extras.fleet.runner.leaving import leaving
from gpuops.files.file import parse_json, parse_toml
from tests.execute.journal.postgres import PASSWORD, Server
from tests.runner.test_configuration import NOW, URL, Edited

SECRET = "of-vc-prod"


class Machine(Edited):
    """One with a directory of its own; its runner plays what its file says."""

    believes = "['VC-prod']"

    def __init__(self, folder: Path, url: str, *targets: str, further_text: str = "") -> None:
        folder.mkdir()
        super().__init__(folder)
        self.write(*targets, further_text=further_text)
        self.leaving.url, self.obeyed.text = url, self.file.read_text(encoding="utf-8")
        self.known: Rotations = {}

    def write(self, *targets: str, url: str = URL, further_text: str = "") -> None:
        super().write(*targets, url=url, further_text=further_text)
        text = self.file.read_text(encoding="utf-8")
        self.file.write_text(text.replace("[fleet]\n", f"[fleet]\nvcenters = {self.believes}\n"), encoding="utf-8")

    def begin(self) -> list[str]:
        """The targets of which returns alone are played."""
        self.known = self.obeyed.begin(NOW)
        self.obeyed.share(self.known)
        return list(leaving(self.known))

    def look(self) -> list[str]:
        """Return the same after a look that other runners see."""
        self.read()
        self.obeyed.share(self.known)
        self.read()
        return list(leaving(self.known))

    def lost(self) -> None:
        shutil.rmtree(self.folder)


class Database:
    def __init__(self, url: str) -> None:
        self.url = url

    def do(self, statement: str) -> list[tuple[object, ...]]:
        engine = create_engine(self.url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            cursor = connection.execute(text(statement))
            rows = [tuple(row) for row in cursor] if cursor.returns_rows else []
        engine.dispose()
        return rows

    def sites(self) -> list[object]:
        return [site for (site,) in self.do("SELECT key FROM book_records WHERE kind = 'target' ORDER BY key")]

    def pass_minutes(self, minutes: int) -> None:
        self.do(f"UPDATE book_records SET changed_at = changed_at - interval '{minutes} minutes'")


@pytest.fixture
def database(postgresql: Server) -> Iterator[Database]:
    yield Database(postgresql.database())


@pytest.mark.long
def test_a_target_that_left_is_returned_by_a_machine_that_never_had_it(database: Database, tmp_path: Path) -> None:
    """It was taken out of the file in its night; every container is made anew before the morning."""
    old = Machine(tmp_path / "old", database.url, "prod", "munich")
    assert old.begin() == []
    old.write("munich")
    assert old.look() == ["prod"]
    old.lost()
    new = Machine(tmp_path / "new", database.url, "munich")
    assert new.begin() == ["prod"]
    configuration = new.obeyed.configuration_of("prod")
    assert configuration is not None and "vc-prod" in configuration.read_text(encoding="utf-8")
    assert new.known["prod"]["prod"].policy.name == "prod", "its policy was kept, too"
    new.leaving.forget_target("prod")
    new.known = {"munich": new.known["munich"]}
    assert new.look() == []
    assert database.sites() == ["munich"]
    assert Machine(tmp_path / "newer", database.url, "munich").begin() == []


@pytest.mark.long
def test_machines_that_are_made_anew_with_the_file_as_it_is_then(database: Database, tmp_path: Path) -> None:
    """No runner saw the edit: a target that none plays for half an hour is adopted."""
    old = Machine(tmp_path / "old", database.url, "prod", "munich")
    old.begin()
    old.lost()
    new = Machine(tmp_path / "new", database.url, "munich")
    assert new.begin() == []
    database.pass_minutes(29)
    assert new.look() == []
    database.pass_minutes(2)
    assert new.look() == [], "the database may have been away: its runner reports first"
    assert new.look() == ["prod"]
    assert "this runner takes over prod: it was a target, and no runner plays it" in new.said
    alone = Machine(tmp_path / "alone", database.url)
    assert alone.begin() == ["prod"], "of one whose file names nothing any more, too"


@pytest.mark.long
def test_after_an_outage_of_the_database_nothing_is_taken_from_who_plays_it(database: Database, tmp_path: Path) -> None:
    first, second = Machine(tmp_path / "one", database.url, "prod"), Machine(tmp_path / "other", database.url, "munich")
    first.begin(), second.begin()
    database.pass_minutes(40)
    for machine in (second, first, second):
        assert machine.look() == []
    assert not any("no runner plays it" in line for line in (*first.said, *second.said))


@pytest.mark.long
def test_what_another_runner_plays_is_left_to_it(database: Database, tmp_path: Path) -> None:
    first, second = Machine(tmp_path / "one", database.url, "prod"), Machine(tmp_path / "other", database.url, "munich")
    for _ in range(3):
        first.begin()
        database.pass_minutes(20)
        assert second.begin() == []
    assert database.sites() == ["munich", "prod"]


@pytest.mark.long
def test_where_one_has_returned_it_the_others_let_go(database: Database, tmp_path: Path) -> None:
    machines = [Machine(tmp_path / name, database.url, "prod", "munich") for name in ("one", "other", "third")]
    for machine in machines:
        machine.begin()
    for machine in machines:
        machine.write("munich")
        assert machine.look() == ["prod"]
    first = machines[0]
    first.leaving.forget_target("prod")
    first.known = {"munich": first.known["munich"]}
    for looking_machine in (*machines, *machines):
        assert looking_machine.look() == []
    assert database.sites() == ["munich"]
    assert "prod: another runner has returned it" in machines[1].said


@pytest.mark.long
def test_one_that_is_given_up_is_taken_up_by_nobody(database: Database, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one", database.url, "prod", "munich")
    machine.begin()
    machine.write("munich")
    machine.look()
    machine.leaving.copy_of("prod").unlink()
    assert machine.look() == []
    assert database.sites() == ["munich"]


@pytest.mark.long
def test_one_that_has_another_name_is_returned_by_that(database: Database, tmp_path: Path) -> None:
    Machine(tmp_path / "old", database.url, "prod").begin()
    database.pass_minutes(40)
    new = Machine(tmp_path / "new", database.url)
    new.write(further_text=f"[targets.berlin]\nhost = 'vc-prod'\nrotations = ['{new.policy('prod')}']\n")
    new.obeyed.text = new.file.read_text(encoding="utf-8")
    assert new.begin() == []
    assert new.look() == []
    assert database.sites() == ["berlin"]


@pytest.mark.long
def test_one_that_is_played_again_is_nobody_elses(database: Database, tmp_path: Path) -> None:
    old = Machine(tmp_path / "old", database.url, "prod", "munich")
    old.begin()
    database.pass_minutes(40)
    second = Machine(tmp_path / "other", database.url, "munich")
    assert (second.begin(), second.look()) == ([], ["prod"])
    assert old.look() == []
    assert second.look() == [], "it would take turns of its nights and leave them out"
    assert "prod: another runner plays it" in second.said
    for _ in range(2):
        second.look()
        assert database.sites() == ["munich", "prod"]
    assert old.look() == []


def left_alone(database: Database, folder: Path, host: str, settings: str = "", row: str = "") -> None:
    """Leave a target with this host and these settings without a runner. `row` then changes its row."""
    old = Machine(folder / "old", database.url)
    old.write(further_text=f"[targets.prod]\nhost = '{host}'\n{settings}\nrotations = ['{old.policy('prod')}']\n")
    old.obeyed.text = old.file.read_text(encoding="utf-8")
    old.begin()
    database.pass_minutes(40)
    if row:
        merged = f"CAST(CAST(body AS jsonb) || CAST($row${row}$row$ AS jsonb) AS varchar)"
        body = merged if row.startswith("{") else f"'{row}'"
        database.do(f"UPDATE book_records SET body = {body} WHERE key = 'prod'")


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("host", "settings", "row", "why"),
    [
        ("vc-elsewhere", "", "", "prod is at https://vc-elsewhere, which no target of this configuration file names"),
        ("vc-prod", "verify = false\n", "", "without verified TLS"),
        ("http://vc-prod", "", "", "without verified TLS"),
        ("sim@vc-prod", "", "", "simulated"),
        ("vc-prod", "", '{"configuration": "[targets"}', "is not TOML"),
        ("vc-prod", "", '{"configuration": ""}', "no such target"),
        ("vc-prod", "", '{"configuration": 5}', "no such target"),
        ("vc-prod", "", "[", "no such target"),
        ("vc-prod", "", '{"policies": "["}', "not JSON"),
        ("vc-prod", "", '{"policies": "[]"}', "are not texts by file"),
        ("vc-prod", "", r"""{"policies": "{\"/a\": 1}"}""", "are not texts by file"),
    ],
)
def test_no_password_goes_anywhere_on_the_word_of_the_database(
    database: Database, tmp_path: Path, host: str, settings: str, row: str, why: str
) -> None:
    """And a row that says nothing ends no runner, nor keeps it from other rows."""
    left_alone(database, tmp_path, host, settings, row)
    machine = Machine(tmp_path / "one", database.url, "munich")
    assert machine.begin() == machine.look() == []
    assert machine.obeyed.configuration_of("prod") is None
    (warning,) = [line for line in machine.said if "this runner does not return" in line]
    assert why in warning
    assert set(database.sites()) == {"munich", "prod"}, "another machine may return it"


@pytest.mark.long
def test_of_a_row_neither_command_nor_proxy_is_believed(database: Database, tmp_path: Path) -> None:
    keys = "username = 'keeper'\nidle_command = ['/bin/sh']\nproxy = 'elsewhere:3128'\nnotify = ['env:TOLD']\n"
    left_alone(database, tmp_path, "vc-prod", keys)
    machine = Machine(tmp_path / "one", database.url, "munich")
    assert (machine.begin(), machine.look()) == ([], ["prod"])
    configuration = machine.obeyed.configuration_of("prod")
    assert configuration is not None
    assert set(parse_toml(configuration.read_text(encoding="utf-8"))["targets"]["prod"]) == {
        "host",
        "username",
        "rotations",
    }


@pytest.mark.parametrize("is_here", [False, True])
def test_of_a_policy_no_command_is_believed_but_those_of_the_own_file(
    database: Database, tmp_path: Path, is_here: bool
) -> None:
    """A client that writes into the database must not get a command run in a guest."""
    left_alone(database, tmp_path, "vc-prod")
    ((text,),) = database.do("SELECT CAST(body AS jsonb)->>'policies' FROM book_records")
    hooked = str(text).replace("ml: {", "ml: {checkpoint: {grace_s: 60, hook: {program: /opt/evil, arguments: -x}}, ")
    assert hooked != text
    changed = f"jsonb_set(CAST(body AS jsonb), '{{policies}}', to_jsonb(CAST($row${hooked}$row$ AS varchar)))"
    database.do(f"UPDATE book_records SET body = CAST({changed} AS varchar)")
    (file,) = (Path(name) for name in parse_json(hooked))
    policy_text = file.read_text(encoding="utf-8")
    file.unlink()
    if is_here:
        file.write_text(policy_text, encoding="utf-8")
        file.chmod(0o666)  # somebody on this machine writes it, and names it in the database
        file.write_text(parse_json(hooked)[str(file)], encoding="utf-8")
    machine = Machine(tmp_path / "one", database.url, "munich")
    assert (machine.begin(), machine.look()) == ([], ["prod"])
    (played,) = machine.known["prod"].values()
    assert played.policy.ml and not played.policy.commands
    assert "/opt/evil" not in played.file.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_broker_is_believed_by_its_name_as_well(database: Database, tmp_path: Path) -> None:
    broker = "broker = { url = 'https://elsewhere', username = 'gpuops', domain = 'EXAMPLE' }\n"
    left_alone(database, tmp_path, "vc-prod", broker)
    machine = Machine(tmp_path / "one", database.url, "munich")
    assert machine.begin() == machine.look() == []
    assert any("prod is at https://elsewhere" in line for line in machine.said)


@pytest.mark.long
def test_the_files_own_settings_of_that_address_come_first(database: Database, tmp_path: Path) -> None:
    """Its `rotations` were taken away, and the target stands."""
    left_alone(database, tmp_path, "vc-mine", "username = 'theirs'\nverify = false\n")
    further_text = "[targets.prod]\nhost = 'https://VC-mine/sdk'\nusername = 'mine'\n"
    machine = Machine(tmp_path / "one", database.url, "munich")
    machine.write("munich", further_text=further_text)
    machine.obeyed.text = machine.file.read_text(encoding="utf-8")
    assert (machine.begin(), machine.look()) == ([], ["prod"])
    configuration = machine.obeyed.configuration_of("prod")
    assert configuration is not None
    prod = parse_toml(configuration.read_text(encoding="utf-8"))["targets"]["prod"]
    assert (prod["username"], "verify" in prod) == ("mine", False)


def test_a_password_of_the_environment_goes_to_no_other_vcenter(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a runner that plays one target alone: it would be sent to what it takes up, too."""
    left_alone(database, tmp_path, "vc-prod")
    monkeypatch.setenv("GPUOPS_PASSWORD", SECRET)
    machine = Machine(tmp_path / "one", database.url, "munich")
    assert machine.begin() == machine.look() == []
    assert any("GPUOPS_PASSWORD would go to each of 2 vCenters" in line for line in machine.said)


def test_no_password_is_kept_there(database: Database, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(SECRET, encoding="utf-8")
    (tmp_path / "password").chmod(0o600)
    further_text = f"[targets.more]\nhost = 'vc-more'\npassword_file = '{tmp_path / 'password'}'\n"
    machine = Machine(tmp_path / "one", database.url, "prod", further_text=further_text)
    machine.begin()
    machine.write("munich")
    machine.look()
    rows_text = str(database.do("SELECT * FROM book_records"))
    assert "password_file" in rows_text
    assert SECRET not in rows_text and PASSWORD not in rows_text


@pytest.mark.long
def test_a_database_that_is_away_is_said_once_and_changes_nothing(postgresql: Server, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one", postgresql.database(), "prod", "munich")
    postgresql.cut_off()
    assert machine.begin() == []
    machine.write("munich")
    assert machine.look() == ["prod"]
    warnings = [line for line in machine.said if "are stored only on this machine" in line]
    assert len(warnings) == 1 and PASSWORD not in warnings[0]
