"""`--reboot rolling` and `gpuops change` on the command line: what is printed, and what is said of wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from gpuops.clock import wall_clock

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
SCATTERED = ("--vcenter", "sim:scattered")
ROLLING = ("host", "scheduler", "set", "--scheduler", "equal-share", "--host", "esx-0[34]*", "--reboot", "rolling")


def test_a_dry_run_shows_each_round_and_where_each_vm_goes(gpuops: Gpuops, golden: Golden) -> None:
    result = gpuops(*ROLLING, "--running-vms", "shut-down", "--dry-run", *SCATTERED)
    assert (result.exit_code, result.stderr) == (0, "")
    golden("change-plan.txt", result.stdout)


@pytest.mark.long
def test_the_plan_as_json(gpuops: Gpuops) -> None:
    plan = json.loads(gpuops(*ROLLING, "--running-vms", "shut-down", "--dry-run", *SCATTERED, "-o", "json").stdout)
    assert (plan["kind"], plan["verb"], plan["applied"], plan["exit_code"]) == ("change", "scheduler set", False, 0)
    [[first], [second]] = plan["rounds"]
    assert [first["host"]["name"], second["host"]["name"]] == ["esx-03.scattered", "esx-04.scattered"]
    assert {vm["vm"]["name"]: vm["leaves_by"] for vm in first["vms"]} == {
        "cad-03": "vmotion",
        "desk-08": "vmotion",
        "desk-09": "shut_down",
    }


@pytest.mark.long
def test_a_change_tells_on_stderr_how_it_goes_on_and_ends_with_each_host(gpuops: Gpuops) -> None:
    result = gpuops(*ROLLING, "--host", "esx-04*", "--yes", *SCATTERED)
    assert result.exit_code == 2, "an option is said once"
    words = [word if word != "esx-0[34]*" else "esx-04*" for word in ROLLING]
    result = gpuops(*words, "--yes", *SCATTERED)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "esx-04.scattered: 3 VMs leave",
        "esx-04.scattered: enters maintenance mode",
        "esx-04.scattered: reboots",
        "esx-04.scattered: back, and as it was set",
        "esx-04.scattered: leaves maintenance mode",
        "esx-04.scattered: done",
    ]
    assert "done     esx-04.scattered" in result.stdout


def closed_now() -> str:
    """A window that neither today nor last evening opens."""
    days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    return f"{days[(wall_clock().weekday() + 3) % 7]} 10:00-11:00 UTC"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("host", "scheduler", "set", "--scheduler", "equal-share", "--host", "esx-04*", "--max-hosts", "2"),
            2,
            "--reboot rolling",
        ),
        ((*ROLLING, "--max-hosts", "0"), 2, "should be greater than or equal to 1"),
        ((*ROLLING, "--running-vms", "suspend"), 2, "'suspend' is not one of"),
        ((*ROLLING[:4], "fair", *ROLLING[5:]), 2, "'fair' is not one of"),
        ((*ROLLING, "--window", "tonight"), 2, "'tonight' is not a window"),
        ((*ROLLING, "--window", closed_now(), "--running-vms", "shut-down", "--yes"), 3, "is closed: it opens"),
        (ROLLING, 3, "desk-09 cannot leave the host while it runs: is pinned to GPU 0000:3b:00.0"),
        ((*ROLLING, "--running-vms", "shut-down"), 2, "there is no terminal to ask at"),
        ((*ROLLING, "--time-slice", "31ms", "--yes"), 3, "time slice 31 ms is not within 1 to 30 ms"),
        (
            ("host", "mode", "set", "--assignment", "performance", "--host", "esx-04*", "--reboot", "rolling"),
            2,
            "waits for a reboot",
        ),
        (("change", "resume"), 0, "no change of hosts was cut off"),
        (("change", "abort", "--dry-run"), 0, "no change of hosts was cut off"),
        (("change", "abandon"), 2, "abandon needs either a host or a VM"),
        (("change", "abandon", "--host", "esx-04", "--vm", "desk-01"), 2, "abandon needs either a host or a VM"),
        (("change", "abandon", "--host", "esx-04"), 3, "esx-04: no change of hosts is open"),
        (("defrag", "--max-moves", "1"), 2, "there is no terminal to ask at"),
        (("host", "mig", "on", "--host", "*"), 2, "vCenter has no call for it"),
    ],
)
def test_what_is_wrong_is_one_line_and_its_exit_code(
    gpuops: Gpuops, words: tuple[str, ...], code: int, message: str
) -> None:
    result = gpuops(*words, *SCATTERED)
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Traceback" not in result.output
