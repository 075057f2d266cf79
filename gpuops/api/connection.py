"""Makes the site that requests run on: a vCenter, a private simulated one, or a saved inventory.

The command line and the tasks of Ansible call `connect_checked`, programs `connect`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from gpuops.api.broker import kept_open
from gpuops.api.login import choose_reader
from gpuops.clock import wall_clock
from gpuops.errors import GpuopsError
from gpuops.execute.site import WITHOUT_GUESTS, Site
from gpuops.execute.site.broker_gates import BrokerGates
from gpuops.execute.site.broker_reads import BrokerRest, BrokerSessions
from gpuops.execute.site.host_shell import HostsHealth
from gpuops.execute.site.notice_way import NoticeWay
from gpuops.extensions import is_installed, load
from gpuops.model.desktops.evidence import Source
from gpuops.plan.core.versions import why_only_read

if TYPE_CHECKING:
    from gpuops.config.vcenter.broker import BrokerDestination
    from gpuops.config.vcenter.destination import Destination, Simulated
    from gpuops.config.vcenter.targets import GuestEntry
    from gpuops.execute.site.ports import SessionSource, VgpuUseSource
    from gpuops.execute.site.vcenter_wait import VcenterWait
    from gpuops.execute.site.vgpu_use import VgpuShell
    from gpuops.hostshell.guest_ssh import GuestSsh
    from gpuops.hostshell.nvidia_smi import NvidiaSmi
    from gpuops.model.measurements.measurement_settings import HostLogin
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.target import BrokerTarget, GuestLogin, Secret, Target
    from gpuops.sim.server import SimServer


def connect(
    where: Destination | Simulated,
    *,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str], str] | None = None,
    state_dir: Path | None = None,
    vcenter_wait: VcenterWait | None = None,
    warn: Callable[[str], None] | None = None,
    returns: bool | None = False,
) -> Site:
    """Return a logged-in site; closing it logs out. `ask` prompts for the password; None = there is no terminal.

    `vcenter_wait`: how a return waits for a vCenter that does not answer; None = an unreachable vCenter is an error.
    `returns`: what to do if the login to guests cannot be read. True (a return or its preview): call `warn` and
    continue. False: raise the error. None (not known yet whether it is a return): put it into `Site.no_guests`.
    `warn` is also called for a vCenter that is too old to be changed.
    `sim:SCENARIO` starts a private simulated vCenter; it and its journal are removed when the site is closed.
    Raises NotConnected, TargetError, Refused.
    """
    from gpuops.config.vcenter.destination import Simulated
    from gpuops.config.vcenter.login import login
    from gpuops.execute.state.refused_logins import guarded_login
    from gpuops.execute.state.state_dir import default_state_dir
    from gpuops.vsphere.connection import Connection

    journal_url = ""
    with ExitStack() as closing:
        if isinstance(where, Simulated):
            target, broker = _start_simulated(where, closing)
            state_dir = state_dir or Path(closing.enter_context(TemporaryDirectory(prefix="gpuops-state-")))
        else:
            journal_url = _check_journal_url(where.journal_url or "")
            target, broker = login(where, environ, ask), _broker_login_source(where.broker, environ, ask)
        label, guest_entry = (None, None) if isinstance(where, Simulated) else (where.label, where.guest)
        guest_login_errors: list[GpuopsError] = []
        tolerated = None if returns is False else guest_login_errors
        target = replace(target, guest=_guest_login(environ, label, guest_entry, tolerated) or target.guest)
        if returns and warn is not None:
            for error in guest_login_errors:
                warn(f"{error.line}: {WITHOUT_GUESTS}")
        shell = _guest_shell(environ)

        def log_in() -> Connection:
            file = None if isinstance(where, Simulated) else where.password_file
            if file is None:  # refused passwords are recorded only for password files
                return Connection(target, shell)
            logins_dir = state_dir or default_state_dir(environ)
            with guarded_login(logins_dir, target.username, file, target.address, is_return=vcenter_wait is not None):
                return Connection(target, shell)

        connection = vcenter_wait.reach_vcenter(log_in) if vcenter_wait else log_in()
        vcenter = closing.enter_context(connection)
        vcenter.warn = warn or vcenter.warn
        if warn is not None and (reason := why_only_read(vcenter.api_version)):
            warn(reason)
        state_dir = state_dir or default_state_dir(environ)
        choose_reader(vcenter, where.reader, state_dir)
        real = not vcenter.is_simulated
        site = Site(vcenter, state_dir, wall_clock, same_time=real, closing=closing.pop_all(), journal_url=journal_url)
        site.broker, site.measured = broker, where.measurements
        site.policy_files = () if isinstance(where, Simulated) else where.policies
        site.no_guests = guest_login_errors[0] if guest_login_errors and returns is None else None
        _ask_sessions_of(site, where, environ, warn or (lambda line: None))
        site.notices = notice_way(where, environ, state_dir, warn)
        if vcenter_wait is not None:
            site.pause, site.say = vcenter_wait.pause, vcenter_wait.say
        return site


def connect_checked(
    where: Destination | Simulated,
    warn: Callable[[str], None],
    *,
    caller: Sequence[str],
    guarded: bool = False,
    decided: bool = False,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str], str] | None = None,
    state_dir: Path | None = None,
    vcenter_wait: VcenterWait | None = None,
    run: str = "",
    returns: bool | None = False,
) -> Site:
    """Do the same as `connect`, and call `warn` if the certificate of vCenter is not verified.

    The audit log then records the `caller`, the command line. `guarded`: refuse such a connection, because the run is
    unattended, unless `decided`: the configuration of the run itself switches the verification off.
    `run`: the command of a run that changes something, for the notice that is sent if it cannot reach vCenter; "" = no
    notice. Raises NotConnected, TargetError, NotTrusted for a password that would be sent unencrypted, Refused.
    """

    def connect_after_check() -> Site:
        _warn_of_unverified(where, warn, caller, guarded=guarded, decided=decided, environ=environ, state_dir=state_dir)
        return connect(
            where, environ=environ, ask=ask, state_dir=state_dir, vcenter_wait=vcenter_wait, warn=warn, returns=returns
        )

    notices = notice_way(where, environ, state_dir, warn) if run else None
    if notices is None:
        return connect_after_check()
    return cast(Site, load("gpuops.extras.notify.watch.connecting")(notices, run, connect_after_check))


def only_read(site: Site) -> Site:
    """Return the same site; its session refuses every change from now on before it is sent."""
    from gpuops.vsphere.connection import Connection

    if isinstance(site.vcenter, Connection):
        site.vcenter.only_reads = True
    return site


def notice_way(
    where: Destination | Simulated,
    environ: Mapping[str, str],
    state_dir: Path | None,
    say: Callable[[str], None] | None = None,
) -> NoticeWay | None:
    """Return how notices about runs on this vCenter are sent; None if the configuration names no receivers."""
    if where.notify is None:
        return None
    from gpuops.execute.state.state_dir import default_state_dir

    notices = NoticeWay(where.notify, state_dir or default_state_dir(environ), environ)
    return replace(notices, say=say) if say is not None else notices


def _warn_of_unverified(
    where: Destination | Simulated,
    warn: Callable[[str], None],
    caller: Sequence[str],
    *,
    guarded: bool,
    decided: bool,
    environ: Mapping[str, str],
    state_dir: Path | None,
) -> None:
    """Warn of a connection whose certificate is not verified, and record it in the audit log.

    Raises NotTrusted for a connection that is refused: see `connect_checked`.
    """
    from gpuops.config.vcenter.destination import Simulated, doubt
    from gpuops.execute.state.audit_log import log_unverified_certificate
    from gpuops.execute.state.state_dir import default_state_dir

    warning = doubt(where, guarded=guarded, decided=decided)
    if warning is not None and not isinstance(where, Simulated):
        warn(warning)
        at = wall_clock().isoformat(timespec="seconds")
        log_unverified_certificate(where, state_dir or default_state_dir(environ), at, list(caller))


def _guest_login(
    environ: Mapping[str, str], label: str | None, guest_entry: GuestEntry | None, tolerated: list[GpuopsError] | None
) -> GuestLogin | None:
    """Return the login to guests, or None if none is configured.

    If it cannot be read, append the error to `tolerated` and return None; with `tolerated` None raise the error.
    """
    from gpuops.config.vcenter.login import guest_login

    try:
        return guest_login(environ, label, guest_entry)
    except GpuopsError as error:
        if tolerated is None:
            raise
        tolerated.append(error)
        return None


def _guest_shell(environ: Mapping[str, str]) -> GuestSsh:
    """Return the SSH client for guests, for hooks whose policy uses SSH."""
    from gpuops.config.vcenter.login import guest_keys
    from gpuops.hostshell.guest_ssh import GuestSsh

    key, known_hosts = guest_keys(environ)
    return GuestSsh(known_hosts, key)


def _ask_sessions_of(
    site: Site, where: Destination | Simulated, environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Set the sources of sessions, GPU health and vGPU use that the target names, in addition to vCenter.

    Sessions at the broker of a private simulated vCenter count only if the policy lets the broker close gates.
    """
    from gpuops.config.vcenter.destination import Simulated
    from gpuops.vsphere.connection import Connection

    sources: dict[Source, SessionSource] = {}
    if site.broker is not None:
        open_once = lru_cache(maxsize=1)(partial(kept_open, site))  # one login for both; a failed one is made again
        broker_sessions = BrokerSessions(open_once, say, BrokerRest(site.passed_s))
        site.gates = BrokerGates(open_once, broker_sessions)
        if not isinstance(where, Simulated):
            sources[Source.BROKER] = broker_sessions
    if where.idle_command is not None:
        from gpuops.hostshell.idle_command import IdleCommand

        sources[Source.COMMAND] = IdleCommand(where.idle_command, environ, say)
    if isinstance(site.vcenter, Connection) and site.vcenter.target.guest is not None:
        from gpuops.vsphere.guests.guest_sessions import GuestSessions

        sources[Source.SESSIONS] = GuestSessions(site.vcenter, say)
    site.sources = sources
    hosts = site.measured.hosts
    shell = host_shell(hosts) if hosts is not None else None
    site.gpu_health = HostsHealth(shell, say, site.passed_s) if shell is not None else None
    site.vgpu_use = vgpu_use(site, shell, say)


