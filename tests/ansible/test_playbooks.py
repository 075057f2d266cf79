"""The playbooks on `inventories/sim`, as a user types them: what check mode shows is what is done, and once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpuops.sim.server import start
from gpuops.sim.wire import sim_client
from tests.ansible.conftest import ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

Play = Callable[..., str]


@pytest.fixture
def play(ansible: Ansible, tmp_path: Path) -> Iterator[Play]:
    """Runs a playbook of the clone and returns what it printed; its simulated vCenter is stopped at the end."""
    folder = ["-e", f"gpuops_sim_dir={tmp_path}/sim"]

    def run(name: str, *options: str, code: int = 0, **environ: str) -> str:
        of = ["-i", "inventories/sim", f"playbooks/{name}.yml", *folder, "-f", "1", *options]
        playbook_run = ansible("playbook", *of, code=code, **environ)
        assert "Skipping" not in playbook_run.stderr
        return str(playbook_run.stdout)

    yield run
    assert "changed=1" in run("sim_stop")


def diffs(printed: str) -> list[str]:
    """Each VM's difference as `--diff` shows it."""
    return re.findall(r"^--- before.*?^\s*$", printed, re.MULTILINE | re.DOTALL)


def changed_hosts(printed: str) -> dict[str, bool]:
    return {
        host: number != "0" for host, number in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", printed, re.MULTILINE)
    }


def test_attach(play: Play) -> None:
    foreseen = play("attach", "--check", "--diff")
    assert len(diffs(foreseen)) == 2
    assert '+        "vGPU grid_a100-3-20c"' in foreseen
    assert '"has vGPU' not in foreseen
    applied = play("attach", "--diff")
    assert diffs(applied) == diffs(foreseen)
    assert changed_hosts(applied) == {"localhost": False, "ml-07": True, "ml-08": True}
    repeated = play("attach", "--diff")
    assert (diffs(repeated), set(changed_hosts(repeated).values())) == ([], {False})


@pytest.mark.parametrize("name", ["attach", "detach"])
def test_an_unknown_vm_has_the_reason_of_the_module(play: Play, name: str) -> None:
    failed = play(name, "--limit", "localhost,ml-07", "-e", "gpu_vm=ml-70", code=2)
    assert "NoneType" not in failed
    assert "ml-70" in json.loads(failed.partition("ml-07]: FAILED! => ")[2].partition("\n\n")[0])["msg"]


def test_report_and_detach(play: Play, tmp_path: Path) -> None:
    play("attach")
    report = tmp_path / "report.md"
    play("fleet_report", "-e", f"gpuops_report_file={report}")
    assert "| ml-07 | poweredOff | esx-01.lab | vGPU grid_a100-3-20c |" in report.read_text(encoding="utf-8")

    foreseen = play("detach", "--check", "--diff")
    applied = play("detach", "--diff")
    assert diffs(applied) == diffs(foreseen) != []
    assert changed_hosts(applied) == {"localhost": False, "ml-07": True, "ml-08": True}
    assert set(changed_hosts(play("detach")).values()) == {False}


