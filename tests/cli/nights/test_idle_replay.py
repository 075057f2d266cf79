"""`gpuops idle --replay` as typed, on the scenario `lab`: an evening is measured look by look, then replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.observe.store_reads import FILE_NAME
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events import vm_events as vms
from tests.cli.conftest import LAB_POLICY, Lab

WINDOW: Final = 'windows: [{zone: UTC, opens: "19:00", closes: "20:00", back_by: "20:30"}]\n'
LOOK_S: Final = 20 * 60

Golden = Callable[[str, str], None]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """The policy of the lab with one evening hour a day, by 15 minutes of counters."""
    return changed_policy(tmp_path / "policy.yaml")


def changed_policy(path: Path, *changes: tuple[str, str]) -> Path:
    text = Path(LAB_POLICY).read_text()
    usual = (
        ("windows: any                        # for trying; a real one says its hours\n", WINDOW),
        ("cpu_below_mhz: 500\n", "cpu_below_mhz: 500\n      for_s: 900\n"),
    )
    for old, new in (*usual, *changes):
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


def uses(lab: Lab, vm: str, mhz: int) -> None:
    [desktop] = [machine for machine in lab.server.world.by_type("VirtualMachine") if machine.state.name == vm]
    desktop.state.cpu_usage_mhz = mhz


def look(lab: Lab, after_s: float = LOOK_S) -> None:
    lab.server.world.clock.advance(after_s)
    result = lab.run("observe", "--once")
    assert result.exit_code == 0, result.stderr


def evening(lab: Lab) -> None:
    """From 18:01 on, every 20 minutes until 21:01: what is used in a look was used since the one before."""
    look(lab, 60)
    assert lab.server.world.clock.now().strftime("%H:%M") == "18:01"
    for number in range(1, 10):
        if number == 4:  # from 19:00 on, when vdi-01 was taken
            uses(lab, "vdi-01", 4000)
        if number == 5:
            uses(lab, "vdi-01", 60)
        if number == 6:  # from 19:40 on
            uses(lab, "vdi-02", 4000)
        look(lab)


def replay_idle(lab: Lab, policy: Path, *options: str, since: str = "1d") -> dict[str, Any]:
    result = lab.run("idle", "--replay", since, "--policy", str(policy), *options, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.long
def test_an_evening_is_replayed_as_it_was_measured(lab: Lab, policy: Path, golden: Golden) -> None:
    """Of 12 desktops one has no owner's mark, three are off or suspended, one is busy all the time. Seven are taken at
    19:00: one is used from then on, one from 19:40 on, five stay idle for the 90 minutes until they are due."""
    evening(lab)
    before = list(lab.effects)
    answer = replay_idle(lab, policy)
    [office] = answer["pools"]
    assert (office["desktops"], office["left_out"], office["not_replayed"]) == (11, 1, ["console"])
    assert office["nights"] == [
        {
            "night": "2026-11-02",
            "opens": "2026-11-02T19:00:00+00:00",
            "closes": "2026-11-02T20:00:00+00:00",
            "back_by": "2026-11-02T20:30:00+00:00",
            "taken": 7,
            "used": 1,
            "unknown": {"no-samples": 3},
            "harvested_s": 5 * 90 * 60 + 40 * 60,
            "not_known_s": 0,
            "false_idle_within_s": [300],
            "false_idle_unknown": 0,
            "used_later": 1,
        }
    ]
    assert (answer["not_observed"], answer["gone"]) == ([], 0)
    text = lab.run("idle", "--replay", "1d", "--policy", str(policy), "--pool", "office").stdout
    golden("idle-replay.txt", text)
    assert "vdi-" not in text + json.dumps(answer), "desktops are counted, and none is named"
    assert lab.effects == before

    few = changed_policy(policy.with_name("other.yaml"), ("pools:\n", f"pools:\n{NO_WHILE}"))
    pools = {pool["pool"]: pool for pool in replay_idle(lab, few)["pools"]}
    assert pools["office"]["nights"] == office["nights"]
    assert pools["cad"]["nights"] == []
    assert (
        pools["cad"]["refusal"] == "its `idle` rule has no for_s, so it uses only current values, which are not stored"
    )
    few_text = lab.run("idle", "--replay", "1d", "--policy", str(few)).stdout
    assert "pool cad: cannot be replayed, its `idle` rule" in few_text

    # what a pool would gain by being gated or parked
    texts = {}
    for broker in ("none", "horizon"):
        now = changed_policy(
            policy.with_name(f"{broker}.yaml"),
            ("pools:\n", f"broker: {broker}\npools:\n"),
            ("parked: true", "parked: false"),
        )
        assert replay_idle(lab, now)["pools"][0]["nights"][0]["taken"] == office["nights"][0]["taken"]
        texts[broker] = lab.run("idle", "--replay", "1d", "--policy", str(now)).stdout
    warning = "a night suspends none of them, because the pool is neither parked nor gated"
    untaken = {broker: warning in text for broker, text in texts.items()}
    assert untaken == {"none": True, "horizon": False}

    # vCenter forgets a desktop: its series is of no pool any more
    deleted = next(machine for machine in lab.server.world.by_type("VirtualMachine") if machine.state.name == "vdi-07")
    vms.delete(deleted, Rule(Effect.HAPPEN, happening="vm.deleted"))
    after = replay_idle(lab, policy)
    assert (after["gone"], after["pools"][0]["desktops"], after["pools"][0]["nights"][0]["taken"]) == (1, 10, 6)


def test_nights_that_nobody_watched_are_unknown_and_said_to_be(lab: Lab, policy: Path) -> None:
    """Looks at 21:01 of three days: of the day before each there are averages, of the days between nothing."""
    look(lab, 3 * 3600 + 60)
    look(lab, 24 * 3600)
    look(lab, 3 * 24 * 3600)
    answer = replay_idle(lab, policy, since="7d")
    nights = {night_row["night"]: night_row for night_row in answer["pools"][0]["nights"]}
    by_averages = {"averages-alone": 7, "not-observed": 3}
    assert {night: facts["unknown"] for night, facts in nights.items()} == {
        "2026-10-31": {"not-observed": 11},
        "2026-11-01": {"not-observed": 11},
        "2026-11-02": by_averages,
        "2026-11-03": by_averages,
        "2026-11-04": {"not-observed": 11},
        "2026-11-05": {"not-observed": 11},
        "2026-11-06": by_averages,
    }
    assert {(facts["taken"], facts["harvested_s"], facts["not_known_s"]) for facts in nights.values()} == {(0, 0, 0)}
    assert answer["not_observed"][0] == {"from": "2026-10-31T18:40:00+00:00", "until": "2026-10-31T20:40:00+00:00"}
    assert len(answer["not_observed"]) == 7
    text = lab.run("idle", "--replay", "7d", "--policy", str(policy)).stdout
    assert "all             0     3       74      0.0 h" in text
    assert text.count("not observed    2026-1") == 7


NO_WHILE: Final = """  - name: cad
    parked: true
    select: {folder: vdi, profile: "*-16q"}
    idle: {cpu_below_mhz: 500}
    owner: none
