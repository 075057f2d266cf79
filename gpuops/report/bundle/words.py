"""Every word that a bundle may hold beside numbers and pseudonyms: its keys, words of the vSphere API, and sentences of
ours. A key or a word that is not here cannot get into one (`harmless`)."""

from __future__ import annotations

from typing import Final

from gpuops.catalog.assumptions import assumptions
from gpuops.model.assumption import Standing
from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, VgpuMode
from gpuops.model.devices.other_device import DeviceKind
from gpuops.model.nights.history import PastOutcome
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.host import RuleKind
from gpuops.model.vcenter.login import BulkReader
from gpuops.model.vcenter.vm import Firmware, VmDrs
from gpuops.plan.doctor.assumptions import SENTENCES as EVIDENCE

SETTINGS: Final = (
    "pciPassthru.use64bitMMIO",
    "pciPassthru.64bitMMIOSizeGB",
    "numa.nodeAffinity",
    "numa.autosize.once",
    "numa.vcpu.maxPerVirtualNode",
    "numa.vcpu.preferHT",
    "sched.cpu.affinity",
    "sched.mem.pin",
)
"""Keys of extraConfig that plans go by."""
STEPS: Final = (
    "suspend", "resume", "start", "power-off", "shutdown", "change", "move", "checkpoint hook", "override of DRS",
    "marker", "gate", "opening of the gate", "maintenance mode", "end of maintenance mode", "reboot", "setting",
)  # fmt: skip
"""What steps are called in a history."""
COMMANDS: Final = frozenset(
    (
        "attach", "detach", "place", "power", "clone", "defrag", "change", "scheduler set", "mode set", "mig set",
        "mig set on", "mig set off", "passthrough on", "passthrough off", "rotate night", "rotate day",
        "rotate restore", "rotate watch", "rotate init", "rotate mark", "passthrough", "scheduler", "mode", "mig",
    )
)  # fmt: skip
"""Kinds of runs, and what begins a change."""
MACHINE_STATES: Final = (
    "AVAILABLE", "CONNECTED", "DISCONNECTED", "MAINTENANCE", "PROVISIONED", "PROVISIONING", "CUSTOMIZING", "DELETING",
    "AGENT_UNREACHABLE", "WAIT_FOR_AGENT", "ERROR", "UNKNOWN",
)  # fmt: skip
"""Of a machine of Horizon; any other one is hidden."""
SENTENCES: Final = frozenset(
    (
        "read from a vCenter, by gpuops bundle",
        "VMs of no known host, left out",
        "VMs whose size could not be read: 1 vCPU, 1 GiB",
        "VMs whose power state could not be read: off",
        "VMs with the marker of a night, which is left out",
        "running VMs with vGPUs on GPUs that were not told: where the simulator puts them",
        "devices of VMs that the catalogue or their host does not know",
        "vSphere API of another version than the simulator's: the nearest one",
        "datastores that are not accessible: full",
        "advanced options of DRS that no plan goes by, left out",
        "clusters whose DRS rules could not be read: none",
        "hosts that this login may not read whole",
        "vGPU profiles that hosts offer and the catalogue lacks, left out",
        "GPUs and other devices that the catalogue lacks, left out",
        "hosts whose size could not be read: one core, no memory",
        "reservations on hosts of no cluster, left out",
        "reservations of vGPU profiles that the catalogue lacks, left out",
        "reservations of device groups, or that vCenter did not tell, left out",
        "memory of devices that are no NVIDIA GPU, left out",
        "VM Network",
        "Other (64-bit)",
        "not set",
        *EVIDENCE,
    )
)
"""What a bundle says in whole sentences."""
WORDS: Final = frozenset(
    (
        "", "on", "off", "suspended", "set", "option", "environment", "file", "default", "yes", "no", "true", "false",
        "TRUE", "FALSE", "1", "0", "question", "unknown", "guest", "guest-without-tools", "otherGuest64",
        "VirtualMachine", "desktop", "ml", "connected", "disconnected", "failed", "outcome unknown", "cut off",
        "given up", "admitted", "refused", "gpuops-bundle", "scenario.json", "versions.json",
        "configuration.json", "runs.json",
        # facts of a first contact
        "first-contact.json", "key", "found", "expected", "seconds", "mib", "reserved", "running", "event", "source",
        "copies", "all", "power", "poweredOff", "poweredOn", "instance", "configured", "mode", "vm", "host", "cluster",
        "gpu", "fault", "counter", "gpu.utilization.average", "gpu.mem.used.average", *MACHINE_STATES,
        *STEPS, *COMMANDS, *SETTINGS, *assumptions(), *Standing,
        *(each.value for kind in (AssignmentPolicy, GraphicsType, VgpuMode, PastOutcome, RuleKind, BulkReader, Role,
                                  Firmware, VmDrs, DeviceKind) for each in kind),
    )
)  # fmt: skip
"""Values."""
TOLD: Final = frozenset(
    (
        "NUMA", "node", "GPU", "GPUs", "VMs", "vGPU", "what", "runs", "there", "is", "unknown", "mode", "of", "free",
        "s", "at", "the", "most", "pin", "assignment", "policy", "profiles", "none", "empty", "NVIDIA", "start",
        "starts", "from", "on",
        *(each.value for kind in (AssignmentPolicy, GraphicsType, VgpuMode) for each in kind),
    )
)  # fmt: skip
"""Words of sentences about GPUs."""
KEYS: Final = frozenset(
    (
        # scenario.json
        "description", "start", "options", "vgpu.hotmigrate.enabled", "datacenter", "models", "guests", "datastores",
        "networks", "clusters", "vms", "api_version", "direct_path_profiles", "reservations", "vendor", "model", "cpu",
        "sockets", "cores_per_socket", "threads_per_core", "cpu_mhz", "memory_gib", "memory_mib", "numa_nodes", "nodes",
        "id", "logical_cpus", "name", "moid", "capacity_gib", "free_gib", "free_mib", "drs", "drs_options", "hosts",
        "as_read", "ha", "failover_level", "memory_percent", "cpu_percent", "failover_hosts", "overrides", "rules",
        "kind", "on", "off", "mandatory", "standalone", "group", "driver", "policy", "no_suspend", "gpus", "board",
        "at", "node", "mode", "type", "next_type", "passthrough", "next_passthrough", "label", "nvlink", "connection",
        "in_maintenance", "booted", "default_graphics_type", "vgpu", "units", "folder", "guest", "guest-without-tools",
        "tools", "cpus", "disk_gib", "firmware", "hardware_version", "devices", "direct_path", "dynamic", "allowed",
        "other", "extra_config", "power", "cpu_usage_mhz", "console_connections", "attributes", "template", "snapshot",
        "question", "text", "choices", "0", "1", "managed_by", "extension", "datastore", "starts", "held",
        "cores_per_numa_node", "memory_reservation_mib", "cpu_reservation_mhz", "memory_locked", "cpu_hot_add",
        "nested_virtualization", "device_keys",
        "suspended", "PassthroughDrsAutomation", "LBMaxVmotionPerHost", "VmDevicesStunTimeTolerated",
        "VgpuMMAutomationTimeoutSecs", "VgpuVmConsolidation", "CompatMaskForVMEvac", *SETTINGS,
        "others", "vendor_name", "device", "class_code", "class_name", "profile",
        "gpuops.opt-out", "gpuops.role", "gpuops.owner", "gpuops.return",
        # versions.json
        "gpuops", "python", "pyvmomi", "vcenter", "vcenter_build", "hosts_with_gpus", "esxi", "packages",
        "package_version",
        # configuration.json
        "value", "from", "host", "port", "username", "password", "ca_file", "verify", "thumbprint", "proxy",
        "journal_url", "reader", "broker.url", "broker.username", "broker.password", "broker.ca_file",
        "broker.thumbprint", "measurements.store", "measurements.counters", "measurements.fine_days",
        "measurements.hourly_days", "measurements.host_shell",
        # runs.json
        "nights", "changes", "left_off", "night", "begins", "ends", "back_by", "outcome", "by_markers", "runs",
        "incidents", "verb", "run", "subjects", "cut_off", "vm", "role", "profiles", "taken", "back", "given_up",
        "steps", "step", "done", "about", "became", "reason",
        "facts", "fact",
        # first-contact.json
        "assumptions", "standing", "evidence", "tasks", "ran_s", "fault", "names_vgpu", "created_vm", "by_user",
        "events", "counters", "instances", "machines", "state", "managed", "unread",
        # manifest.json
        "schema_version", "site", "written", "files", "bytes", "approximated",
    )
)  # fmt: skip
"""Keys of its documents."""
