"""Policies are read as they are meant, or refused in one line that names the file, the key and the reason."""

from __future__ import annotations

from datetime import UTC, datetime, time
from pathlib import Path

import pytest
import yaml

from gpuops.config.policy import load_policy, parse_policy
from gpuops.errors import PolicyError
from gpuops.model.rotation import Limits, Mark, Policy, Role, marker_value, parse_marker
from gpuops.model.vm import Vm

TEMPLATE = Path(__file__).parents[2] / "templates" / "policy.yaml"

SMALL = """
version: 1
name: small
pools:
  - name: all
    parked: true
    select: {name: "d-*"}
    idle: {cpu_below_mhz: 500}
"""


def test_the_template_is_a_valid_policy() -> None:
    policy = load_policy(TEMPLATE)
    assert [pool.name for pool in policy.pools] == ["design"]
    assert policy.pools[0].parked
    assert policy.pools[0].floor == 2
    assert [(queued.name, queued.relocate) for queued in policy.ml] == [("ml-01", False), ("ml-02", True)]
    assert policy.window is not None
    assert (policy.window.opens, policy.window.closes) == (time(20), time(5))
    assert policy.ml_stop.then_off
    assert len(policy.digest) == 64


def test_what_the_template_comments_out_is_valid_too() -> None:
    lines = TEMPLATE.read_text().splitlines()
    opened = [
        line.replace("# ", "", 1) if line.strip().startswith(("# owner:", "#   attribute", "#   value")) else line
        for line in lines
    ]
    opened = [line.replace("# marks:", "marks:") for line in opened]
    opened = [line.replace("#   - ", "  - ").replace("#     value", "    value") for line in opened]
    policy = parse_policy("\n".join(opened), "opened")
    assert policy.pools[0].owner == Mark(attribute="gpuops.owner", value="design-team")
    assert policy.pools[0].select.marks == (Mark("gpuops.role", "desktop"), Mark(tag="department:design"))
    assert policy.needs_tags


def test_what_is_left_out_is_the_careful_choice() -> None:
    policy = parse_policy(SMALL, "small")
    assert policy.limits == Limits()
    assert policy.opt_out == Mark(attribute="gpuops.opt-out")
    assert policy.window is None
    assert not policy.needs_tags


