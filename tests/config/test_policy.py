"""Policies are read as they are meant, or refused in one line that names the file, the key and the reason."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
import yaml

from gpuops.config.decoding import fields_of, keys_of, sections_of
from gpuops.config.policy import PolicyFile, load_policy, parse_policy
from gpuops.errors import PolicyError
from gpuops.model.desktops.evidence import Source
from gpuops.model.measurements.measurement import CPU_MHZ
from gpuops.model.nights.ml_queue import Checkpoint, GuestCommand, QueuedVm, SshDoor
from gpuops.model.nights.night_record import Marker, Role, is_unreadable_marker, marker_value, parse_marker
from gpuops.model.nights.rotation_policy import IdleRule, Limits
from gpuops.model.nights.selector import Mark
from gpuops.model.vcenter.vm import VmDrs

OPTIONAL = re.compile(r"^( *)# ((?: {2})*(?:- )?[a-z_.]+:(?: .*)?)$", re.MULTILINE)
"""What the template shows as a comment that is YAML without its `#`."""
INSTEAD_OF_OTHERS = {"vms", "window"}
"""Keys that the template names in the comment of the key beside which they may not stand."""
TEMPLATE = Path(__file__).parents[2] / "templates" / "policy.yaml"
SPARE_TEMPLATE = TEMPLATE.with_name("spare-policy.yaml")

SMALL = """
version: 1
name: small
pools:
  - name: all
    parked: true
    select: {name: "d-*"}
    idle: {cpu_below_mhz: 500}
    owner: none
