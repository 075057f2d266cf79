"""A target that is taken out of the configuration file: what its night took is returned, and no night of it begins."""

from __future__ import annotations

import asyncio
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuops import clock
from gpuops.clock import set_ahead
from gpuops.config.policy import load_policy
from gpuops.config.vcenter.targets import parsed_configuration
from gpuops.errors import TargetError, UsageError
from gpuops.extras.fleet.runner.due import Rotations
from gpuops.extras.fleet.runner.leaving import LeavingTargets, leaving
from gpuops.extras.fleet.runner.service import Service
from gpuops.model.nights.runners import Half, PolicyTurn
from tests.runner.memory_queue import CalledChildren, MemoryQueue, looks, service_of
from tests.runner.test_configuration import NOW, Edited, edited

__all__ = ["edited"]
PROD = PolicyTurn("prod", "prod")


class Left:
    """A runner of `prod` and `munich`, of which the file loses `prod` in the middle of the night."""

    def __init__(self, edited: Edited) -> None:
        edited.write("prod", "munich")
        edited.read()
        self.edited, self.queue = edited, MemoryQueue()
        service, self.children, self.said = service_of(self.queue)
        self.service: Service = service
        service.rotations, service.configured = edited.known, edited.obeyed.read_anew
        service.returned_all = edited.leaving.forget_target
        self.children.configuration_of = edited.obeyed.configuration_of
        asyncio.run(looks(service, 1))
        self.queue.offered.clear()
        edited.write("munich")

    def look(self, minutes: float = 0) -> list[str]:
        """The vCenters whose turns are offered now."""
        set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(minutes=minutes))
        self.queue.offered.clear()
        asyncio.run(looks(self.service, 1))
        return [turn.site for turn, _ in self.queue.offered]

    def play(self) -> None:
        asyncio.run(self.service.play(PROD))


def test_its_desktops_are_returned_and_then_it_is_let_go(at: object, edited: Edited) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    leaving_target.look(1)
    assert leaving(leaving_target.service.rotations) == ["prod"]
    messages = [line for line in edited.said if line.startswith("prod is no longer a target: no night of it begins")]
    assert len(messages) == 1 and str(edited.leaving.copy_of("prod")) in messages[0]
    leaving_target.play()
    assert leaving_target.children.called == [], "no night of it begins, and none is gone on with"
    at("2026-11-03T04:30:10")  # type: ignore[operator]
    assert leaving_target.look() == ["munich", "prod"]
    leaving_target.children.code = 4
    leaving_target.play()
    assert leaving_target.look(10) == ["munich", "prod"], "some are not back"
    leaving_target.children.code = 0
    leaving_target.play()
    assert leaving_target.children.called == [(Half.DAY, "prod")] * 2
    assert leaving_target.said[-1] == "prod: all desktops are back, so runners no longer play this removed target"
    assert leaving_target.look(10) == ["munich"]
    assert not edited.leaving.copy_of("prod").exists()
    assert len(messages) == 1


def test_its_return_is_given_the_file_that_had_it(at: object, edited: Edited) -> None:
    """Edits of the file go on: the copy is the one that had it last."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    leaving_target.look()
    edited.write("munich", further_text="[targets.lab]\nhost = 'sim:lab'\n")
    leaving_target.look()
    configuration = edited.obeyed.configuration_of("prod")
    assert configuration is not None and configuration.stat().st_mode & 0o077 == 0
    assert {"prod", "munich"} == set(
        parsed_configuration(configuration.read_text(encoding="utf-8"), configuration).targets
    )
    assert edited.obeyed.configuration_of("munich") is None


def test_the_process_of_its_return_has_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuops.extras.fleet.runner.children import Children

    environments: list[dict[str, str]] = []

    async def refuse(*words: str, env: dict[str, str], **keywords: object) -> None:
        environments.append(env)
        raise OSError("none here")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    children = Children({"GPUOPS_CONFIG": "all"}, lambda site: tmp_path / "own" if site == "prod" else None)

    async def run_both() -> None:
        for site in ("prod", "munich"):
            with pytest.raises(OSError, match="none here"):
                await children.begin(Half.DAY, site, tmp_path)

    asyncio.run(run_both())
    assert [environment["GPUOPS_CONFIG"] for environment in environments] == [str(tmp_path / "own"), "all"]


@pytest.mark.long
def test_one_that_is_there_again_is_played_as_before(at: object, edited: Edited) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    leaving_target.look()
    edited.write("prod", "munich")
    leaving_target.look()
    assert leaving(leaving_target.service.rotations) == []
    assert not edited.leaving.copy_of("prod").exists()
    leaving_target.play()
    assert leaving_target.children.called == [(Half.NIGHT, "prod")]


@pytest.mark.long
def test_one_that_has_another_name_is_returned_by_that(at: object, edited: Edited) -> None:
    """Two that play one vCenter would end each other's nights."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    edited.write(
        "munich", further_text=f"[targets.berlin]\nhost = 'vc-prod'\nrotations = ['{edited.policy('prod')}']\n"
    )
    leaving_target.look()
    assert (leaving(leaving_target.service.rotations), list(leaving_target.service.rotations)) == (
        [],
        ["munich", "berlin"],
    )