def host_shell(hosts: HostLogin) -> NvidiaSmi:
    """Return a shell that runs nvidia-smi on hosts, over the SSH login in the target's configuration."""
    from gpuops.hostshell.nvidia_smi import NvidiaSmi
    from gpuops.hostshell.ssh import Ssh

    ssh = Ssh(
        hosts.username,
        key=Path(hosts.key) if hosts.key else None,
        port=hosts.port,
        named_by="ssh_known_hosts of its measurements",
        key_named_by="ssh_key of its measurements",
    )
    return NvidiaSmi(replace(ssh, known_hosts=Path(hosts.known_hosts)) if hosts.known_hosts else ssh)


def vgpu_use(site: Site, shell: VgpuShell | None, say: Callable[[str], None]) -> VgpuUseSource | None:
    """Return the source of the use of vGPUs: the hosts if there is an SSH login, else the stored measurements."""
    if shell is not None:
        from gpuops.execute.site.vgpu_use import HostsVgpuUse

        return HostsVgpuUse(shell, say, site.passed_s)
    if not is_installed("observe"):
        return None
    return cast(
        "VgpuUseSource", load("gpuops.extras.observe.stored_vgpu_use.StoredVgpuUse")(*site.measurements_store, say)
    )


def _check_journal_url(journal_url: str) -> str:
    """Return the URL unchanged. Raises UsageError for an invalid URL of a journal, so that no login is made then."""
    if journal_url:
        from gpuops.config.vcenter.journal_url import parsed

        parsed(journal_url)
    return journal_url


