"""Compare the fleet with the fleet after hypothetical changes: reads, and calls `gpuops.extras.sizing.what_if`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.catalog import load
from gpuops.execute.rotation.next_night import request_of_night
from gpuops.extras.observe.running_out import recorded_peaks
from gpuops.model.devices.vgpu import without_brand

if TYPE_CHECKING:
    from datetime import datetime, time

    from gpuops.execute.site import Site
    from gpuops.extras.sizing.what_if.question import WhatIf, WhatIfAnswer
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.inventory import Inventory


def compare_fleets(
    request: WhatIf,
    inventory: Inventory,
    site: Site,
    policy: Policy | None = None,
    at: datetime | time | None = None,
) -> WhatIfAnswer:
    """Compare the fleet as it is with the fleet after the changes of the request. Nothing is ever written.

    With a policy the night that would begin at this moment is planned on both. If the request names no VMs to place,
    those of recorded days are placed, if the store of measurements has any. Raises UsageError for a change that names
    something missing, is impossible or changes nothing; HostNotFound, StateDamaged.
    """
    from gpuops.extras.sizing.what_if.question import NightAsked

    tagged_requests = [requested for requested in request.requests if requested.tag]
    compared = site.vcenter.with_tags(inventory) if tagged_requests else inventory
    night = None
    if policy is not None:
        night = NightAsked(*request_of_night(policy, site, at))
        compared = site.read_for_policy(compared, policy)
    else:
        compared = site.with_health(compared)
    hosts = request.config_targets(compared)
    if hosts:
        compared = site.vcenter.with_config_targets(compared, hosts)
    recorded = (
        {} if request.requests or request.arrivals is not None else recorded_peaks(site.measurements_store, compared)
    )
    return request.answer(compared, _catalog(request, compared), night, recorded)


def _catalog(request: WhatIf, inventory: Inventory) -> Catalog:
    """Return the catalogue of the installed and named boards; the complete one if a name is unknown in it."""
    models, profiles = request.named
    # a model may be named as vCenter shows it ("NVIDIA A40"), or by its key in the catalogue (`a40`)
    keys = [model.lower().removeprefix("nvidia ").replace(" ", "-") for model in models]
    carried = {profile for vm in inventory.vms.values() for profile in vm.profiles}
    catalog = load(
        profiles=(*inventory.offered_profiles, *carried),
        pci=(
            (gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
            for host in inventory.hosts.values()
            for gpu in host.devices
        ),
        boards=keys,
    )
    lacking = any(catalog.board(key) is None for key in keys)
    lacking = lacking or any(catalog.profile(f"nvidia_{without_brand(name)}") is None for name in profiles)
    return load(everything=True) if lacking else catalog