"""


def test_the_template_is_a_valid_policy() -> None:
    policy = load_policy(TEMPLATE)
    assert [pool.name for pool in policy.pools] == ["design"]
    assert policy.pools[0].parked
    assert policy.pools[0].floor == 2
    assert [(queued.names[0], queued.relocate) for queued in policy.ml] == [("ml-01", False), ("ml-02", True)]
    assert [window.name for window in policy.windows] == ["workdays", "free-days"], "cron may call it as it stands"
    assert not policy.any_time
    assert policy.ml_stop.then_off
    assert len(policy.digest) == 64


def test_what_the_template_comments_out_is_valid_too() -> None:
    policy = parse_policy(OPTIONAL.sub(r"\1\2", TEMPLATE.read_text()), "opened")
    assert policy.pools[0].owner == Mark(attribute="gpuops.owner", value="office")
    assert policy.pools[0].select.marks == (Mark("gpuops.role", "desktop"), Mark(tag="department:design"))
    assert policy.needs_tags
    required = frozenset({Source.CPU, Source.CONSOLE, Source.COUNTERS, Source.BROKER})
    assert policy.pools[0].idle == IdleRule(500, 3300, (("net.usage.average", 50),), required, 300, 240 * 60, 5)
    assert (policy.counters, policy.counters_for_s) == (frozenset({CPU_MHZ, "net.usage.average"}), 3300)
    workdays, free_days = policy.windows
    assert (workdays.opens, workdays.closes, workdays.back_by) == (time(20), time(5), time(7))
    assert workdays.not_on == free_days.also_on == {date(2026, 12, 23), date(2026, 12, 24)}
    hook = GuestCommand("/usr/local/bin/save-checkpoint", "--all", SshDoor("keeper", "{vm}.example.com"))
    train = QueuedVm(
        "train-*",
        count=3,
        profile="*-48c",
        priority=10,
        deadline=time(4),
        minimum_run=timedelta(hours=2),
        checkpoint=Checkpoint(900),
    )
    assert policy.ml[2] == train
    assert policy.ml[0].checkpoint == Checkpoint(600, hook, 900)
    assert (policy.limits.desktops, policy.limits.desktops_per_host) == (200, 20)


def test_the_template_shows_every_key() -> None:
    templates = TEMPLATE.read_text() + SPARE_TEMPLATE.read_text()
    shown_keys = set(re.findall(r"([a-z_]+):(?: |$)", OPTIONAL.sub(r"\1\2", templates), re.MULTILINE))
    sections: list[type] = [PolicyFile]
    while sections:
        section = sections.pop()
        assert set(keys_of(section)) - INSTEAD_OF_OTHERS <= shown_keys, section.__name__
        for field in fields_of(section):
            if field.name not in INSTEAD_OF_OTHERS:
                sections += sections_of(field.type)


def test_what_is_left_out_is_the_careful_choice() -> None:
    policy = parse_policy(SMALL, "small")
    assert policy.limits == Limits()
    assert policy.opt_out == Mark(attribute="gpuops.opt-out")
    assert policy.windows == ()
    assert not policy.any_time
    assert not policy.needs_tags
    assert (policy.pools[0].idle, policy.counters, policy.counters_for_s) == (IdleRule(500), frozenset(), 0)


def test_counters_that_are_required_go_back_as_far_as_hosts_keep_them() -> None:
    def idle(line: str) -> IdleRule:
        text = SMALL.replace("    owner: none\n", f"    owner: none\n    {line}\n")
        return parse_policy(text, "small").pools[0].idle

    assert idle("evidence: {required: [counters]}") == IdleRule(500, 3300, required=frozenset({Source.COUNTERS}))
    smi = IdleRule(500, 0, required=frozenset({Source.NVIDIA_SMI}), vgpu_below_percent=5)
    assert idle("evidence: {required: [nvidia-smi]}") == smi, "what is required has a limit"
    assert idle("evidence: {required: [command]}") == IdleRule(500, 0, required=frozenset({Source.COMMAND}))
    assert idle("floor: 0").needed == {Source.CPU, Source.CONSOLE}
    assert replace(idle("floor: 0"), for_s=60).needed == {Source.CPU, Source.CONSOLE, Source.COUNTERS}


def test_every_hour_is_what_a_policy_says_and_not_what_it_leaves_out() -> None:
    policy = parse_policy(f"{SMALL}windows: any\n", "small")
    assert (policy.windows, policy.any_time) == ((), True)
    assert parse_policy(policy.text, "journal") == policy


def test_a_policy_is_read_again_from_the_text_it_keeps() -> None:
    policy = load_policy(TEMPLATE)
    assert parse_policy(policy.text, "journal") == policy


SHOWN = "templates/policy.yaml shows every key, with comments"
MISTAKES: list[dict[str, str]] = yaml.safe_load((Path(__file__).parent / "cases" / "policy-mistakes.yaml").read_text())


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake["says"][:60] for mistake in MISTAKES])
def test_a_mistake_is_one_line_with_key_and_reason_and_the_next_move(mistake: dict[str, str]) -> None:
    old = mistake.get("replace", "version: 1")
    assert old in SMALL
    new = mistake["by"] if "replace" in mistake else f"version: 1\n{mistake['by']}"
    with pytest.raises(PolicyError) as refused:
        parse_policy(SMALL.replace(old, new), "night.yaml")
    assert refused.value.message == f"night.yaml: {mistake['says']}"
    assert refused.value.hint == mistake.get("next", SHOWN)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("version: 1", "version: !!python/object/apply:os.system ['true']"), "gpuops accepts no tags"),
        (("version: 1", "version: [1"), "line 3, column 5: expected"),
        (("cpu_below_mhz: 500", "cpu_below_mhz: 0500"), "cpu_below_mhz: should be a whole number"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)):
        parse_policy(SMALL.replace(*change), "night.yaml")


def test_the_policy_of_a_night_in_the_journal_is_read_though_a_new_one_would_be_refused() -> None:
    """Its desktops must come back: a newer gpuops that asks for more is no reason to strand them."""
    old = SMALL.replace("    owner: none\n", "") + "window: {opens: 20:00, closes: 20:30, zone: UTC}\n"
    old += "marker: gpuops.opt-out\nlock_vm: a\nml: {queue: [{vm: a}]}\n"
    with pytest.raises(PolicyError):
        parse_policy(old, "a new one")
    policy = parse_policy(old, "the journal", accepted_before=True)
    assert policy.pools[0].owner is None
    assert policy.windows[0].length_on(date(2026, 11, 23)) == timedelta(minutes=30)
    assert parse_policy(SMALL, "said").pools == policy.pools


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("ml: {queue: [{vm: a, across_sites: true}]}\n", "ml.queue.0", "in the queue of one vCenter alone"),
        ("fair_share: {by: folder, across_sites: true}\n", "fair_share", "are those of one vCenter"),
    ],
)
def test_a_removed_key_is_refused_with_what_to_write_and_its_night_still_comes_back(
    text: str, place: str, hint: str
) -> None:
    with pytest.raises(PolicyError) as refused:
        parse_policy(SMALL + text, "night.yaml")
    assert refused.value.message == f"night.yaml: {place}: `across_sites` is no longer supported"
    assert hint in (refused.value.hint or "")
    past = parse_policy(SMALL + text, "the journal", accepted_before=True)
    new = parse_policy(SMALL + text.replace(", across_sites: true", ""), "night.yaml")
    assert (past.ml, past.fair_share) == (new.ml, new.fair_share)


def test_one_window_may_stand_alone() -> None:
    window = "opens: 20:00, closes: 05:00, zone: UTC"
    alone = parse_policy(SMALL + f"window: {{{window}}}\n", "p")
    assert alone.windows == parse_policy(SMALL + f"windows: [{{{window}}}]\n", "p").windows


def test_a_deadline_without_an_offset_is_of_the_zone_of_the_windows() -> None:
    window = "{opens: 20:00, closes: 05:00, zone: Europe/Berlin}"
    text = f"window: {window}\nml: {{queue: [{{vm: a, deadline: 2026-11-24 06:00}}]}}\n"
    [queued] = parse_policy(SMALL + text, "p").ml
    assert queued.deadline == datetime(2026, 11, 24, 5, 0, tzinfo=UTC)


def test_unquoted_times_are_times_not_sexagesimal_numbers() -> None:
    assert yaml.safe_load("22:00") == 1320, "what this guards against"
    policy = parse_policy(SMALL + "window: {opens: 22:00, closes: 06:00, zone: UTC}\n", "p")
    assert policy.windows[0].opens == time(22)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: &a [1]\ny: [" + ",".join(["*a"] * 101) + "]", "more than 100 aliases"),
        ("[" * 60 + "]" * 60, "nested deeper than 40"),
        ("{[1]: 2}", "a key is not text"),
        ("", "is empty"),
        ("# nothing but a comment", "is empty"),
        ("just text", "is not a policy: it must consist of keys and values"),
        ("\x07", "is not YAML"),
    ],
)
def test_a_hostile_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse_policy(text, "p")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=f"cannot be read: {os.strerror(errno.ENOENT)}") as refused:
        load_policy(tmp_path / "none.yaml")
    assert refused.value.hint == "check the path"
    (tmp_path / "big.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(PolicyError, match="larger than 1048576 bytes"):
        load_policy(tmp_path / "big.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(PolicyError, match="not UTF-8 at byte 6"):
        load_policy(tmp_path / "latin.yaml")


def test_a_marker_alone_tells_night_and_role() -> None:
    for night in ("2026-11-20", "2026-11-20T13:05Z"):
        for role in Role:
            assert parse_marker(marker_value(night, role)) == Marker(night, role)
            for drs in VmDrs:
                assert parse_marker(marker_value(night, role, drs)) == Marker(night, role, drs)
            seen_at = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
            assert parse_marker(marker_value(night, role, seen=seen_at)) == Marker(night, role, seen=seen_at)
            assert parse_marker(marker_value(night, role, lease=7)) == Marker(night, role, lease=7)
            marker = Marker(night, role, VmDrs.MANUAL, seen_at, 7)
            assert parse_marker(marker_value(*marker)) == marker
    for foreign in ("", "maintenance", "2026-11-20", "2026-11-20 king", "soon desktop", "2026-11-20 ml drs=x",
                    "2026-11-20 ml seen=now", "2026-11-20 ml seen=2026-11-21T05:00:00",
                    "2026-11-20 ml seen"):  # fmt: skip
        assert parse_marker(foreign) is None
        assert is_unreadable_marker(foreign) is bool(foreign)


@pytest.mark.parametrize(
    "text",
    ["2026-11-20 ml drs=partiallyAutomated lease=7 ", "\t2026-11-20  ML DRS=PARTIALLYAUTOMATED lease=7\n",
     "2026-11-20 ml zone=Europe/Berlin drs=partiallyAutomated lease=7 by="],
)  # fmt: skip
def test_white_space_upper_case_and_keys_of_a_later_version_leave_a_marker_readable(text: str) -> None:
    assert parse_marker(text) == Marker("2026-11-20", Role.ML, VmDrs.PARTIAL, lease=7)
    assert not is_unreadable_marker(text)


def test_white_space_alone_is_no_marker() -> None:
    assert parse_marker("  ") is None
    assert not is_unreadable_marker("  ")


def test_a_pool_that_is_not_parked_is_gated_where_there_is_a_broker() -> None:
    """Its sessions at the broker must then be known, whatever else the pool requires."""
    of_broker = SMALL.replace("name: small", "name: small\nbroker: horizon")
    [parked] = parse_policy(of_broker, "parked").pools
    assert (parked.gated, parked.users_kept_away, Source.BROKER in parked.idle.needed) == (False, True, False)
    gated = parse_policy(of_broker.replace("parked: true", "parked: false"), "gated")
    [pool] = gated.pools
    assert (gated.gates, pool.gated, pool.users_kept_away) == (True, True, True)
    assert pool.idle.needed == IdleRule(500).needed | {Source.BROKER}
    [open_to_all] = parse_policy(SMALL.replace("parked: true", "parked: false"), "open").pools
    assert (open_to_all.gated, open_to_all.users_kept_away) == (False, False)


def test_lending_is_refused_but_in_the_policy_of_a_night_that_has_begun_under_an_earlier_version() -> None:
    old = f"{SMALL}lending: [{{pool: lab, by_night: take-back, grace: 15m}}]\n"
    with pytest.raises(PolicyError, match="this key is no longer supported") as refused:
        parse_policy(old, "policy.yaml")
    assert "gpuops pool reclaim --server NAME" in (refused.value.hint or "")
    assert parse_policy(old, "the journal", accepted_before=True).pools == parse_policy(SMALL, "policy.yaml").pools
