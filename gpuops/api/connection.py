"""Makes the site that requests run on: a vCenter, a private simulated one, or a saved inventory. Tests a login.

The command line and the tasks of Ansible call `connect_checked`, programs `connect`. The test of a login reports the
user and the vCenter, the privileges that it lacks, and whether VI/JSON may be used there.

`readers.json` in the state directory remembers for which vCenters VI/JSON and SOAP gave equal snapshots. An entry holds
for one vCenter (address and instance uuid) in one version and build; after an upgrade the readers must be compared
again. A file that is missing, damaged or writable by others is ignored. It is no record of the book: every command
reads it when it connects, most of them without opening a journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

from gpuops.api.first_contact import broker_identity, open_broker_until_close
from gpuops.clock import wall_clock
from gpuops.errors import GpuopsError, Refused, StateDamaged, TargetError
from gpuops.execute.site import WITHOUT_GUESTS, Site
from gpuops.execute.site.host_shell import HostsHealth
from gpuops.execute.site.policy_reads import BrokerGates, BrokerRest, BrokerSessions
from gpuops.execute.site.site import NoticeWay
from gpuops.execute.state.state_dir import prepare_state_dir, refuse_writable
from gpuops.extensions import is_installed, load
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.desktops.evidence import Source
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.login import LoginTest, ObjectKind
from gpuops.plan.core.versions import why_only_read

if TYPE_CHECKING:
    from gpuops.config.vcenter.broker_entry import BrokerDestination
    from gpuops.config.vcenter.destination import Destination, Simulated
    from gpuops.config.vcenter.targets import GuestEntry
    from gpuops.execute.site.host_shell import VgpuShell
    from gpuops.execute.site.ports import SessionSource, VgpuUseSource
    from gpuops.execute.site.vcenter_wait import VcenterWait
    from gpuops.hostshell.guest_ssh import GuestSsh
    from gpuops.hostshell.nvidia_smi import NvidiaSmi
    from gpuops.model.desktops.broker import BrokerIdentity
    from gpuops.model.measurements.measurement_settings import HostLogin
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.target import BrokerTarget, GuestLogin, Secret, Target
    from gpuops.sim.server import SimServer
    from gpuops.vsphere.connection import Connection

_READERS_FILE: Final = "readers.json"
_SCHEMA: Final = 1


def readers_known_equal(state_dir: Path, address: str, vcenter: Mapping[str, str]) -> bool:
    """Return whether the readers gave equal snapshots of this vCenter. `vcenter`: its `identity`."""
    return bool(vcenter.get("uuid")) and _read_compared(state_dir / _READERS_FILE).get(address) == dict(vcenter)


def remember_comparison(state_dir: Path, address: str, vcenter: Mapping[str, str], *, equal: bool) -> None:
    """Save that both readers gave equal snapshots for this vCenter or, if they did not, remove its entry.

    Raises StateDamaged, and UsageError for a directory that cannot be used.
    """
    path = state_dir / _READERS_FILE
    stored_vcenters = _read_compared(path)
    new_vcenters = {name: stored_vcenter for name, stored_vcenter in stored_vcenters.items() if name != address}
    if equal:
        new_vcenters[address] = dict(vcenter)
    if new_vcenters == stored_vcenters:
        return
    prepare_state_dir(state_dir)
    write_private(path, json.dumps({"schema_version": _SCHEMA, "equal": new_vcenters}, indent=2) + "\n")


def identity(about: Mapping[str, str | None], api_version: str) -> dict[str, str]:
    """Return the identity of a vCenter and its version, from AboutInfo."""
    about_keys = {"uuid": "instanceUuid", "version": "version", "build": "build"}
    return {"api_version": api_version, **{name: about.get(key) or "" for name, key in about_keys.items()}}


def _read_compared(path: Path) -> dict[str, Any]:
    """Return the identities of the vCenters with equal readers, by address; empty if the file cannot be used."""
    try:
        document = parse_json(read_bytes(path, error=StateDamaged, check=refuse_writable))
        if document["schema_version"] != _SCHEMA or not isinstance(document["equal"], dict):
            return {}
        return dict(document["equal"])
    except (*NOT_PARSED, AttributeError, StateDamaged):
        return {}


def login_test(site: Site) -> LoginTest:
    """Return who is logged in to which vCenter, which privileges are missing, and whether both readers agree.

    Reads the inventory over SOAP and, if vCenter offers it, over VI/JSON, and stores in the state directory whether the
    snapshots are equal: if so, `--reader auto` uses VI/JSON. Checks the privileges on a limited number of VMs. Also
    logs in to the connection broker if one is configured. Raises NotConnected, StateDamaged.
    """
    from gpuops.plan.doctor.login_privileges import compare_with_commands, objects_to_ask, privileges_to_ask
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.reading.comparison import compare

    vcenter = site.vcenter
    assert isinstance(vcenter, Connection), "a saved inventory has no login"
    target = vcenter.target
    offered = vcenter.offers_vi_json

    snapshot, differences, failure = compare(vcenter) if offered else (vcenter.inventory(), (), "")
    objects = objects_to_ask(snapshot)
    privileges = vcenter.held_on(objects, privileges_to_ask())
    test = LoginTest(
        target.address,
        target.username,
        vcenter.about.get("fullName") or "",
        vcenter.uuid,
        vcenter.api_version,
        offered,
        len(snapshot.hosts),
        len(snapshot.vms),
        differences,
        failure,
        compare_with_commands(privileges, snapshot) if privileges else (),
        # the VMs and templates whose privileges vCenter reported
        asked_vms=sum(ref in privileges for kind in (ObjectKind.VM, ObjectKind.TEMPLATE) for ref in objects[kind]),
        broker=_broker_or_warning(site, vcenter),
    )
    vcenter_identity = identity(vcenter.about, vcenter.api_version)
    remember_comparison(site.state_dir, target.address, vcenter_identity, equal=test.equal)
    return test


def _broker_or_warning(site: Site, vcenter: Connection) -> BrokerIdentity | None:
    """Return the broker's identity; None if no broker is configured.

    If the extra for brokers is not installed: None and a warning for a simulated vCenter, TargetError for a configured
    broker. Raises NotConnected.
    """
    try:
        return broker_identity(site)
    except TargetError as error:
        if not (vcenter.is_simulated and isinstance(error.__cause__, ImportError)):
            raise
        vcenter.warn(f"gpuops does not log in to the simulated broker: {error.message}; {error.hint}")
        return None


def choose_reader(vcenter: Connection, reader: BulkReader, state_dir: Path) -> None:
    """Switch a new connection to VI/JSON if `reader` selects it. Raises Refused if it is not offered.

    AUTO selects VI/JSON if `login test` found both readers to be equal on this version of vCenter.
    """
    if reader is BulkReader.SOAP or (reader is BulkReader.AUTO and not vcenter.offers_vi_json):
        return
    if not vcenter.offers_vi_json:
        raise Refused(
            f"{vcenter.target.address} does not offer VI/JSON: its API version is {vcenter.api_version}, and VI/JSON "
            "needs 8.0.1.0 or later",
            hint="use --reader auto, which reads this vCenter over SOAP",
        )
    address, vcenter_identity = vcenter.target.address, identity(vcenter.about, vcenter.api_version)
    if reader is BulkReader.JSON or readers_known_equal(state_dir, address, vcenter_identity):
        vcenter.read_over_vi_json(alone=reader is BulkReader.JSON)


def connect(
    where: Destination | Simulated,
    *,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str], str] | None = None,
    state_dir: Path | None = None,
    vcenter_wait: VcenterWait | None = None,
    warn: Callable[[str], None] | None = None,
    is_return: bool | None = False,
) -> Site:
    """Return a logged-in site; closing it logs out. `ask` prompts for the password; None = there is no terminal.

    `vcenter_wait`: how a return waits for a vCenter that does not answer; None = an unreachable vCenter is an error.
    `is_return` decides what to do if the login to guests cannot be read. True (a return or its preview): call `warn`
    and continue. False: raise the error. None (not known yet whether it is a return): put it into `Site.no_guests`.
    `warn` is also called for a vCenter that is too old to be changed.
    `sim:SCENARIO` starts a private simulated vCenter; it and its journal are removed when the site is closed.
    Raises NotConnected, TargetError, Refused.
    """
    from gpuops.config.vcenter.destination import Simulated
    from gpuops.config.vcenter.login_settings import login
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
        tolerated = None if is_return is False else guest_login_errors
        target = replace(target, guest=_guest_login(environ, label, guest_entry, tolerated) or target.guest)
        if is_return and warn is not None:
            for error in guest_login_errors:
                warn(f"{error.line}: {WITHOUT_GUESTS}")
        shell = _guest_shell(environ)

        def log_in() -> Connection:
            password_file = None if isinstance(where, Simulated) else where.password_file
            if password_file is None:  # refused passwords are recorded only for password files
                return Connection(target, shell)
            directory, waits = state_dir or default_state_dir(environ), vcenter_wait is not None
            with guarded_login(directory, target.username, password_file, target.address, is_return=waits):
                return Connection(target, shell)

        connection = vcenter_wait.reach_vcenter(log_in) if vcenter_wait else log_in()
        vcenter = closing.enter_context(connection)
        vcenter.warn = warn or vcenter.warn
        if warn is not None and (reason := why_only_read(vcenter.api_version)):
            warn(reason)
        state_dir = state_dir or default_state_dir(environ)
        choose_reader(vcenter, where.reader, state_dir)
        # a simulated vCenter has a clock of its own
        same_time = not vcenter.is_simulated
        site = Site(
            vcenter, state_dir, wall_clock, same_time=same_time, closing=closing.pop_all(), journal_url=journal_url
        )
        site.broker, site.measured = broker, where.measurements
        site.policy_files = () if isinstance(where, Simulated) else where.policies
        site.no_guests = guest_login_errors[0] if guest_login_errors and is_return is None else None
        _set_sources(site, where, environ, warn or (lambda line: None))
        site.notices = notice_way(where, environ, state_dir, warn)
        if vcenter_wait is not None:
            site.pause, site.say = vcenter_wait.pause, vcenter_wait.say
        return site


def connect_checked(
    where: Destination | Simulated,
    warn: Callable[[str], None],
    *,
    caller: Sequence[str],
    require_verified: bool = False,
    unverified_accepted: bool = False,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str], str] | None = None,
    state_dir: Path | None = None,
    vcenter_wait: VcenterWait | None = None,
    run: str = "",
    is_return: bool | None = False,
) -> Site:
    """Do the same as `connect`, and call `warn` if the certificate of vCenter is not verified.

    The audit log then records the `caller`, the first words of the command line. `require_verified`: refuse such a
    connection, because the run is unattended. `unverified_accepted`: allow it nevertheless, because an admin at the
    terminal or the task itself chose it. `run`: the command of a run that changes something, for the notice that is
    sent if it cannot reach vCenter; "" = no notice. Raises NotConnected, TargetError, NotTrusted for a password that
    would be sent unencrypted, Refused.
    """

    def connect_after_check() -> Site:
        _warn_of_unverified(
            where,
            warn,
            caller,
            require_verified=require_verified,
            unverified_accepted=unverified_accepted,
            environ=environ,
            state_dir=state_dir,
        )
        return connect(
            where,
            environ=environ,
            ask=ask,
            state_dir=state_dir,
            vcenter_wait=vcenter_wait,
            warn=warn,
            is_return=is_return,
        )

    notices = notice_way(where, environ, state_dir, warn) if run else None
    if notices is None:
        return connect_after_check()
    return cast(Site, load("gpuops.extras.notify.run_watch.connect_watched")(notices, run, connect_after_check))


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
    require_verified: bool,
    unverified_accepted: bool,
    environ: Mapping[str, str],
    state_dir: Path | None,
) -> None:
    """Warn of a connection whose certificate is not verified, and record it in the audit log.

    Raises NotTrusted for a connection that is refused: see `connect_checked`.
    """
    from gpuops.config.vcenter.destination import Simulated, certificate_warning
    from gpuops.execute.state.state_dir import default_state_dir, log_unverified_certificate

    warning = certificate_warning(where, guarded=require_verified, decided=unverified_accepted)
    if warning is not None and not isinstance(where, Simulated):
        warn(warning)
        moment = wall_clock().isoformat(timespec="seconds")
        log_unverified_certificate(where, state_dir or default_state_dir(environ), moment, list(caller))


def _guest_login(
    environ: Mapping[str, str], label: str | None, guest_entry: GuestEntry | None, tolerated: list[GpuopsError] | None
) -> GuestLogin | None:
    """Return the login to guests, or None if none is configured.

    If it cannot be read, append the error to `tolerated` and return None; with `tolerated` None raise the error.
    """
    from gpuops.config.vcenter.login_settings import guest_login

    try:
        return guest_login(environ, label, guest_entry)
    except GpuopsError as error:
        if tolerated is None:
            raise
        tolerated.append(error)
        return None


def _guest_shell(environ: Mapping[str, str]) -> GuestSsh:
    """Return the SSH client for guests, for hooks whose policy uses SSH."""
    from gpuops.config.vcenter.login_settings import guest_keys
    from gpuops.hostshell.guest_ssh import GuestSsh

    key, known_hosts = guest_keys(environ)
    return GuestSsh(known_hosts, key)


def _set_sources(
    site: Site, where: Destination | Simulated, environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Set the sources of sessions, GPU health and vGPU use that the target names, in addition to vCenter.

    Sessions at the broker of a private simulated vCenter count only if the policy lets the broker close gates.
    """
    from gpuops.config.vcenter.destination import Simulated
    from gpuops.vsphere.connection import Connection

    sources: dict[Source, SessionSource] = {}
    if site.broker is not None:
        # one login serves both; after a failed login, which raises, the next call logs in again
        open_once = lru_cache(maxsize=1)(partial(open_broker_until_close, site))
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
        from gpuops.execute.site.host_shell import HostsVgpuUse

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
        guest=_first_guest_login(server),
    )

    def start_broker() -> BrokerTarget:
        horizon = server.serve_horizon()
        return BrokerTarget(replace(target, port=horizon.port, username=horizon.username), horizon.domain)

    return target, start_broker if server.world.desktop_pools else None


def _first_guest_login(server: SimServer) -> GuestLogin | None:
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
    """Return gpuops' passwords for this vCenter and its guests, so that they can be removed from guests' output."""
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
        from gpuops.config.vcenter.broker_entry import broker_login

        return broker_login(where, environ, ask)

    return find_login
