"""Target: where a vCenter is and how it is logged in to; found by `config`, used by `vsphere`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.model.secret import Secret


@dataclass(frozen=True, slots=True)
class GuestLogin:
    """A user of guests, by whom VMware Tools runs programs there."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Target:
    """One vCenter's SDK endpoint and the login for it. TLS is verified unless `verify` is False."""

    host: str
    username: str
    password: Secret
    port: int = 443
    tls: bool = True
    """False = plain HTTP: a simulated vCenter, never one across a network."""
    path: str = "/sdk"
    ca_files: tuple[str, ...] = ()
    """PEM files of authorities to trust instead of the system's; () = the system's."""
    verify: bool = True
    pin: str | None = None
    """SHA-256 of its certificate, 64 hexadecimal digits in lower case: compared beside verification, not instead."""
    proxy: str | None = None
    """`HOST:PORT` of an HTTP proxy that tunnels to it."""
    guest: GuestLogin | None = None
    """Whose checkpoint hooks are run in ML VMs; None = no program is run in a guest."""

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 address in brackets: what messages call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