@pytest.mark.long
def test_one_that_is_lost_for_good_is_given_up_by_removing_the_copy(at: object, edited: Edited) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    leaving_target.look()
    edited.leaving.copy_of("prod").unlink()
    leaving_target.look()
    assert list(leaving_target.service.rotations) == ["munich"]
    assert edited.said[-1].startswith("prod is no longer played: ")
    edited.write("munich", "paris")
    leaving_target.look()
    assert list(leaving_target.service.rotations) == ["munich", "paris"]


def begun_anew(edited: Edited, messages: list[str], only: str | None = None) -> Rotations:
    """What a runner plays that begins now on the same machine."""
    edited.obeyed.only = only
    edited.obeyed.leaving = LeavingTargets(edited.folder / "leaving", messages.append)
    edited.obeyed.text = edited.file.read_text(encoding="utf-8")
    return edited.obeyed.begin(NOW)


@pytest.mark.long
def test_a_runner_that_begins_anew_knows_of_it(at: object, edited: Edited) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target, messages = Left(edited), list[str]()
    leaving_target.look()
    rotations = begun_anew(edited, messages)
    assert (list(rotations), leaving(rotations)) == (["munich", "prod"], ["prod"])
    assert messages[0].startswith("prod is no longer a target: returns continue until all desktops are back")
    assert list(begun_anew(edited, messages, "munich")) == ["munich"], "another one's is not its own"
    (edited.folder / "prod.yaml").write_text("version: none", encoding="utf-8")
    assert list(begun_anew(edited, messages)) == ["munich"]
    assert "it is unknown whether its desktops are back" in messages[-1]
    assert f"GPUOPS_CONFIG={edited.leaving.copy_of('prod')} gpuops rotate day --vcenter prod" in messages[-1]


def test_one_that_leaves_while_no_runner_goes_on_is_returned(edited: Edited) -> None:
    """The file is edited and the service started anew, before a look or after it was stopped."""
    messages = list[str]()
    edited.write("prod", "munich")
    begun_anew(edited, messages)
    edited.write("munich")
    rotations = begun_anew(edited, messages)
    assert (list(rotations), leaving(rotations)) == (["munich", "prod"], ["prod"])
    configuration = edited.obeyed.configuration_of("prod")
    assert configuration is not None and "vc-prod" in configuration.read_text(encoding="utf-8")
    assert messages[0].startswith("prod is no longer a target: no night of it begins")
    edited.leaving.forget_target("prod")
    assert list(begun_anew(edited, messages)) == ["munich"], "it was returned: nothing of it comes again"


def test_its_policy_may_be_taken_away_with_it(edited: Edited) -> None:
    begun_anew(edited, [])
    edited.write("munich")
    (edited.folder / "prod.yaml").unlink()
    for _ in range(2):
        rotations = begun_anew(edited, messages := list[str]())
        assert (leaving(rotations), list(rotations["prod"])) == (["prod"], ["prod"]), messages
        assert load_policy(rotations["prod"]["prod"].file).name == "prod", "it is given to `rotate day`"


def test_the_last_one_leaves_while_no_runner_goes_on(edited: Edited) -> None:
    begun_anew(edited, [], "prod")
    edited.write()
    assert leaving(begun_anew(edited, [], "prod")) == ["prod"]
    edited.leaving.forget_target("prod")
    with pytest.raises(TargetError, match="no policy is configured for prod"):
        begun_anew(edited, [], "prod")


