"""`gpuops notify`: tests the receivers of notices, and sends the notices that a receiver has not accepted yet."""

from __future__ import annotations

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions
from gpuops.console.spread import spread

notify = VerbTable("notify", "Test the receivers of notices of nights and changes, and send waiting notices.")


@notify.command()
@spread
def test(common: CommonOptions) -> None:
    """Send a test notice to each receiver of the target, and show which accepted it. Reads no vCenter.

    Exit code 5 if no receiver accepted it, 4 if one did not.

    \b
    Example:
      gpuops notify test --vcenter prod
    """
    from gpuops.console.opening import notice_way_of
    from gpuops.extras.notify.run_watch import send_test as notify_test
    from gpuops.extras.notify.view import NotifyTestDocument, receipts_exit_code, receipts_text

    receipts = notify_test(notice_way_of(common))
    output.show(receipts_text(receipts), NotifyTestDocument.from_attributes(receivers=receipts))
    output.leave(receipts_exit_code(receipts))


@notify.command()
@spread
def flush(common: CommonOptions) -> None:
    """Send the waiting notices of the target, and notices of runs whose process has died. Reads no vCenter.

    Use it in a systemd unit that `OnFailure=` of the units of nights starts: it also reports a unit that failed before
    its run began. Exit codes: see `gpuops notify test`.

    \b
    Example:
      gpuops notify flush --vcenter prod
    """
    from gpuops.console.opening import notice_way_of
    from gpuops.extras.notify.run_watch import flush as notify_flush
    from gpuops.extras.notify.view import NotifyFlushDocument, receipts_exit_code, receipts_text

    receipts = notify_flush(notice_way_of(common))
    output.show(receipts_text(receipts), NotifyFlushDocument.from_attributes(receivers=receipts))
    output.leave(receipts_exit_code(receipts))
