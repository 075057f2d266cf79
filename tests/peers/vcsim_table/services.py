"""Operations on what every vCenter has: sessions, roles, custom fields, licences, settings, extensions, alarms."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pyVmomi import vim

from tests.peers.vcsim_table.operation import Case, Cases, operations
from tests.peers.vcsim_table.site import Site

USER: Final = "DOMAIN\\someone"


def anonymous(call: Any) -> Any:
    """Do this with a service instance without a login."""

    def do(site: Site) -> Any:
        with site.another_session(login=False) as service:
            return call(service, service.RetrieveContent())

    return do


def elsewhere(call: Any) -> Any:
    """Does this in a session of its own."""

    def do(site: Site) -> Any:
        with site.another_session() as service:
            return call(service, service.RetrieveContent())

    return do


def logged_out(service: Any, content: Any) -> Any:
    content.sessionManager.Logout()
    return service.CurrentTime() and content.rootFolder.name


def role(site: Site, called: str, *privileges: str) -> Any:
    return site.keep(site.content.authorizationManager.AddAuthorizationRole(called, list(privileges)))


def role_names(site: Site) -> Any:
    return sorted(role.name for role in site.content.authorizationManager.roleList if role.name.startswith("row"))


def permission(site: Site, **fields: Any) -> Any:
    defaults = {"principal": USER, "group": False, "roleId": -2, "propagate": True, **fields}
    return site.content.authorizationManager.SetEntityPermissions(
        site.folder, [vim.AuthorizationManager.Permission(**defaults)]
    )


def field(site: Site, called: str, kind: Any = vim.VirtualMachine) -> Any:
    return site.keep(site.content.customFieldsManager.AddCustomFieldDef(called, kind, None, None))


def field_names(site: Site) -> Any:
    return sorted(custom_field.name for custom_field in site.content.customFieldsManager.field)


def custom_values(site: Site) -> Any:
    return [custom_value.value for custom_value in site.running.customValue]


def extension(key: str) -> Any:
    return vim.Extension(
        key=key, version="1.0", lastHeartbeatTime=_EPOCH, description=vim.Description(label=key, summary=key)
    )


_EPOCH: Final = datetime(2026, 11, 2, tzinfo=UTC)
SESSIONS: Final[Cases] = {
    "ServiceInstance.CurrentTime": {
        "": lambda s: s.service.CurrentTime(),
        "without a login": anonymous(lambda si, content: si.CurrentTime()),
    },
    "ServiceInstance.RetrieveServiceContent": {
        "without a login": anonymous(lambda si, content: content),
    },
    "Folder.name": {
        "without a login": anonymous(lambda si, content: content.rootFolder.name),
        "after a logout": elsewhere(logged_out),
    },
    "SessionManager.Login": {
        "a wrong password": lambda s: _login(s, s.endpoint.username, "wrong"),
        "no name": lambda s: _login(s, "", ""),
        "twice": elsewhere(lambda si, content: content.sessionManager.Login("again", "again")),
        "right": lambda s: _login(s, s.endpoint.username, s.endpoint.password),
    },
    "SessionManager.Logout": {
        "without a login": anonymous(lambda si, content: content.sessionManager.Logout()),
    },
    "SessionManager.SessionIsActive": {
        "one's own": lambda s: s.content.sessionManager.SessionIsActive(
            s.content.sessionManager.currentSession.key, s.content.sessionManager.currentSession.userName
        ),
        "of nobody": lambda s: s.content.sessionManager.SessionIsActive("none", "nobody"),
    },
    "SessionManager.TerminateSession": {
        "of nobody": lambda s: s.content.sessionManager.TerminateSession(["none"]),
        "one's own": lambda s: s.content.sessionManager.TerminateSession([s.content.sessionManager.currentSession.key]),
        "another": lambda s: _terminate_session(s),
    },
    "SessionManager.SetLocale": {
        "en": lambda s: s.content.sessionManager.SetLocale("en"),
    },
    "SessionManager.AcquireCloneTicket": {
        "": lambda s: s.content.sessionManager.AcquireCloneTicket(),
    },
    "SessionManager.CloneSession": {
        "with no ticket": anonymous(lambda si, content: content.sessionManager.CloneSession("none")),
    },
    "SessionManager.ImpersonateUser": {
        "": lambda s: s.content.sessionManager.ImpersonateUser("someone", "en"),
    },
    "SessionManager.UpdateServiceMessage": {
        "": lambda s: s.content.sessionManager.UpdateServiceMessage("hello"),
    },
}


def _login(site: Site, name: str, password: str) -> Any:
    with site.another_session(login=False) as service:
        return service.RetrieveContent().sessionManager.Login(name, password)


def _terminate_session(site: Site) -> Any:
    with site.another_session() as service:
        content = service.RetrieveContent()
        site.content.sessionManager.TerminateSession([content.sessionManager.currentSession.key])
        return content.rootFolder.name


AUTHORISATION: Final[Cases] = {
    "AuthorizationManager.AddAuthorizationRole": {
        "a free name": (lambda s: role(s, "row-1", "System.View"), lambda s: "row-1" in role_names(s)),
        "a name that is taken": lambda s: (role(s, "row-2"), role(s, "row-2"))[-1],
        "an empty name": lambda s: role(s, ""),
    },
    "AuthorizationManager.UpdateAuthorizationRole": {
        "another name": (
            lambda s: s.content.authorizationManager.UpdateAuthorizationRole(
                role(s, "row-4"), "row-5", ["System.View"]
            ),
            lambda s: ["row-4" in role_names(s), "row-5" in role_names(s)],
        ),
        "of nobody": lambda s: s.content.authorizationManager.UpdateAuthorizationRole(4711, "row-6", []),
        "vCenter's own": lambda s: s.content.authorizationManager.UpdateAuthorizationRole(-1, "row-7", []),
    },
    "AuthorizationManager.RemoveAuthorizationRole": {
        "there": lambda s: s.content.authorizationManager.RemoveAuthorizationRole(role(s, "row-8"), True),
        "of nobody": lambda s: s.content.authorizationManager.RemoveAuthorizationRole(4711, True),
        "in use": lambda s: (
            permission(s, roleId=role(s, "row-9")),
            s.content.authorizationManager.RemoveAuthorizationRole(s.kept, True),
        )[-1],
    },
    "AuthorizationManager.SetEntityPermissions": {
        "a user": (
            lambda s: permission(s),
            lambda s: len(
                [
                    permission_found
                    for permission_found in s.content.authorizationManager.RetrieveEntityPermissions(s.folder, False)
                    if permission_found.principal == USER
                ]
            ),
        ),
        "a role of nobody": lambda s: permission(s, roleId=4711),
    },
    "AuthorizationManager.RemoveEntityPermission": {
        "there": lambda s: (
            permission(s),
            s.content.authorizationManager.RemoveEntityPermission(s.folder, USER, False),
        )[-1],
        "not there": lambda s: s.content.authorizationManager.RemoveEntityPermission(s.host, "DOMAIN\\nobody", False),
    },
    "AuthorizationManager.RetrieveRolePermissions": {
        "vCenter's own": lambda s: s.content.authorizationManager.RetrieveRolePermissions(-1),
        "of nobody": lambda s: s.content.authorizationManager.RetrieveRolePermissions(4711),
    },
    "AuthorizationManager.HasPrivilegeOnEntities": {
        "one's own": lambda s: s.content.authorizationManager.HasPrivilegeOnEntities(
            [s.folder], s.content.sessionManager.currentSession.key, ["System.View"]
        ),
    },
    "AuthorizationManager.FetchUserPrivilegeOnEntities": {
        "": Case(
            lambda s: s.content.authorizationManager.FetchUserPrivilegeOnEntities(
                [s.folder], s.content.sessionManager.currentSession.userName
            ),
            last=True,
        ),
    },
    "UserDirectory.RetrieveUserGroups": {
        "of nobody": lambda s: s.content.userDirectory.RetrieveUserGroups(None, "none", None, None, True, True, False),
    },
}

FIELDS: Final[Cases] = {
    "CustomFieldsManager.AddCustomFieldDef": {
        "a free name": (lambda s: field(s, "row"), field_names),
        "a name that is taken": lambda s: field(s, "row"),
        "an empty name": lambda s: field(s, ""),
    },
    "CustomFieldsManager.SetField": {
        "of a VM": (
            lambda s: s.content.customFieldsManager.SetField(s.running, field(s, "set").key, "seen"),
            custom_values,
        ),
        "of a host that it is not for": lambda s: s.content.customFieldsManager.SetField(
            s.host, field(s, "not-set").key, "seen"
        ),
        "of nobody": lambda s: s.content.customFieldsManager.SetField(s.running, 4711, "seen"),
    },
    "CustomFieldsManager.RenameCustomFieldDef": {
        "a free name": (
            lambda s: s.content.customFieldsManager.RenameCustomFieldDef(field(s, "old").key, "young"),
            lambda s: "young" in field_names(s),
        ),
        "of nobody": lambda s: s.content.customFieldsManager.RenameCustomFieldDef(4711, "x"),
    },
    "CustomFieldsManager.RemoveCustomFieldDef": {
        "there": (
            lambda s: s.content.customFieldsManager.RemoveCustomFieldDef(field(s, "gone").key),
            lambda s: "gone" in field_names(s),
        ),
        "of nobody": lambda s: s.content.customFieldsManager.RemoveCustomFieldDef(4711),
    },
    "VirtualMachine.setCustomValue": {
        "by name": (
            lambda s: (field(s, "named"), s.running.SetCustomValue("named", "seen"))[-1],
            lambda s: "seen" in custom_values(s),
        ),
        "of nobody": lambda s: s.running.SetCustomValue("none", "seen"),
    },
}

MANAGERS: Final[Cases] = {
    "LicenseManager.licenses": {
        "": lambda s: s.content.licenseManager.licenses,
    },
    "LicenseManager.RemoveLicense": {
        "of nobody": lambda s: s.content.licenseManager.RemoveLicense("none"),
    },
    "LicenseAssignmentManager.QueryAssignedLicenses": {
        "any": lambda s: s.content.licenseManager.licenseAssignmentManager.QueryAssignedLicenses(None),
    },
    "LicenseAssignmentManager.RemoveAssignedLicense": {
        "of nobody": lambda s: s.content.licenseManager.licenseAssignmentManager.RemoveAssignedLicense("none"),
    },
    "OptionManager.QueryOptions": {
        "not there": lambda s: s.content.setting.QueryOptions("no.such.option"),
    },
    "OptionManager.UpdateOptions": {
        "a new one": (
            lambda s: s.content.setting.UpdateOptions([vim.option.OptionValue(key="row.option", value="seen")]),
            lambda s: s.content.setting.QueryOptions("row.option")[0].value,
        ),
        "an empty key": lambda s: s.content.setting.UpdateOptions([vim.option.OptionValue(key="", value="seen")]),
    },
    "ExtensionManager.FindExtension": {
        "of nobody": lambda s: s.content.extensionManager.FindExtension("none"),
    },
    "ExtensionManager.RegisterExtension": {
        "a new one": lambda s: s.content.extensionManager.RegisterExtension(extension("com.example")),
    },
    "ExtensionManager.UnregisterExtension": {
        "of nobody": lambda s: s.content.extensionManager.UnregisterExtension("none"),
    },
    "ExtensionManager.UpdateExtension": {
        "of nobody": lambda s: s.content.extensionManager.UpdateExtension(extension("none")),
    },
    "AlarmManager.GetAlarm": {
        "any": lambda s: len(s.content.alarmManager.GetAlarm(None)) > 0,
    },
    "AlarmManager.GetAlarmState": {
        "of a VM": lambda s: s.content.alarmManager.GetAlarmState(s.running),
    },
    "AlarmManager.AreAlarmActionsEnabled": {
        "of a VM": lambda s: s.content.alarmManager.AreAlarmActionsEnabled(s.running),
    },
    "AlarmManager.EnableAlarmActions": {
        "of a VM": lambda s: s.content.alarmManager.EnableAlarmActions(s.running, False),
    },
    "Alarm.RemoveAlarm": {
        "the first": lambda s: s.content.alarmManager.GetAlarm(None)[0].RemoveAlarm(),
    },
    "CustomizationSpecManager.DoesCustomizationSpecExist": {
        "of nobody": lambda s: s.content.customizationSpecManager.DoesCustomizationSpecExist("none"),
    },
    "CustomizationSpecManager.GetCustomizationSpec": {
        "of nobody": lambda s: s.content.customizationSpecManager.GetCustomizationSpec("none"),
    },
    "ScheduledTaskManager.RetrieveEntityScheduledTask": {
        "any": lambda s: s.content.scheduledTaskManager.RetrieveEntityScheduledTask(None),
    },
    "DiagnosticManager.QueryDescriptions": {
        "": lambda s: s.content.diagnosticManager.QueryDescriptions(None),
    },
    "EnvironmentBrowser.QueryConfigTarget": {
        "of a host": lambda s: s.cluster.environmentBrowser.QueryConfigTarget(s.host),
    },
    "EnvironmentBrowser.QueryConfigOptionDescriptor": {
        "": lambda s: s.cluster.environmentBrowser.QueryConfigOptionDescriptor(),
    },
    "EnvironmentBrowser.QueryConfigOption": {
        "the default": lambda s: s.cluster.environmentBrowser.QueryConfigOption(None, None),
        "a version of nobody": lambda s: s.cluster.environmentBrowser.QueryConfigOption("vmx-4711", None),
    },
    "VirtualMachineCompatibilityChecker.CheckPowerOn_Task": {
        "is off": lambda s: s.content.vmCompatibilityChecker.CheckPowerOn_Task(s.vm(), None, None, []),
    },
    "GuestAuthManager.ValidateCredentialsInGuest": {
        "without VMware Tools": lambda s: s.content.guestOperationsManager.authManager.ValidateCredentialsInGuest(
            s.running,
            vim.vm.guest.NamePasswordAuthentication(username="root", password="x", interactiveSession=False),
        ),
    },
}

OPERATIONS: Final = operations(SESSIONS, AUTHORISATION, FIELDS, MANAGERS)
