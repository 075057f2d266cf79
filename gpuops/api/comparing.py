"""What a fleet would do after changes that nobody has made: reads, and asks `gpuops.plan.what_if`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.catalog import load
from gpuops.execute.measurements.running_out import recorded_peaks
from gpuops.execute.rotation.next_night import request_of_night
from gpuops.model.devices.profile_name import without_brand

if TYPE_CHECKING:
    from datetime import datetime, time

    from gpuops.execute.site import Site
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.what_if.question import WhatIf, WhatIfAnswer


def what_if(
    request: WhatIf,
    inventory: Inventory,
    site: Site,
    policy: Policy | None = None,
    at: datetime | time | None = None,
) -> WhatIfAnswer:
    """The fleet as it is beside the fleet after the changes of the request. Nothing is ever written.

    With a policy the night that would begin at this moment is planned on both. Requests that the request lacks are
    those of recorded days, where the store of measurements has any. Raises UsageError for what is not there, cannot be
    or changes nothing; HostNotFound, StateDamaged.
    """
    from gpuops.plan.what_if.question import NightAsked

    asked = [each for each in request.requests if each.tag]
    seen = site.vcenter.with_tags(inventory) if asked else inventory
    night = None
    if policy is not None:
        night = NightAsked(*request_of_night(policy, site, at))
        seen = site.read_for_policy(seen, policy)
    else:
        seen = site.with_health(seen)
    hosts = request.config_targets(seen)
    if hosts:
        seen = site.vcenter.with_config_targets(seen, hosts)
    recorded = {} if request.requests or request.arrivals is not None else recorded_peaks(site.measurements_store, seen)
    return request.answer(seen, _catalog(request, seen), night, recorded)


def _catalog(request: WhatIf, inventory: Inventory) -> Catalog:
    """The catalogue of the boards that are there or named; all of it where a name is not a board's or a profile's."""
    models, profiles = request.named
    keys = [model.lower().removeprefix("nvidia ").replace(" ", "-") for model in models]
    carried = {profile for vm in inventory.vms.values() for profile in vm.profiles}
    known = load(
        profiles=(*inventory.offered_profiles, *carried),
        pci=(
            (gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
            for host in inventory.hosts.values()
            for gpu in host.devices
        ),
        boards=keys,
    )
    lacking = any(known.board(key) is None for key in keys)
    lacking = lacking or any(known.profile(f"nvidia_{without_brand(name)}") is None for name in profiles)
    return load(everything=True) if lacking else known
