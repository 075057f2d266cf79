"""The parts of `HostSystem.config` that all hosts have alike after installation: services, time, power; and the
firewall."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from pyVmomi import vim

from gpuops.sim.render.required_fields import filled
from gpuops.sim.state.host_state import HostState

SERVICES: Final = (
    ("DCUI", "Direct Console UI", True, "on"),
    ("TSM", "ESXi Shell", False, "off"),
    ("TSM-SSH", "SSH", False, "off"),
    ("lbtd", "Load-Based Teaming Daemon", True, "on"),
    ("ntpd", "NTP Daemon", False, "off"),
    ("sfcbd-watchdog", "CIM Server", False, "on"),
    ("snmpd", "SNMP Server", False, "on"),
    ("vmsyslogd", "Syslog Server", True, "on"),
    ("vpxa", "VMware vCenter Agent", True, "on"),
)
"""Key, label, whether it runs, and the policy: services of ESXi with their settings after installation."""
RULESETS: Final = (
    ("sshServer", "SSH Server", 22, "inbound", "tcp", True),
    ("dns", "DNS Client", 53, "outbound", "udp", True),
    ("ntpClient", "NTP Client", 123, "outbound", "udp", False),
    ("snmp", "SNMP Server", 161, "inbound", "udp", True),
    ("vSphereClient", "vSphere Web Client", 443, "inbound", "tcp", True),
    ("vpxHeartbeats", "VMware vCenter Agent", 902, "outbound", "udp", True),
    ("vMotion", "vMotion", 8000, "inbound", "tcp", True),
    ("pvrdma", "pvrdma", 28250, "inbound", "tcp", False),
)
"""Key, label, port, direction, protocol and whether it is enabled after the installation (VMware Ports and Protocols,
ESXi; that of pvrdma from memory)."""
POWER_POLICIES: Final = ("static", "dynamic", "low", "custom")
BALANCED: Final = 1
"""The policy of a new host, by its place in POWER_POLICIES (VMware, Host Power Management)."""


@cache
def settings() -> dict[str, Any]:
    """Field of HostConfigInfo -> value; nobody changes these."""
    policies = [
        vim.host.PowerSystem.PowerPolicy(
            key=number,
            name=f"PowerPolicy.{name}.name",
            shortName=name,
            description=f"PowerPolicy.{name}.description",
        )
        for number, name in enumerate(POWER_POLICIES, start=1)
    ]
    return {
        "service": vim.host.ServiceInfo(service=[_service(*each) for each in SERVICES]),
        "dateTimeInfo": vim.host.DateTimeInfo(
            timeZone=vim.host.DateTimeSystem.TimeZone(key="UTC", name="UTC", description="UTC", gmtOffset=0),
            systemClockProtocol="ntp",
            ntpConfig=vim.host.NtpConfig(server=[]),
            enabled=False,
        ),
        "autoStart": vim.host.AutoStartManager.Config(
            defaults=vim.host.AutoStartManager.SystemDefaults(
                enabled=False, startDelay=120, stopDelay=120, waitForHeartbeat=False, stopAction="PowerOff"
            )
        ),
        "authenticationManagerInfo": vim.host.AuthenticationManagerInfo(
            authConfig=[vim.host.LocalAuthenticationInfo(enabled=True)]
        ),
        "powerSystemCapability": vim.host.PowerSystem.Capability(availablePolicy=policies),
        "powerSystemInfo": vim.host.PowerSystem.Info(currentPolicy=policies[BALANCED]),
        "vsanHostConfig": vim.vsan.host.ConfigInfo(
            enabled=False,
            clusterInfo=vim.vsan.host.ConfigInfo.ClusterInfo(),
            storageInfo=vim.vsan.host.ConfigInfo.StorageInfo(autoClaimStorage=False),
            networkInfo=vim.vsan.host.ConfigInfo.NetworkInfo(),
        ),
        "datastoreCapabilities": filled(
            vim.host.DatastoreSystem.Capabilities, nfsMountCreationSupported=True, localDatastoreSupported=True
        ),
        "capabilities": filled(
            vim.host.NetCapabilities,
            supportsNicTeaming=True,
            supportsVlan=True,
            vswitchConfigSupported=True,
            vnicConfigSupported=True,
            dnsConfigSupported=True,
            ipRouteConfigSupported=True,
            dhcpOnVnicSupported=True,
            ipV6Supported=True,
        ),
        "offloadCapabilities": vim.host.NetOffloadCapabilities(csumOffload=True, tcpSegmentation=True),
    }


def firewall(host: HostState) -> Any:
    """HostFirewallInfo."""
    return vim.host.FirewallInfo(
        defaultPolicy=vim.host.FirewallInfo.DefaultPolicy(incomingBlocked=True, outgoingBlocked=True),
        ruleset=[_ruleset(*each[:-1], host.rulesets.get(each[0], each[-1])) for each in RULESETS],
    )


def _service(key: str, label: str, running: bool, policy: str) -> Any:
    return vim.host.Service(
        key=key, label=label, required=False, uninstallable=False, running=running, ruleset=[], policy=policy
    )


def _ruleset(key: str, label: str, port: int, direction: str, protocol: str, enabled: bool) -> Any:
    return vim.host.Ruleset(
        key=key,
        label=label,
        required=False,
        rule=[vim.host.Ruleset.Rule(port=port, direction=direction, portType="dst", protocol=protocol)],
        enabled=enabled,
        allowedHosts=vim.host.Ruleset.IpList(allIp=True),
    )
