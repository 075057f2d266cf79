"""The inventory plugin as ansible-inventory runs it: groups by what VMs have, a cache, no word of vCenter obeyed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuops.sim.server import start
from gpuops.sim.wire import sim_client
from tests.ansible.conftest import ROOT, Ansible

pytestmark = pytest.mark.long

SCENARIOS = ROOT / "gpuops" / "sim" / "scenarios"
CONFIGURATION = """
plugin: gpuops.vsphere.gpus
hostname: "{{ lookup('ansible.builtin.env', 'SIMULATED') }}"
policy: %s
strict: true
keyed_groups:
  - {prefix: profile, key: "gpu_profiles | default([])"}
  - {prefix: model, key: gpu_models}
  - {prefix: numa, key: gpu_numa_nodes}
  - {prefix: role, key: gpu_role, default_value: none}
  - {prefix: use, key: gpu_use, default_value: none}
compose:
  owner: (gpu_attributes | default({}))['gpuops.owner'] | default('nobody')
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: %s
"""


def list_inventory(ansible: Ansible, configuration: Path, ready: Path) -> dict[str, Any]:
    listing = ansible("inventory", "-i", configuration, "--list", SIMULATED=f"sim@{ready}")
    assert listing.stderr == ""
    groups: dict[str, Any] = json.loads(listing.stdout)
    return groups


def test_groups_variables_and_the_cache(ansible: Ansible, tmp_path: Path) -> None:
    victim = tmp_path / "obeyed"
    text = (SCENARIOS / "lab.yaml").read_text(encoding="utf-8")
    evil = "{{ lookup('ansible.builtin.pipe', 'touch %s') }}" % victim  # noqa: UP031
    scenario = tmp_path / "evil.yaml"
    scenario.write_text(text.replace("gpuops.owner: research", f'gpuops.owner: "{evil}"'), encoding="utf-8")
    configuration = tmp_path / "lab.gpus.yml"
    policy = SCENARIOS / "lab-policy.yaml"
    configuration.write_text(CONFIGURATION % (policy, tmp_path / "cache"), encoding="utf-8")
    with start(str(scenario), clock="stepped") as server:
        ready = tmp_path / "ready.json"
        sim_client.write(ready, sim_client.of(server))
        groups = list_inventory(ansible, configuration, ready)
        password = server.password
    assert {"ml-01", "vdi-01"} <= set(groups["vms_with_gpus"]["hosts"])
    assert groups["hosts_with_gpus"]["hosts"] == ["esx-01.lab", "esx-02.lab"]
    assert groups["profile_grid_a100_3_20c"]["hosts"] == ["ml-01"]
    assert {"esx-02.lab", "ml-03", "ml-04"} == set(groups["model_L40S"]["hosts"])
    assert groups["role_ml"]["hosts"] == ["ml-01", "ml-06", "ml-09"]
    assert "vdi-01" in groups["use_idle"]["hosts"]
    variables = groups["_meta"]["hostvars"]["ml-01"]
    assert variables["gpu_attributes"]["gpuops.owner"] == variables["owner"] == {"__ansible_unsafe": evil}
    assert not victim.exists(), "nothing of vCenter is a template"
    (cached,) = (tmp_path / "cache").iterdir()
    assert password not in cached.read_text(encoding="utf-8")

    # vCenter is gone, and the inventory still known
    assert list_inventory(ansible, configuration, ready)["role_ml"] == groups["role_ml"]


def test_what_is_wrong_is_said_in_the_words_of_the_file(ansible: Ansible, tmp_path: Path) -> None:
    configuration = tmp_path / "lab.gpus.yml"
    configuration.write_text(
        "plugin: gpuops.vsphere.gpus\nhostname: vc.example.com\nusername: a\npassword: b\nca_file: /no/such.pem\n",
        encoding="utf-8",
    )
    warning = " ".join(ansible("inventory", "-i", configuration, "--list").stderr.split())
    assert re.search(
        r"CA file /no/such\.pem cannot be read: .+?; give a file with PEM certificates: ca_file ", warning
    ), warning