def _start_simulated(where: Simulated, closing: ExitStack) -> tuple[Target, Callable[[], BrokerTarget] | None]:
    """Start a private vCenter, and return how to log in to it and a function that starts its connection broker.

    None in place of the function: the scenario has no desktop pools. `closing` stops the vCenter.
    """
    from gpuops.model.vcenter.target import BrokerTarget, Secret, Target
    from gpuops.sim.server import start

    server = closing.enter_context(start(where.scenario, clock=where.clock))
    target = Target(
        host="127.0.0.1",
        port=server.port,
        tls=server.ca_file is not None,
        username=server.username,
        password=Secret(server.password),
        ca_files=(server.ca_file,) if server.ca_file else (),
        guest=_guest_of(server),
    )

    def broker() -> BrokerTarget:
        served = server.serve_horizon()
        return BrokerTarget(replace(target, port=served.port, username=served.username), served.domain)

    return target, broker if server.world.desktop_pools else None


def _guest_of(server: SimServer) -> GuestLogin | None:
    """Return the login of the first guest of a private vCenter; None if its scenario names none."""
    from gpuops.model.vcenter.target import GuestLogin, Secret

    accounts = (vm.state.template.login for vm in server.world.by_type("VirtualMachine"))
    account = next((login for login in accounts if login is not None), None)
    return GuestLogin(account.username, Secret(account.password)) if account is not None else None


def offline(inventory: Inventory) -> Site:
    """Return a site that plans on a saved inventory (`--inventory FILE`), without vCenter, and refuses all changes."""
    from gpuops.execute.site.saved_inventory import SavedVcenter
    from gpuops.execute.state.state_dir import default_state_dir

    return Site(vcenter=SavedVcenter(inventory), state_dir=default_state_dir(), clock=wall_clock)


def passwords_of(site: Site) -> tuple[Secret, ...]:
    """Return gpuops' passwords for this vCenter and its guests: the output of guest programs is shown without them."""
    from gpuops.execute.site.guest_work import KnowsSecrets

    return site.vcenter.secrets if isinstance(site.vcenter, KnowsSecrets) else ()


def _broker_login_source(
    where: BrokerDestination | None, environ: Mapping[str, str], ask: Callable[[str], str] | None
) -> Callable[[], BrokerTarget] | None:
    """Return a function that returns the login to the broker; None if no broker is configured.

    It is called only when the broker is needed, because it may ask for a password.
    """
    if where is None:
        return None

    def find_login() -> BrokerTarget:
        from gpuops.config.vcenter.broker import broker_login

        return broker_login(where, environ, ask)

    return find_login