def test_a_policy_is_read_again_from_the_text_it_keeps() -> None:
    policy = load_policy(TEMPLATE)
    assert parse_policy(policy.text, "journal") == policy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("parked: true", "parked: yes"), "pools.0.parked: Input should be a valid boolean"),
        (("parked: true", "parkd: true"), "pools.0.parkd: unknown key (and 1 more)"),
        (("version: 1", "version: 1\nwindw: {}"), "windw: unknown key"),
        (("version: 1", "version: 2"), "version: Input should be 1"),
        (("version: 1", "version: 1\nversion: 1"), "line 3, column 1: the key 'version' is there twice"),
        (('{name: "d-*"}', "{}"), "pools.0.select: an empty `select` would mean every VM"),
        (("cpu_below_mhz: 500", "cpu_below_mhz: 0"), "cpu_below_mhz: Input should be greater than or equal to 1"),
        (("cpu_below_mhz: 500", "cpu_below_mhz: 0500"), "cpu_below_mhz: Input should be a valid integer"),
        (("version: 1", "version: 1\nwindow: {opens: 22:00, closes: 6, zone: UTC}"), "window.closes: Input should be"),
        (
            ("version: 1", "version: 1\nwindow: {opens: 22:00, closes: 06:00, zone: Berlin}"),
            "window.zone: 'Berlin' is not an IANA zone",
        ),
        (
            ("version: 1", "version: 1\nwindow: {opens: 22:00, closes: 22:00, zone: UTC}"),
            "window: opens and closes at the same minute",
        ),
        (
            ("version: 1", "version: 1\nml: {queue: [{vm: a}, {vm: a}]}"),
            "the file: the VM of the queue 'a' is there twice",
        ),
        (("version: 1", "version: !!python/object/apply:os.system ['true']"), "could not determine a constructor"),
        (("version: 1", "version: [1"), "line 3, column 5: expected"),
    ],
)
def test_a_mistake_is_one_line_with_file_key_and_reason(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse_policy(SMALL.replace(*change), "night.yaml")
    assert refused.value.message.startswith("night.yaml:")
    assert message in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 2


def test_unquoted_times_are_times_not_sexagesimal_numbers() -> None:
    assert yaml.safe_load("22:00") == 1320, "what this guards against"
    policy = parse_policy(SMALL + "window: {opens: 22:00, closes: 06:00, zone: UTC}\n", "p")
    assert policy.window is not None
    assert policy.window.opens == time(22)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: &a [1]\ny: [" + ",".join(["*a"] * 101) + "]", "more than 100 aliases"),
        ("[" * 60 + "]" * 60, "nested deeper than 40"),
        ("{[1]: 2}", "a key is not text"),
        ("", "is empty"),
        ("# nothing but a comment", "is empty"),
        ("just text", "is no policy: keys are expected"),
        ("\x07", "is not YAML"),
    ],
)
def test_a_hostile_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse_policy(text, "p")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        load_policy(tmp_path / "none.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(PolicyError, match="larger than 1048576 bytes"):
        load_policy(tmp_path / "big.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(PolicyError, match="not UTF-8 at byte 6"):
        load_policy(tmp_path / "latin.yaml")


def windowed(opens: str, closes: str, zone: str) -> Policy:
    return parse_policy(SMALL + f"window: {{opens: {opens}, closes: {closes}, zone: {zone}}}\n", "p")


@pytest.mark.parametrize(
    ("now", "inside", "night"),
    [
        ("2026-11-20T18:59", False, "2026-11-20"),
        ("2026-11-20T19:00", True, "2026-11-20"),
        ("2026-11-21T00:30", True, "2026-11-20"),
        ("2026-11-21T03:59", True, "2026-11-20"),
        ("2026-11-21T04:00", False, "2026-11-21"),
    ],
)
def test_a_night_is_named_by_the_local_date_of_its_evening(now: str, inside: bool, night: str) -> None:
    policy = windowed("20:00", "05:00", "Europe/Berlin")
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert policy.window is not None
    assert policy.window.contains(moment) is inside
    assert policy.night(moment) == night


def test_the_night_of_a_clock_change_is_one_night() -> None:
    policy = windowed("20:00", "05:00", "Europe/Berlin")  # 2026-10-25: 03:00 CEST becomes 02:00 CET
    nights = {policy.night(datetime(2026, 10, 24 + day, hour, 30, tzinfo=UTC)) for day, hour in
              [(0, 18), (0, 22), (1, 0), (1, 1), (1, 2), (1, 3)]}  # fmt: skip
    assert nights == {"2026-10-24"}


def test_a_marker_alone_tells_night_and_role() -> None:
    for night in ("2026-11-20", "2026-11-20T13:05Z"):
        for role in Role:
            assert parse_marker(marker_value(night, role)) == (night, role)
    for foreign in ("", "maintenance", "2026-11-20", "2026-11-20 king", "soon desktop"):
        assert parse_marker(foreign) is None


@pytest.mark.parametrize(
    ("select", "selected"),
    [
        ("folder: /dc/vm/desktops", True),
        ("folder: /dc/vm/desk", False),
        ("folder: desktops/cad", True),
        ("folder: vm/cad", False),
        ("folder: cad/d-01", False),
        ('name: "d-*"', True),
        ('name: "D-*"', False),
        ("marks: [{attribute: role}]", True),
        ("marks: [{attribute: role, value: ml}]", False),
        ('marks: [{tag: "a:b"}]', False),
        ('profile: "*-8q"', False),
        ('folder: desktops, name: "d-*"', True),
        ('folder: desktops, name: "e-*"', False),
    ],
)
def test_a_selector_means_what_fits_all_its_conditions(select: str, selected: bool) -> None:
    policy = parse_policy(SMALL.replace('name: "d-*"', select), "p")
    vm = Vm(ref="vm-1", name="d-01", path="/dc/vm/desktops/cad/d-01", attributes={"role": "desktop"})
    assert policy.pools[0].select.selects(vm) is selected
