"""A site file as a task: check mode shows what differs, then it is changed, and a second time nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import PolicyError, Refused, UsageError
from gpuops.extras.declare.tasks import gpu_site
from gpuops.files.yaml_file import parse_yaml
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.tasks.perform import TaskResult
from gpuops.tasks.task_connection import ConnectionArguments
from tests.tasks.conftest import Lab
from tests.tasks.test_hosts import days
from tests.wire.hosts.clusters import cluster, desktops

pytestmark = pytest.mark.long

SITE = """version: 1
hosts:
  - {host: esx-02.lab, assignment: performance}
  - {host: esx-01.lab, gpu: "0000:d8:00.0", scheduler: equal-share, time_slice: 2ms}
vms:
  - {vm: ml-07, devices: {profile: a100-3-20c}, marks: [{attribute: team, value: blue}]}
"""


def set_site(lab: Lab, text: str, *, apply: bool, **options: Any) -> TaskResult:
    content = parse_yaml(text, "content")
    assert isinstance(content, dict)
    return gpu_site(lab.said, None, content, apply=apply, **options)


def test_check_mode_predicts_and_the_second_run_does_nothing(lab: Lab) -> None:
    foreseen = set_site(lab, SITE, apply=False)
    assert lab.effects == []
    applied = set_site(lab, SITE, apply=True)
    assert (foreseen.exit_code, applied.exit_code) == (0, 0), applied.message
    same = ("changed", "diff", "afterwards", "reasons")
    assert {key: applied.result[key] for key in same} == {key: foreseen.result[key] for key in same}
    assert applied.result["changed"] and len(applied.result["diff"]) == 3
    assert "esx-01.lab must be rebooted" in applied.result["afterwards"][0]
    assert (foreseen.result["plan"]["applied"], applied.result["plan"]["applied"]) == (False, True)
    effects = lab.effects
    assert effects
    for apply in (False, True):
        repeated = set_site(lab, SITE, apply=apply)
        assert (repeated.result["changed"], repeated.result["diff"], lab.effects) == (False, [], effects)
        assert repeated.result["afterwards"] == applied.result["afterwards"], "the host is not rebooted yet"


def test_hosts_are_rebooted_if_the_task_says_so(tmp_path: Path) -> None:
    with SimServer(cluster(2, [desktops(1, 2, first=1), desktops(2, 3, first=3)])) as server:
        path = tmp_path / "ready.json"
        sim_client.write(path, sim_client.of(server))
        lab = Lab(server, ConnectionArguments(hostname=f"sim@{path}"))
        text = "version: 1\nhosts: [{host: '*', scheduler: equal-share}]\n"
        without = set_site(lab, text, apply=True)
        assert (without.exit_code, without.result["changed"], len(without.result["afterwards"])) == (0, True, 1)
        foreseen = set_site(lab, text, apply=False, reboot="rolling")
        applied = set_site(lab, text, apply=True, reboot="rolling")
        assert (foreseen.exit_code, applied.exit_code) == (0, 0), applied.message
        same = ("changed", "diff", "reasons")
        assert {key: applied.result[key] for key in same} == {key: foreseen.result[key] for key in same}
        assert applied.result["changed"] and applied.result["diff"] and applied.result["afterwards"] == []
        repeated = set_site(lab, text, apply=True, reboot="rolling")
        assert (repeated.exit_code, repeated.result["changed"], repeated.result["diff"]) == (0, False, [])


def test_a_file_says_the_same_as_its_content(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(SITE, encoding="utf-8")
    from_file = gpu_site(lab.said, str(file), None, apply=False)
    assert from_file.result["diff"] == set_site(lab, SITE, apply=False).result["diff"] != []


def test_an_infeasible_file_is_refused_alike_in_check_mode(lab: Lab) -> None:
    text = SITE.replace("vm: ml-07,", "vm: legacy,")
    for apply in (False, True):
        refused = set_site(lab, text, apply=apply)
        assert (refused.exit_code, refused.result["changed"], refused.result["diff"]) == (3, False, [])
        assert refused.message == f"refused, nothing changed: {'; '.join(refused.result['reasons'])}"
        assert "legacy" in refused.message
    assert lab.effects == []


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        (SITE.replace("assignment", "asignment"), {}, PolicyError, "content: hosts.*asignment"),
        (f"{SITE}policies: [none.yaml]\n", {}, PolicyError, "none.yaml"),
        (SITE, {"max_hosts": 2}, UsageError, "max_hosts needs reboot=rolling"),
        (SITE, {"window": days(3)}, Refused, "is closed: it opens at"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    lab: Lab, text: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        set_site(lab, text, apply=True, **options)
    assert lab.effects == []


PARTS = """version: 1
hosts:
  - {host: esx-02.lab, assignment: performance}
  - {host: esx-01.lab, default_graphics: shared}
vms:
  - {vm: ml-07, devices: {profile: a100-3-20c}}
  - {vm: ml-08, marks: [{attribute: team, value: blue}]}
"""


def test_a_host_that_fails_is_named_and_vms_wait_for_the_next_run(lab: Lab) -> None:
    rule = Rule(Effect.FAULT, "UpdateGraphicsConfig", target="esx-02.lab", fault="HostConfigFault")
    lab.server.world.injector.add(rule)
    partly = set_site(lab, PARTS, apply=True)
    assert (partly.exit_code, partly.result["changed"]) == (4, True)
    assert [diff["before_header"] for diff in partly.result["diff"]] == ["esx-01.lab"]
    failure, waiting = sorted(partly.result["reasons"])
    assert failure.startswith("esx-02.lab: ")
    assert waiting.startswith("vms: are not changed, because some settings of hosts could not be made")
    assert partly.message == f"partly done: {'; '.join(partly.result['reasons'])}"
    assert {record["target"]["name"] for record in partly.result["plan"]["remaining"]} == {
        "esx-02.lab", "ml-07", "ml-08"
    }  # fmt: skip
    again = set_site(lab, PARTS, apply=True)
    assert (again.exit_code, again.result["changed"], again.result["reasons"]) == (0, True, [])
    assert again.result["plan"]["remaining"] == []


def test_a_vm_that_fails_is_named_and_the_others_are_changed(lab: Lab) -> None:
    rule = Rule(Effect.TASK, "ReconfigVM_Task", target="ml-07", fault="GenericVmConfigFault")
    lab.server.world.injector.add(rule)
    partly = set_site(lab, PARTS, apply=True)
    assert (partly.exit_code, partly.result["changed"]) == (4, True)
    assert [diff["before_header"] for diff in partly.result["diff"]] == ["esx-01.lab", "esx-02.lab", "ml-08"]
    [failure] = partly.result["reasons"]
    assert failure.startswith("ml-07: ")
    assert partly.message == f"partly done: {failure}"
    assert set_site(lab, PARTS, apply=True).exit_code == 0