@pytest.mark.parametrize("other_targets", [("munich",), ()])
def test_the_only_one_that_is_played_leaves(at: object, edited: Edited, other_targets: tuple[str, ...]) -> None:
    """`runner run --vcenter prod`, or a file of one target: its nights do not go on."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    edited.obeyed.only = "prod"
    leaving_target.service.rotations = {"prod": leaving_target.service.rotations["prod"]}
    edited.write(*other_targets)
    leaving_target.look()
    assert leaving(leaving_target.service.rotations) == ["prod"]
    assert edited.said[-1] == f"{edited.file} has changed: plays no target"
    leaving_target.play()
    assert leaving_target.children.called == []
    at("2026-11-03T06:00:10")  # type: ignore[operator]
    leaving_target.play()
    assert (leaving_target.children.called, list(leaving_target.service.rotations)) == ([(Half.DAY, "prod")], [])


@pytest.mark.long
def test_one_of_another_name_is_not_returned_beside_that_by_who_plays_it_alone(at: object, edited: Edited) -> None:
    """Another runner plays `berlin`: a return of `prod` would end its night."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    edited.obeyed.only = "prod"
    leaving_target.service.rotations = {"prod": leaving_target.service.rotations["prod"]}
    berlin = f"[targets.berlin]\nhost = 'vc-prod'\nrotations = ['{edited.policy('prod')}']\n"
    edited.write("munich", further_text=berlin)
    leaving_target.look()
    assert list(leaving_target.service.rotations) == []


@pytest.mark.long
def test_a_runner_that_begins_returns_none_that_has_another_name(at: object, edited: Edited) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    Left(edited).look()
    assert edited.leaving.copy_of("prod").exists()
    edited.write(
        "munich", further_text=f"[targets.berlin]\nhost = 'vc-prod'\nrotations = ['{edited.policy('prod')}']\n"
    )
    assert list(begun_anew(edited, [])) == ["munich", "berlin"]
    assert not edited.leaving.copy_of("prod").exists()


@pytest.mark.long
@pytest.mark.parametrize("goes_on", [True, False])
def test_one_that_is_another_vcenter_by_now_is_told_loudly(at: object, edited: Edited, goes_on: bool) -> None:
    """Its name is taken: the copy and the command are there for a person."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    messages = list[str]()
    begun_anew(edited, messages)
    edited.write("munich", further_text=f"[targets.prod]\nhost = 'vc-new'\nrotations = ['{edited.policy('prod')}']\n")
    rotations = edited.obeyed.read_anew(edited.known, NOW) or {} if goes_on else begun_anew(edited, messages)
    assert (sorted(rotations), leaving(rotations)) == (["munich", "prod"], [])
    [warning] = [line for line in messages if line.startswith("prod was ")]
    file = Path(warning.partition("GPUOPS_CONFIG=")[2].partition(" gpuops rotate day --vcenter prod")[0])
    assert parsed_configuration(file.read_text(encoding="utf-8"), file).targets["prod"].host == "vc-prod"
    assert edited.obeyed.configuration_of("prod") is None
    begun_anew(edited, later := list[str]())
    assert later == []


def test_a_login_that_is_of_one_vcenter_does_not_go_to_one_that_left(
    at: object, edited: Edited, monkeypatch: pytest.MonkeyPatch
) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    Left(edited).look()
    monkeypatch.setenv("GPUOPS_PASSWORD", "of munich")
    with pytest.raises(UsageError, match="would go to each of 2 vCenters: munich, prod"):
        begun_anew(edited, [])


def test_a_state_directory_that_cannot_be_made_changes_nothing(at: object, edited: Edited) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    shutil.rmtree(edited.folder / "leaving")
    (edited.folder / "leaving").write_text("a file", encoding="utf-8")
    leaving_target.look()
    assert leaving(leaving_target.service.rotations) == []
    assert "the runner continues with the last valid file" in edited.said[-1]


def test_a_return_that_ends_while_turns_are_offered(at: object, edited: Edited) -> None:
    """Its target is let go of in the middle of the look."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    leaving_target = Left(edited)
    leaving_target.look()
    at("2026-11-03T06:00:10")  # type: ignore[operator]
    queue = leaving_target.queue

    class Slow(MemoryQueue):
        async def offer(self, turn: PolicyTurn, since: datetime) -> bool:
            leaving_target.service.rotations = {"munich": leaving_target.service.rotations["munich"]}
            return await queue.offer(turn, since)

    leaving_target.service.queue = Slow()
    queue.offered.clear()
    asyncio.run(looks(leaving_target.service, 1))
    assert [turn.site for turn, _ in queue.offered] == ["munich", "prod"]


def test_a_return_of_a_target_that_is_there_lets_go_of_nothing(at: object, edited: Edited) -> None:
    at("2026-11-03T06:00:10")  # type: ignore[operator]
    service, children, messages = service_of(MemoryQueue())
    service.rotations = edited.known
    asyncio.run(service.play(PROD))
    assert isinstance(children, CalledChildren) and children.called == [(Half.DAY, "prod")]
    assert (list(service.rotations), messages) == (["prod"], [])
