"""The configuration file of a runner that goes on: what is obeyed at once, and what changes nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from gpuops.config.vcenter.targets import parsed_configuration
from gpuops.errors import TargetError
from gpuops.extras.fleet.runner.configuration import ObeyedConfiguration, database_of, rotations_of
from gpuops.extras.fleet.runner.due import Rotations
from gpuops.extras.fleet.runner.leaving import LeavingTargets
from gpuops.model.nights.runners import Half, PolicyTurn
from tests.runner.memory_queue import MemoryQueue, looks, service_of
from tests.runner.test_due import PARIS, policy_of

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
URL = "postgresql://db.example.com/gpuops"


class Edited:
    """A configuration file and the runner that obeys it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "config.toml"
        self.said: list[str] = []
        self.environment = {"GPUOPS_JOURNAL_URL": URL}
        self.write("prod", "prod")
        configured = parsed_configuration(self.file.read_text(encoding="utf-8"), self.file)
        self.known: Rotations = rotations_of(configured, None, NOW)
        database = partial(database_of, preferred_url=None)
        self.leaving = LeavingTargets(folder / "leaving", self.said.append)
        self.obeyed = ObeyedConfiguration(
            self.file, self.file.read_text(encoding="utf-8"), None, database, database(configured),
            folder / "copy.toml", self.environment, self.said.append, self.leaving,
        )  # fmt: skip

    def policy(self, name: str, windows: str = PARIS) -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(policy_of(windows, name).text, encoding="utf-8")
        return file

    def write(self, *targets: str, url: str = URL, further_text: str = "") -> None:
        """`[targets.NAME]` of each name, whose policy is named after it."""
        entries = [
            f"[targets.{target}]\nhost = 'vc-{target}'\nrotations = ['{self.policy(target)}']\n" for target in targets
        ]
        entries = list(dict.fromkeys(entries))
        self.file.write_text(f"[fleet]\nurl = '{url}'\n{''.join(entries)}{further_text}", encoding="utf-8")

    def read(self) -> Rotations | None:
        rotations = self.obeyed.read_anew(self.known, NOW)
        self.known = rotations or self.known
        return rotations


@pytest.fixture
def edited(tmp_path: Path) -> Edited:
    return Edited(tmp_path)


def test_a_new_target_is_played(edited: Edited) -> None:
    assert edited.read() is None
    before = edited.known["prod"]["prod"]
    edited.write("prod", "munich")
    assert list(edited.read() or ()) == ["prod", "munich"]
    assert edited.known["prod"]["prod"] is before, "what its file said when it could last be obeyed is kept"
    assert edited.said == [f"{edited.file} has changed: plays prod: prod, munich: munich"]


def test_an_edit_that_is_about_no_policy_is_said_by_nobody(edited: Edited) -> None:
    edited.write("prod", further_text="[targets.lab]\nhost = 'sim:lab'\n")
    assert (edited.read(), edited.said, edited.environment) == (None, [], {"GPUOPS_JOURNAL_URL": URL})
    assert (edited.folder / "copy.toml").read_text(encoding="utf-8") == edited.file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("[targets", "is not TOML"),
        ("[targets.a]\nhost = 'a'\nrotation = []\n", "targets.a.rotation"),
        ("[targets.a]\nhost = 'a'\nrotations = ['/none/policy.yaml']\n", "/none/policy.yaml"),
    ],
)
def test_what_cannot_be_obeyed_is_said_once_and_changes_nothing(edited: Edited, how: str, why: str) -> None:
    """A process is given what the file said before: it reads the file itself, and a return must not fail by it."""
    before = edited.file.read_text(encoding="utf-8")
    edited.file.write_text(f"[fleet]\nurl = '{URL}'\n{how}", encoding="utf-8")
    assert (edited.read(), edited.read()) == (None, None)
    assert len(edited.said) == 1
    assert why in edited.said[0]
    assert edited.said[0].endswith("the runner continues with the last valid file")
    assert Path(edited.environment["GPUOPS_CONFIG"]).read_text(encoding="utf-8") == before
    edited.file.unlink()
    assert edited.read() is None
    assert len(edited.said) == 2, "another reason is said, too"
    edited.file.write_text(before, encoding="utf-8")
    assert edited.read() is None
    assert edited.environment == {"GPUOPS_JOURNAL_URL": URL}
    assert edited.said[2:] == [f"{edited.file} is valid again"]


def test_a_target_without_policies_is_named_with_those_that_have_some(edited: Edited) -> None:
    configured = parsed_configuration(edited.file.read_text(encoding="utf-8"), edited.file)
    with pytest.raises(TargetError, match="no policy is configured for lab") as refused:
        rotations_of(configured, "lab", NOW)
    assert refused.value.hint == "targets with `rotations`: prod"


def test_one_vcenter_that_is_two_targets_is_not_played_twice(edited: Edited) -> None:
    """A return of one would end the night of the other every ten minutes: they do not know of each other."""
    second_target = f"[targets.other]\nhost = 'https://VC-prod:443/sdk'\nrotations = ['{edited.policy('other')}']\n"
    edited.write("prod", further_text=second_target)
    assert edited.read() is None
    assert "targets.prod and targets.other are the same vCenter" in edited.said[0]
    edited.write("prod", further_text=second_target.partition("rotations")[0])
    assert edited.read() is None
    assert edited.said[1:] == [f"{edited.file} is valid again"]


def test_another_database_needs_another_start(edited: Edited) -> None:
    edited.write("prod", "munich", url="postgresql://elsewhere/gpuops")
    assert edited.read() is None
    assert "names another database of runners: restart the runners to use it" in edited.said[0]


def test_a_second_vcenter_that_would_be_sent_the_login_of_the_first_is_not_played(
    edited: Edited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUOPS_PASSWORD", "x")
    edited.write("prod", "munich")
    assert edited.read() is None
    assert "GPUOPS_PASSWORD would go to each of 2 vCenters" in edited.said[0]


def test_the_loop_takes_and_offers_turns_of_a_new_target(at: object, edited: Edited) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    queue = MemoryQueue()
    service, children, _ = service_of(queue)
    service.rotations, service.configured = edited.known, edited.obeyed.read_anew
    asyncio.run(looks(service, 1))
    edited.write("prod", "munich")
    asyncio.run(looks(service, 2))
    assert [turn.site for turn, _ in queue.offered] == ["prod", "munich"]
    asyncio.run(service.play(PolicyTurn("munich", "munich")))
    assert children.called == [(Half.NIGHT, "munich")]
