"""The firewall of a host: the rule sets of `defaults.yaml`, and which of them a host has enabled or disabled."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from gpuops.sim.render.defaults import default, default_fields
from gpuops.sim.state.host_state import HostState


@cache
def installed_rulesets() -> dict[str, bool]:
    """Whether each rule set is enabled after the installation, by its key."""
    return {ruleset.key: ruleset.enabled for ruleset in default_fields("HostFirewallInfo")["ruleset"]}


def firewall(host: HostState) -> Any:
    """HostFirewallInfo."""
    rulesets = [copy.copy(ruleset) for ruleset in default_fields("HostFirewallInfo")["ruleset"]]
    for ruleset in rulesets:
        ruleset.enabled = host.rulesets.get(ruleset.key, ruleset.enabled)
    return default("HostFirewallInfo", ruleset=rulesets)