"""


@pytest.mark.parametrize(
    ("words", "change", "reason", "next_move"),
    [
        ("--replay 1d", None, "--replay needs a policy", "add --policy FILE"),
        (
            "--replay 1d --policy P --vm vdi-01",
            None,
            "--replay and --vm exclude each other",
            "remove --vm: a replay only counts",
        ),
        (
            "--replay a-week --policy P",
            None,
            "--replay: 'a-week' is neither a number of days or weeks nor a date",
            "write it as 30d",
        ),
        (
            "--replay 15d --policy P",
            None,
            "--replay from 2026-10-18 is not possible: steps of five minutes are kept for 14 days",
            "use --replay 14d",
        ),
        (
            "--replay 2026-09-01 --policy P",
            None,
            "--replay from 2026-09-01 is not possible: steps of five minutes are kept for 14 days",
            "use --replay",
        ),
        (
            "--replay 2w --policy P",
            None,
            "gpuops observe has stored nothing about this vCenter yet",
            "run gpuops observe --once",
        ),
        (
            "--replay 0d --policy P",
            None,
            "no night of policy lab-night opened and ended since 2026-11-02",
            "go further",
        ),
        ("--replay 2027-01-01 --policy P", None, "no night of policy lab-night opened and ended since", "go further"),
        ("--replay 1d --policy P --pool offise", None, "there is no pool 'offise'", "pools of this policy: office"),
        ("--replay 1d --policy P", (WINDOW, "windows: any\n"), "policy lab-night has no windows", "add `windows`"),
        (
            "--replay 1d --policy P",
            ("      for_s: 900\n", ""),
            "pool office cannot be replayed: its `idle` rule has no for_s",
            "add for_s",
        ),
        (
            "--replay 1d --policy P",
            ("for_s: 900\n", "for_s: 900\n      counters: {disk.read.average: 9}\n"),
            "pool office cannot be replayed: gpuops observe does not store disk.read.average",
            "remove it from `idle.counters`",
        ),
    ],
)
def test_what_cannot_be_replayed_is_one_line_and_makes_no_store(
    lab: Lab, tmp_path: Path, words: str, change: tuple[str, str] | None, reason: str, next_move: str
) -> None:
    policy = changed_policy(tmp_path / "policy.yaml", *([change] if change is not None else []))
    result = lab.run("idle", *(str(policy) if word == "P" else word for word in words.split()))
    assert (result.exit_code, result.stdout) == (2, "")
    error, hint = result.stderr.splitlines()
    assert error.startswith(f"error: {reason}")
    assert hint.startswith(f"next: {next_move}")
    assert not (default_state_dir() / FILE_NAME).exists()


@pytest.mark.long
def test_a_damaged_store_is_said_to_be_one(lab: Lab, policy: Path) -> None:
    default_state_dir().mkdir(parents=True)
    (default_state_dir() / FILE_NAME).write_bytes(b"no database at all" * 100)
    (default_state_dir() / FILE_NAME).chmod(0o600)
    result = lab.run("idle", "--replay", "1d", "--policy", str(policy))
    assert (result.exit_code, result.stdout) == (7, "")
    assert result.stderr.startswith("error: the store of measurements ")