def test_a_site(play: Play, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("version: 1\nvms: [{vm: ml-07, devices: {profile: a100-3-20c}}]\n", encoding="utf-8")
    foreseen = play("site", "--check", "--diff", "-e", f"site_file={file}")
    applied = play("site", "--diff", "-e", f"site_file={file}")
    assert diffs(applied) == diffs(foreseen) != []
    repeated = play("site", "--diff", "-e", f"site_file={file}")
    assert (diffs(repeated), changed_hosts(repeated)) == ([], {"localhost": False})


def test_a_new_vm(play: Play) -> None:
    foreseen = play("new_ml_vm", "--check", "--diff")
    applied = play("new_ml_vm", "--diff")
    assert len(diffs(applied)) == 2
    assert diffs(applied) == diffs(foreseen), "the clone, and what it gets before it is there"
    assert '+    "power": "poweredOn"' in diffs(applied)[1]
    assert re.search(r'"msg": "ml-10 runs on esx-01\.lab, 198\.', applied), "the first boot was waited for"
    checked = play("new_ml_vm", "--check", "--diff")
    assert (diffs(checked), changed_hosts(checked)) == ([], {"localhost": False})
    assert changed_hosts(play("new_ml_vm")) == {"localhost": False}


def test_a_new_vm_with_whole_gpus(play: Play) -> None:
    variables = ["-e", '{"new_vm_name": "ml-11", "new_vm_profile": "", "new_vm_gpus": 1, "new_vm_model": "l40s"}']
    foreseen = play("new_ml_vm", "--check", "--diff", *variables)
    applied = play("new_ml_vm", "--diff", *variables)
    assert len(diffs(applied)) == 2
    assert diffs(applied) == diffs(foreseen)
    assert '+        "DirectPath 0000:5e:00.0"' in diffs(applied)[1]
    assert changed_hosts(play("new_ml_vm", *variables)) == {"localhost": False}
    labelled = ["-e", '{"new_vm_name": "ml-12", "new_vm_profile": "", "new_vm_gpus": 1, "new_vm_label": "l40s-ml"}']
    assert '+        "Dynamic DirectPath 10de:26b9 label l40s-ml"' in play("new_ml_vm", "--diff", *labelled)
    assert changed_hosts(play("new_ml_vm", *labelled)) == {"localhost": False}


def test_a_cluster(play: Play) -> None:
    training = ["-e", "gpuops_sim_scenario=training"]
    foreseen = play("gpu_cluster", "--check", "--diff", *training)
    applied = play("gpu_cluster", "--diff", *training)
    assert len(diffs(applied)) == 4
    assert diffs(applied) == diffs(foreseen)
    assert re.search(r'"msg": "train: (\d+\.\d+\.\d+\.\d+(, )?){4}"', applied)
    assert (diffs(repeated := play("gpu_cluster", "--diff", *training)), changed_hosts(repeated)) == (
        [],
        {"localhost": False},
    )
    absent = [*training, "-e", "gpuops_cluster_state=absent"]
    foreseen = play("gpu_cluster", "--check", "--diff", *absent)
    removed = play("gpu_cluster", "--diff", *absent)
    assert len(diffs(removed)) == 4
    assert diffs(removed) == diffs(foreseen)
    assert changed_hosts(play("gpu_cluster", *absent)) == {"localhost": False}


def test_guests_that_are_ready_or_not(play: Play, tmp_path: Path) -> None:
    stacks = ["-e", "gpuops_sim_scenario=stacks", "-e", "gpuops_guests=gpu-*"]
    assert "there is no login for guests (GPUOPS_GUEST_USERNAME)" in play("guest_check", *stacks, code=2)
    password = tmp_path / "password"
    password.write_text("Look-inside-1\n")
    password.chmod(0o600)
    login = {"GPUOPS_GUEST_USERNAME": "checker", "GPUOPS_GUEST_PASSWORD_FILE": str(password)}
    printed = play("guest_check", "--check", *stacks, **login)
    assert "pip install 'torch>=2.3'" not in printed and "Unlicensed (Restricted)" in printed
    assert changed_hosts(printed) == {"localhost": False}
    strict = [*stacks, "-e", json.dumps({"gpuops_guests_strict": True, "gpuops_guest_frameworks": ["torch>=2.3"]})]
    printed = play("guest_check", *strict, code=2, **login)
    assert "a guest is not ready; its rows say why" in printed and "pip install 'torch>=2.3'" in printed
    ready = play("guest_check", *strict, "-e", "gpuops_guests=gpu-ready", **login)
    assert changed_hosts(ready) == {"localhost": False} and "Look-inside-1" not in printed + ready


def test_of_a_request_that_means_nothing_no_vm_is_made(play: Play) -> None:
    play("simulated")
    for variables, reason in (
        ({"new_vm_gpus": 1}, "ml-10 is to have one kind of GPU: say new_vm_profile, new_vm_gpus or"),
        ({"new_vm_label": "l40s-ml"}, "new_vm_model and new_vm_label go with new_vm_gpus"),
        ({"new_vm_profile": "a900-80c"}, "no host offers a vGPU profile 'a900-80c'"),
        ({"new_vm_profile": "", "new_vm_gpus": 9}, "1 of 1 without a place"),
    ):
        printed = play("new_ml_vm", "-e", json.dumps(variables), code=2)
        assert reason in printed
        assert changed_hosts(printed) == {"localhost": False}


def test_a_night_and_a_morning(play: Play) -> None:
    def without_night(printed: str) -> list[str]:
        return [re.sub(r'"\d{4}-\d\d-\d\dT\d\d:\d\dZ', '"NIGHT', diff) for diff in diffs(printed)]

    foreseen = play("rotate_night", "--check", "--diff")
    applied = play("rotate_night", "--diff")
    assert without_night(applied) == without_night(foreseen) != []
    assert '"vdi-03": "opted out (attribute gpuops.opt-out)"' in applied
    assert changed_hosts(play("rotate_night")) == {"localhost": False}
    foreseen = play("rotate_day", "--check", "--diff")
    applied = play("rotate_day", "--diff")
    assert without_night(applied) == without_night(foreseen) != []
    assert "Every desktop is back" in applied
    assert changed_hosts(play("rotate_day")) == {"localhost": False}


SCATTERED = """
all:
  vars: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  children:
    gpu_hosts:
      vars: {gpu_scheduler: equal-share, gpuops_reboot: rolling}
      hosts: {%s}
"""


def test_the_scheduler_of_a_host(play: Play) -> None:
    foreseen = play("scheduler_switch", "--check", "--diff")
    applied = play("scheduler_switch", "--diff")
    assert diffs(applied) == diffs(foreseen) != []
    assert changed_hosts(applied) == {"localhost": False, "esx-01.lab": True}
    assert "takes effect after a reboot of esx-01.lab" in applied
    assert set(changed_hosts(play("scheduler_switch")).values()) == {False}


def test_hosts_are_switched_and_rebooted_until_one_fails(ansible: Ansible, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(SCATTERED % "esx-04.scattered: , esx-02.scattered: , esx-03.scattered: ", encoding="utf-8")
    sim = [f"gpuops_sim_dir={tmp_path}/sim", f"gpuops_hostname=sim@{tmp_path}/sim/ready.json"]
    lab = [*sim, "gpuops_sim_scenario=scattered", f"gpuops_state_dir={tmp_path}/state"]
    options = ["-i", inventory, *(word for variable in lab for word in ("-e", variable))]
    try:
        foreseen = ansible("playbook", *options, "playbooks/scheduler_switch.yml", "--check", code=2).stdout
        assert set(changed_hosts(foreseen)) == {"localhost", "esx-04.scattered", "esx-02.scattered", "esx-03.scattered"}
        printed = ansible("playbook", *options, "playbooks/scheduler_switch.yml", code=2).stdout
        assert changed_hosts(printed)["esx-04.scattered"] is True
        assert "esx-02.scattered: desk-10 is suspended on it" in printed
        assert "esx-03.scattered" not in changed_hosts(printed), "those after the one that failed are left as they are"
        closed = (*options, "-e", "gpuops_window='Mon 00:00-00:01 Pacific/Kiritimati'", "--limit", "localhost,*-03*")
        assert "is closed: it opens at" in ansible("playbook", *closed, "playbooks/scheduler_switch.yml", code=2).stdout
    finally:
        ansible("playbook", *options, "playbooks/sim_stop.yml")


FOUND = """
all:
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    gpuops_hostname: sim@%s
    gpuops_state_dir: %s
  children:
    gpu_vms:
      children: {profile_grid_a100_3_20c: {}}
"""


def test_what_the_plugin_finds_is_changed_only_where_an_inventory_says_so(ansible: Ansible, tmp_path: Path) -> None:
    site, ready = tmp_path / "site", tmp_path / "ready.json"
    site.mkdir()
    plugin_config = {"plugin": "gpuops.vsphere.gpus", "hostname": f"sim@{ready}"}
    keyed = [{"prefix": "profile", "key": "gpu_profiles | default([])"}]
    (site / "lab.gpus.yml").write_text(yaml.safe_dump({**plugin_config, "keyed_groups": keyed}), encoding="utf-8")
    (site / "zz-hosts.yml").write_text(FOUND % (ready, tmp_path / "state"), encoding="utf-8")
    with start("lab", clock="stepped") as server:
        sim_client.write(ready, sim_client.of(server))
        printed = ansible("playbook", "-i", site, "playbooks/detach.yml").stdout
    assert changed_hosts(printed) == {"localhost": False, "ml-01": True}, "ml-02 and the desktops keep theirs"


def test_every_playbook_and_the_example_can_be_read(ansible: Ansible) -> None:
    books = sorted(path.relative_to(ROOT) for path in (ROOT / "playbooks").glob("*.yml"))
    ansible("playbook", "-i", "inventories/example/hosts.yml", "--syntax-check", *books)


def test_the_example_site_has_its_password_in_a_vault(ansible: Ansible, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "inventories" / "example", site)
    vault = site / "group_vars" / "all" / "vault.yml"
    shutil.copy(vault.with_suffix(".yml.example"), vault)
    key, book = tmp_path / "key", tmp_path / "book.yml"
    key.write_text("of the vault", encoding="utf-8")
    ansible("vault", "encrypt", "--vault-password-file", key, vault)
    assert vault.read_text(encoding="utf-8").startswith("$ANSIBLE_VAULT;")
    expected = "'the password of gpuops@vsphere.local'"
    task = f"ansible.builtin.assert: {{that: gpuops_password == {expected}, quiet: true}}"
    book.write_text(f"- hosts: localhost\n  gather_facts: false\n  tasks: [{{{task}}}]\n", encoding="utf-8")
    ansible("playbook", "-i", site / "hosts.yml", "--vault-password-file", key, book)
