"""The table of all options, `gpuops help options`: a name means the same in every command."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

SHARED: Final = {
    "--address": "The address of the vCenter: vc.example.com.",
    "--all": "All of them, where otherwise some are meant or shown.",
    "--at": "The moment at which a night begins: 22:00, or 2026-11-23T22:00Z.",
    "--cluster": "Only hosts of this vSphere cluster.",
    "--count": "How many vGPUs one VM has afterwards.",
    "--device": "A whole GPU or other PCI device, by its address.",
    "--device-group": "A vendor device group.",
    "--device-type": "A type of device for Dynamic DirectPath I/O.",
    "--dry-run": "Show what would be done; change nothing.",
    "--dynamic": "Devices by Dynamic DirectPath I/O.",
    "--every": "How old what is shown may be.",
    "--file": "The file with what is asked for: requests, jobs, a cluster, a pool, layouts, roles.",
    "--follow": "Look again and again, until it has ended or Ctrl-C.",
    "--force": "Do it although something speaks against it.",
    "--gpu": "GPUs by their PCI address.",
    "--gpus": "How many GPUs.",
    "--health": "Answer GET /healthz at this port.",
    "--host": "Only hosts of this name; a pattern (esx-0*) where several can be meant.",
    "--inventory": "Use a saved inventory instead of a vCenter.",
    "--label": "The hardware label of devices.",
    "--limit": "Show at most so many rows.",
    "--listen": "Answer HTTP at this port.",
    "--memory": "The memory of a VM.",
    "--mig-layout": "GPUs as if they had the GPU instances of a layout.",
    "--model": "A GPU model.",
    "--numa": "How much CPU, memory and GPU must share a NUMA node.",
    "--once": "Look once, and end.",
    "--output": "The format of the result.",
    "--overlap": "The share of their work that VMs do at one time.",
    "--password-file": "The file with the password.",
    "--pin": "Whether a vGPU is bound to one GPU.",
    "--policy": "The rotation policy.",
    "--pool": "VMs of this pool of the policy.",
    "--profile": "A vGPU profile.",
    "--ready-file": "The file in which `sim serve` says where it listens.",
    "--running-vms": "What is done to VMs on a host that is rebooted.",
    "--save": "Write the result to this file.",
    "--scenario": "A simulated vCenter.",
    "--since": "From then on: 7d, 2w or a date.",
    "--ssh-port": "The port of SSH.",
    "--ssh-user": "The user who logs in by SSH.",
    "--strict": "Exit code 3 if anything is not as it should be.",
    "--tag": "Objects with this vCenter tag.",
    "--timeout": "End it after so long.",
    "--undo": "Undo what the same command did before.",
    "--username": "The account for the vCenter.",
    "--vcpu": "How many vCPUs a VM has.",
    "--vgpu-mode": "Which sizes of vGPUs share a GPU.",
    "--vm": "VMs by name, path, moid: or uuid:; a pattern (ml-*) where several can be meant.",
    "--window": "When hosts may be rebooted.",
    "--yes": "Do not ask first.",
}
"""What an option means whose help text differs between commands."""
_FEW: Final = 3


def option_table(root: Any) -> str:
    """Return a page of the manual with a row for each option of the commands below the root."""
    commands: defaultdict[str, list[str]] = defaultdict(list)
    meanings = dict(SHARED)
    for command, name, option in options_of(root):
        commands[name].append(command)
        meanings.setdefault(name, option.help)
    rows = [f"| `{name}` | {meanings[name]} | {_listed(commands[name])} |" for name in sorted(commands)]
    head = ("# All options, and what each means", "", "| Option | Meaning | Commands |", "|---|---|---|")
    return "\n".join((*head, *rows)) + "\n"


def options_of(command: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield each long option of each command below this one: the command, the name of the option, the option."""
    subcommands = getattr(command, "commands", {})
    if path and (not subcommands or getattr(command, "invoke_without_command", False)):
        for option in command.params:
            yield from ((path, name, option) for name in option.opts if name.startswith("--"))
    for name in subcommands:
        yield from options_of(subcommands[name], f"{path} {name}".strip())


def _listed(commands: list[str]) -> str:
    return ", ".join(commands) if len(commands) <= _FEW else f"{len(commands)} commands"
