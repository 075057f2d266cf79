# Copyright: gpuops contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: gpus
short_description: VMs and hosts of a vCenter that have GPUs
version_added: 0.1.0
description:
  - Makes an inventory host of every VM with a GPU device, in the group C(vms_with_gpus), and of every ESXi host with
    GPUs, in the group C(hosts_with_gpus). The groups that gpuops's playbooks change are others, C(gpu_vms) and
    C(gpu_hosts), which an inventory of your own fills.
  - Its configuration is a file whose name ends in C(gpus.yml) or C(gpus.yaml).
  - Names and values that come from vCenter are never taken for templates.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.vsphere.connection
  - ansible.builtin.constructed
  - ansible.builtin.inventory_cache
options:
  plugin:
    description: Names this plugin.
    type: str
    required: true
    choices: [gpuops.vsphere.gpus]
  resources:
    description: What becomes a host of the inventory.
    type: list
    elements: str
    choices: [vms, hosts]
    default: [vms, hosts]
  policy:
    description:
      - File of a rotation policy. With it a VM has its C(gpu_role), and a desktop is idle by the measure of its pool.
    type: path
"""

EXAMPLES = r"""
# site.gpus.yml: groups such as profile_grid_a100_3_20c, model_A100, numa_1, role_desktop, use_idle
plugin: gpuops.vsphere.gpus
hostname: vc.example.com
username: gpuops@vsphere.local
password: "{{ lookup('ansible.builtin.env', 'VCENTER_PASSWORD') }}"
policy: /etc/gpuops/policy.yaml
keyed_groups:
  - {prefix: profile, key: "gpu_profiles | default([])"}
  - {prefix: model, key: gpu_models}
  - {prefix: numa, key: gpu_numa_nodes}
  - {prefix: role, key: gpu_role}
  - {prefix: use, key: gpu_use}
groups:
  training: "'gpuops.role' in (gpu_attributes | default({})) and gpu_attributes['gpuops.role'] == 'ml'"
compose:
  ansible_host: inventory_hostname ~ '.example.com'
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: /var/cache/gpuops
cache_timeout: 600
"""

import json

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.gpuops.vsphere.plugins.module_utils.arguments import CONNECTION


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    NAME = "gpuops.vsphere.gpus"

    def verify_file(self, path):
        return super().verify_file(path) and path.endswith(("gpus.yml", "gpus.yaml"))

    def parse(self, inventory, loader, path, cache=True):
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        self._add_hosts(self._read_or_cached(path, cache))

    def _read_or_cached(self, path, cache):
        """Return the variables of VMs and hosts from the cache, or else read vCenter and fill the cache.

        `cache` is False if the user asks for a fresh read (`--flush-cache`).
        """
        key = self.get_cache_key(path)
        has_cache = self.get_option("cache")
        if has_cache and cache:
            try:
                return self._cache[key]
            except KeyError:
                pass
        machine_variables = self._read_machines()
        if has_cache:
            self._cache[key] = machine_variables
        return machine_variables

    def _read_machines(self):
        """Return `{"vms": {name: variables}, "hosts": {name: variables}}`. Raises AnsibleParserError."""
        try:
            from gpuops.errors import GpuopsError
            from gpuops.tasks.inventory import machines
            from gpuops.tasks.perform import in_words_of
            from gpuops.tasks.task_connection import ConnectionArguments, prepare_process
        except ImportError as error:
            raise AnsibleParserError("the Python package gpuops is not installed where Ansible runs") from error
        prepare_process()
        try:
            connection = ConnectionArguments(**{name: self._option(name) for name in CONNECTION})
            machine_variables, warnings = machines(connection, policy=self._option("policy"))
        except GpuopsError as error:
            # not chained: Ansible would print the cause too
            message = f"{error.message}; {error.hint}" if error.hint else error.message
            raise AnsibleParserError(in_words_of({**CONNECTION, "policy": {}}, message)) from None
        for warning in warnings:
            self.display.warning(warning)
        return json.loads(json.dumps(machine_variables))  # enums become text

    def _option(self, name):
        """Return an option of the file, with a template (for a vault or the environment) evaluated."""
        value = self.get_option(name)
        return self.templar.template(value) if isinstance(value, str) else value

    def _add_hosts(self, machine_variables):
        """Add the VMs and hosts with their variables and groups; names and values are marked as no templates."""
        strict = self.get_option("strict")
        for resource in self.get_option("resources"):
            group = self.inventory.add_group(f"{resource}_with_gpus")
            for name, variables in machine_variables[resource].items():
                host = self.inventory.add_host(wrap_var(name), group)
                facts = wrap_var(variables)
                for key, value in facts.items():
                    self.inventory.set_variable(host, key, value)
                self._set_composite_vars(self.get_option("compose"), facts, host, strict=strict)
                self._add_host_to_composed_groups(self.get_option("groups"), facts, host, strict=strict)
                self._add_host_to_keyed_groups(self.get_option("keyed_groups"), facts, host, strict=strict)
