"""Show the ML queue of a policy for `gpuops queue`: as its next night, or its watch now, would start it."""

from __future__ import annotations

from datetime import datetime, time

from gpuops.errors import UsageError
from gpuops.execute.rotation.next_night import preview
from gpuops.execute.rotation.watch import planned_once
from gpuops.execute.runs.nights import remembered_policy
from gpuops.execute.site import Site, catalog_of
from gpuops.model.nights.rotation import Policy
from gpuops.plan.rotation.ml_queue.queue_look import QueueLook, look_at_queue


def queue_look(policy: Policy | None, site: Site, at: datetime | time | None = None) -> QueueLook:
    """Return the queue at this moment if vCenter's state stayed as it is now. Writes nothing.

    `policy` None = the policy of the last night in the journal. `at` as for `preview`; under `mode: spare-capacity` the
    queue is always that of now, and a moment is refused (UsageError).
    """
    if policy is None:
        with site.journal_to_read(site.vcenter.uuid) as journal:
            policy = remembered_policy(journal)
    if policy.spare is not None:
        if at is not None:
            raise UsageError("--at: a watch looks at its queue now, and plans no night", hint="leave out --at")
        request, inventory, moment = planned_once(policy, site)
        catalog = catalog_of(inventory)
        night_plan = request.night_plan(request.may_take(inventory, catalog, moment), inventory, catalog, moment)
        return look_at_queue(night_plan, inventory, catalog, moment)
    night_preview = preview(policy, site, at)
    starts_at = {expected.start.vm.ref: expected.run.begins for expected in night_preview.expected_runs}
    return look_at_queue(
        night_preview.night_plan,
        night_preview.inventory,
        catalog_of(night_preview.inventory),
        night_preview.at,
        starts_at,
    )
