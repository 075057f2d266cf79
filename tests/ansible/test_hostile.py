"""What vCenter says is never a template, a command or a tag; and a password is in no output, however a task fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from tests.ansible.conftest import ROOT, Ansible
from tests.canary import CANARY, require_hidden

OBEYED: Final = "obeyed"
_LOOKUPS: Final = ("pipe", "file", "env", "url", "template", "vars", "password", "lines", "ini", "unvault")
PAYLOADS: Final = (
    *(f"{{{{ lookup('ansible.builtin.{each}', 'touch {OBEYED}') }}}}" for each in _LOOKUPS),
    *(f"{{{{ query('{each}', 'touch {OBEYED}') }}}}" for each in _LOOKUPS),
    "{{ lookup('pipe','touch X') }}",
    "{{ 6007 * 6011 }}",
    "{{- 6007 * 6011 -}}",
    "{% set x = 6007 * 6011 %}{{ x }}",
    "{%- for x in [6007 * 6011] -%}{{ x }}{%- endfor -%}",
    "{% raw %}{{ 6007 * 6011 }}{% endraw %}{{ 6007 * 6011 }}",
    "{# #}{{ 6007 * 6011 }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch obeyed') }}",
    "{{ hostvars['localhost'] }}",
    "{{ vault_password | default('x') }}",
    "a }}{{ 6007 * 6011 }}",
    "{{ '{{' }} 6007 * 6011 }}",
    "#jinja2: variable_start_string: '[%'\n[% 6007 * 6011 %]",
    "!vault |",
    "!unsafe x",
    "!!python/object/apply:os.system ['touch obeyed']",
    "$(touch obeyed)",
    "`touch obeyed`",
    "; touch obeyed",
    "| touch obeyed",
    "&& touch obeyed",
    "<script>touch</script>",
    "__ansible_unsafe",
    '{"__ansible_vault": "x"}',
    "%(obeyed)s ${obeyed} {0} {obeyed}",
)
COMPUTED: Final = str(6007 * 6011)


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[SimServer]:
    """Every payload is an owner or a role of a VM, and some are names."""
    with SimServer(build("lab"), password=CANARY) as server:
        payloads = cycle(PAYLOADS)
        vms: list[Any] = list(server.world.by_type("VirtualMachine"))
        keys = {key for vm in vms for key in vm.attributes}
        for vm in vms:
            vm.attributes.update({key: next(payloads) for key in keys})
        for vm, payload in zip(vms[:8], PAYLOADS[20:28], strict=True):
            vm.name = payload.replace("/", "%2f")
        assert len(keys) * len(vms) >= len(PAYLOADS) > 40
        sim_client.write(tmp_path / "ready.json", sim_client.of(server))
        yield server


@pytest.mark.long
def test_nothing_that_vcenter_says_is_a_template(ansible: Ansible, tmp_path: Path, hostile: SimServer) -> None:
    inventory, book = tmp_path / "lab.gpus.yml", tmp_path / "book.yml"
    keyed = [{"prefix": "owner", "key": "gpu_attributes['gpuops.owner'] | default('none')"}]
    plugin_config = {"plugin": "gpuops.vsphere.gpus", "hostname": f"sim@{tmp_path}/ready.json", "keyed_groups": keyed}
    inventory.write_text(yaml.safe_dump({**plugin_config, "compose": {"again": "gpu_attributes | default({})"}}))
    tasks: list[dict[str, Any]] = [
        {"name": "Read", "gpuops.vsphere.vm_gpu_info": {"hostname": f"sim@{tmp_path}/ready.json"}, "register": "read"},
        {"name": "Show", "ansible.builtin.debug": {"var": "read"}},
        {"name": "Say", "ansible.builtin.debug": {"msg": "{{ read.vms | map(attribute='name') | list }}"}},
        {"name": "Keep", "ansible.builtin.set_fact": {"kept": "{{ read.vms }}"}},
        {"name": "Again", "ansible.builtin.debug": {"msg": "{{ hostvars | dict2items | string }} {{ kept }}"}},
        {
            "name": "Each",
            "ansible.builtin.debug": {"msg": "{{ item.name }}"},
            "loop": "{{ read.vms }}",
            "loop_control": {"label": "{{ item.name }}"},
        },
    ]
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    playbook_run = ansible(
        "playbook", "-i", inventory, book, "-v", ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), cwd=tmp_path
    )
    assert "{{ 6007 * 6011 }}" in playbook_run.stdout, "the payloads were there"
    assert COMPUTED not in playbook_run.stdout + playbook_run.stderr
    assert not list(tmp_path.rglob(OBEYED))
    assert not (tmp_path / "X").exists()
    require_hidden("ansible-playbook", playbook_run.stdout + playbook_run.stderr)


def failing(folder: Path, server: SimServer) -> list[dict[str, Any]]:
    """Tasks with the password in their arguments, each of which fails in a way of its own."""
    login = {"hostname": f"127.0.0.1:{server.port}", "username": server.username, "password": CANARY}
    right = login | {"ca_file": server.ca_file, "state_dir": f"{folder}/state"}
    attach = {"name": "ml-07", "profile": "a100-3-20c"}
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("done", right | attach, {}),
        ("foreseen", right | attach | {"state": "absent", "all": True}, {"check_mode": True}),
        ("unknown option", right | attach | {"pasword": CANARY}, {}),
        ("wrong type", right | attach | {"count": "many"}, {}),
        ("excluded", right | attach | {"password_file": "/nowhere"}, {}),
        ("missing", login | {"password": CANARY}, {}),
        ("untrusted", login | attach, {}),
        ("refused", right | attach | {"username": "nobody"}, {}),
        ("each", right | {"name": "{{ item }}", "profile": "a100-3-20c"}, {"loop": ["nobody", "ml-70"]}),
        ("crash", right | attach | {"state_dir": "/dev/null/x"}, {}),
    ]
    return [
        {"name": name, "gpuops.vsphere.vm_gpu": options, "ignore_errors": True, **keywords}
        for name, options, keywords in cases
    ]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_failing_task_shows_the_password(ansible: Ansible, tmp_path: Path, hostile: SimServer) -> None:
    book = tmp_path / "book.yml"
    tasks = failing(tmp_path, hostile)
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    for variables in ({}, {"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal"}):
        playbook_run = ansible("playbook", book, "-vvvv", "--diff", **variables)
        printed = (playbook_run.stdout + playbook_run.stderr).replace(json.dumps(str(book)), "")
        assert "Unsupported parameters" in printed
        require_hidden("ansible-playbook -vvvv", printed)
    for path in (tmp_path / "state").rglob("*"):
        require_hidden(str(path), path.read_bytes().decode("latin-1"))
