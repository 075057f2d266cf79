"""Operations on what every vCenter has: sessions, roles, custom fields, licences, settings, extensions, alarms."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pyVmomi import vim

from tests.peers.vcsim_table.operation import Operation
from tests.peers.vcsim_table.site import Site

Op = Operation
USER: Final = "DOMAIN\\someone"


def anonymous(call: Any) -> Any:
    """Does this with a service instance that nobody has logged in to."""

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
    return sorted(each.name for each in site.content.authorizationManager.roleList if each.name.startswith("row"))


def permission(site: Site, **fields: Any) -> Any:
    given = {"principal": USER, "group": False, "roleId": -2, "propagate": True, **fields}
    return site.content.authorizationManager.SetEntityPermissions(
        site.folder, [vim.AuthorizationManager.Permission(**given)]
    )


def field(site: Site, called: str, kind: Any = vim.VirtualMachine) -> Any:
    return site.keep(site.content.customFieldsManager.AddCustomFieldDef(called, kind, None, None))


def field_names(site: Site) -> Any:
    return sorted(each.name for each in site.content.customFieldsManager.field)


def custom_values(site: Site) -> Any:
    return [each.value for each in site.running.customValue]


def extension(key: str) -> Any:
    return vim.Extension(
        key=key, version="1.0", lastHeartbeatTime=_EPOCH, description=vim.Description(label=key, summary=key)
    )


_EPOCH: Final = datetime(2026, 11, 2, tzinfo=UTC)
SESSIONS: Final = (
    Op("ServiceInstance.CurrentTime", "", lambda s: s.service.CurrentTime()),
    Op("ServiceInstance.CurrentTime", "without a login", anonymous(lambda si, content: si.CurrentTime())),
    Op("ServiceInstance.RetrieveServiceContent", "without a login", anonymous(lambda si, content: content)),
    Op("Folder.name", "without a login", anonymous(lambda si, content: content.rootFolder.name)),
    Op("Folder.name", "after a logout", elsewhere(logged_out)),
    Op("SessionManager.Login", "a wrong password", lambda s: _login(s, s.endpoint.username, "wrong")),
    Op("SessionManager.Login", "no name", lambda s: _login(s, "", "")),
    Op("SessionManager.Login", "twice", elsewhere(lambda si, content: content.sessionManager.Login("again", "again"))),
    Op("SessionManager.Login", "right", lambda s: _login(s, s.endpoint.username, s.endpoint.password)),
    Op("SessionManager.Logout", "without a login", anonymous(lambda si, content: content.sessionManager.Logout())),
    Op(
        "SessionManager.SessionIsActive",
        "one's own",
        lambda s: s.content.sessionManager.SessionIsActive(
            s.content.sessionManager.currentSession.key, s.content.sessionManager.currentSession.userName
        ),
    ),
    Op(
        "SessionManager.SessionIsActive",
        "of nobody",
        lambda s: s.content.sessionManager.SessionIsActive("none", "nobody"),
    ),
    Op("SessionManager.TerminateSession", "of nobody", lambda s: s.content.sessionManager.TerminateSession(["none"])),
    Op(
        "SessionManager.TerminateSession",
        "one's own",
        lambda s: s.content.sessionManager.TerminateSession([s.content.sessionManager.currentSession.key]),
    ),
    Op("SessionManager.TerminateSession", "another", lambda s: _terminated(s)),
    Op("SessionManager.SetLocale", "en", lambda s: s.content.sessionManager.SetLocale("en")),
    Op("SessionManager.AcquireCloneTicket", "", lambda s: s.content.sessionManager.AcquireCloneTicket()),
    Op(
        "SessionManager.CloneSession",
        "with no ticket",
        anonymous(lambda si, content: content.sessionManager.CloneSession("none")),
    ),
    Op("SessionManager.ImpersonateUser", "", lambda s: s.content.sessionManager.ImpersonateUser("someone", "en")),
    Op("SessionManager.UpdateServiceMessage", "", lambda s: s.content.sessionManager.UpdateServiceMessage("hello")),
)


def _login(site: Site, name: str, password: str) -> Any:
    with site.another_session(login=False) as service:
        return service.RetrieveContent().sessionManager.Login(name, password)


def _terminated(site: Site) -> Any:
    with site.another_session() as service:
        content = service.RetrieveContent()
        site.content.sessionManager.TerminateSession([content.sessionManager.currentSession.key])
        return content.rootFolder.name


AUTHORISATION: Final = (
    Op(
        "AuthorizationManager.AddAuthorizationRole",
        "a free name",
        lambda s: role(s, "row-1", "System.View"),
        lambda s: "row-1" in role_names(s),
    ),
    Op(
        "AuthorizationManager.AddAuthorizationRole",
        "a name that is taken",
        lambda s: (role(s, "row-2"), role(s, "row-2"))[-1],
    ),
    Op("AuthorizationManager.AddAuthorizationRole", "an empty name", lambda s: role(s, "")),
    Op(
        "AuthorizationManager.UpdateAuthorizationRole",
        "another name",
        lambda s: s.content.authorizationManager.UpdateAuthorizationRole(role(s, "row-4"), "row-5", ["System.View"]),
        lambda s: ["row-4" in role_names(s), "row-5" in role_names(s)],
    ),
    Op(
        "AuthorizationManager.UpdateAuthorizationRole",
        "of nobody",
        lambda s: s.content.authorizationManager.UpdateAuthorizationRole(4711, "row-6", []),
    ),
    Op(
        "AuthorizationManager.UpdateAuthorizationRole",
        "vCenter's own",
        lambda s: s.content.authorizationManager.UpdateAuthorizationRole(-1, "row-7", []),
    ),
    Op(
        "AuthorizationManager.RemoveAuthorizationRole",
        "there",
        lambda s: s.content.authorizationManager.RemoveAuthorizationRole(role(s, "row-8"), True),
    ),
    Op(
        "AuthorizationManager.RemoveAuthorizationRole",
        "of nobody",
        lambda s: s.content.authorizationManager.RemoveAuthorizationRole(4711, True),
    ),
    Op(
        "AuthorizationManager.RemoveAuthorizationRole",
        "in use",
        lambda s: (
            permission(s, roleId=role(s, "row-9")),
            s.content.authorizationManager.RemoveAuthorizationRole(s.kept, True),
        )[-1],
    ),
    Op(
        "AuthorizationManager.SetEntityPermissions",
        "a user",
        lambda s: permission(s),
        lambda s: len(
            [
                each
                for each in s.content.authorizationManager.RetrieveEntityPermissions(s.folder, False)
                if each.principal == USER
            ]
        ),
    ),
    Op("AuthorizationManager.SetEntityPermissions", "a role of nobody", lambda s: permission(s, roleId=4711)),
    Op(
        "AuthorizationManager.RemoveEntityPermission",
        "there",
        lambda s: (permission(s), s.content.authorizationManager.RemoveEntityPermission(s.folder, USER, False))[-1],
    ),
    Op(
        "AuthorizationManager.RemoveEntityPermission",
        "not there",
        lambda s: s.content.authorizationManager.RemoveEntityPermission(s.host, "DOMAIN\\nobody", False),
    ),
    Op(
        "AuthorizationManager.RetrieveRolePermissions",
        "vCenter's own",
        lambda s: s.content.authorizationManager.RetrieveRolePermissions(-1),
    ),
    Op(
        "AuthorizationManager.RetrieveRolePermissions",
        "of nobody",
        lambda s: s.content.authorizationManager.RetrieveRolePermissions(4711),
    ),
    Op(
        "AuthorizationManager.HasPrivilegeOnEntities",
        "one's own",
        lambda s: s.content.authorizationManager.HasPrivilegeOnEntities(
            [s.folder], s.content.sessionManager.currentSession.key, ["System.View"]
        ),
    ),
    Op(
        "AuthorizationManager.FetchUserPrivilegeOnEntities",
        "",
        lambda s: s.content.authorizationManager.FetchUserPrivilegeOnEntities(
            [s.folder], s.content.sessionManager.currentSession.userName
        ),
        last=True,
    ),
    Op(
        "UserDirectory.RetrieveUserGroups",
        "of nobody",
        lambda s: s.content.userDirectory.RetrieveUserGroups(None, "none", None, None, True, True, False),
    ),
)

FIELDS: Final = (
    Op("CustomFieldsManager.AddCustomFieldDef", "a free name", lambda s: field(s, "row"), field_names),
    Op("CustomFieldsManager.AddCustomFieldDef", "a name that is taken", lambda s: field(s, "row")),
    Op("CustomFieldsManager.AddCustomFieldDef", "an empty name", lambda s: field(s, "")),
    Op(
        "CustomFieldsManager.SetField",
        "of a VM",
        lambda s: s.content.customFieldsManager.SetField(s.running, field(s, "set").key, "seen"),
        custom_values,
    ),
    Op(
        "CustomFieldsManager.SetField",
        "of a host that it is not for",
        lambda s: s.content.customFieldsManager.SetField(s.host, field(s, "not-set").key, "seen"),
    ),
    Op(
        "CustomFieldsManager.SetField",
        "of nobody",
        lambda s: s.content.customFieldsManager.SetField(s.running, 4711, "seen"),
    ),
    Op(
        "CustomFieldsManager.RenameCustomFieldDef",
        "a free name",
        lambda s: s.content.customFieldsManager.RenameCustomFieldDef(field(s, "old").key, "young"),
        lambda s: "young" in field_names(s),
    ),
    Op(
        "CustomFieldsManager.RenameCustomFieldDef",
        "of nobody",
        lambda s: s.content.customFieldsManager.RenameCustomFieldDef(4711, "x"),
    ),
    Op(
        "CustomFieldsManager.RemoveCustomFieldDef",
        "there",
        lambda s: s.content.customFieldsManager.RemoveCustomFieldDef(field(s, "gone").key),
        lambda s: "gone" in field_names(s),
    ),
    Op(
        "CustomFieldsManager.RemoveCustomFieldDef",
        "of nobody",
        lambda s: s.content.customFieldsManager.RemoveCustomFieldDef(4711),
    ),
    Op(
        "VirtualMachine.setCustomValue",
        "by name",
        lambda s: (field(s, "named"), s.running.SetCustomValue("named", "seen"))[-1],
        lambda s: "seen" in custom_values(s),
    ),
    Op("VirtualMachine.setCustomValue", "of nobody", lambda s: s.running.SetCustomValue("none", "seen")),
)

MANAGERS: Final = (
    Op("LicenseManager.licenses", "", lambda s: s.content.licenseManager.licenses),
    Op("LicenseManager.RemoveLicense", "of nobody", lambda s: s.content.licenseManager.RemoveLicense("none")),
    Op(
        "LicenseAssignmentManager.QueryAssignedLicenses",
        "any",
        lambda s: s.content.licenseManager.licenseAssignmentManager.QueryAssignedLicenses(None),
    ),
    Op(
        "LicenseAssignmentManager.RemoveAssignedLicense",
        "of nobody",
        lambda s: s.content.licenseManager.licenseAssignmentManager.RemoveAssignedLicense("none"),
    ),
    Op("OptionManager.QueryOptions", "not there", lambda s: s.content.setting.QueryOptions("no.such.option")),
    Op(
        "OptionManager.UpdateOptions",
        "a new one",
        lambda s: s.content.setting.UpdateOptions([vim.option.OptionValue(key="row.option", value="seen")]),
        lambda s: s.content.setting.QueryOptions("row.option")[0].value,
    ),
    Op(
        "OptionManager.UpdateOptions",
        "an empty key",
        lambda s: s.content.setting.UpdateOptions([vim.option.OptionValue(key="", value="seen")]),
    ),
    Op("ExtensionManager.FindExtension", "of nobody", lambda s: s.content.extensionManager.FindExtension("none")),
    Op(
        "ExtensionManager.RegisterExtension",
        "a new one",
        lambda s: s.content.extensionManager.RegisterExtension(extension("com.example")),
    ),
    Op(
        "ExtensionManager.UnregisterExtension",
        "of nobody",
        lambda s: s.content.extensionManager.UnregisterExtension("none"),
    ),
    Op(
        "ExtensionManager.UpdateExtension",
        "of nobody",
        lambda s: s.content.extensionManager.UpdateExtension(extension("none")),
    ),
    Op("AlarmManager.GetAlarm", "any", lambda s: len(s.content.alarmManager.GetAlarm(None)) > 0),
    Op("AlarmManager.GetAlarmState", "of a VM", lambda s: s.content.alarmManager.GetAlarmState(s.running)),
    Op(
        "AlarmManager.AreAlarmActionsEnabled",
        "of a VM",
        lambda s: s.content.alarmManager.AreAlarmActionsEnabled(s.running),
    ),
    Op(
        "AlarmManager.EnableAlarmActions",
        "of a VM",
        lambda s: s.content.alarmManager.EnableAlarmActions(s.running, False),
    ),
    Op("Alarm.RemoveAlarm", "the first", lambda s: s.content.alarmManager.GetAlarm(None)[0].RemoveAlarm()),
    Op(
        "CustomizationSpecManager.DoesCustomizationSpecExist",
        "of nobody",
        lambda s: s.content.customizationSpecManager.DoesCustomizationSpecExist("none"),
    ),
    Op(
        "CustomizationSpecManager.GetCustomizationSpec",
        "of nobody",
        lambda s: s.content.customizationSpecManager.GetCustomizationSpec("none"),
    ),
    Op(
        "ScheduledTaskManager.RetrieveEntityScheduledTask",
        "any",
        lambda s: s.content.scheduledTaskManager.RetrieveEntityScheduledTask(None),
    ),
    Op("DiagnosticManager.QueryDescriptions", "", lambda s: s.content.diagnosticManager.QueryDescriptions(None)),
    Op(
        "EnvironmentBrowser.QueryConfigTarget",
        "of a host",
        lambda s: s.cluster.environmentBrowser.QueryConfigTarget(s.host),
    ),
    Op(
        "EnvironmentBrowser.QueryConfigOptionDescriptor",
        "",
        lambda s: s.cluster.environmentBrowser.QueryConfigOptionDescriptor(),
    ),
    Op(
        "EnvironmentBrowser.QueryConfigOption",
        "the default",
        lambda s: s.cluster.environmentBrowser.QueryConfigOption(None, None),
    ),
    Op(
        "EnvironmentBrowser.QueryConfigOption",
        "a version of nobody",
        lambda s: s.cluster.environmentBrowser.QueryConfigOption("vmx-4711", None),
    ),
    Op(
        "VirtualMachineCompatibilityChecker.CheckPowerOn_Task",
        "is off",
        lambda s: s.content.vmCompatibilityChecker.CheckPowerOn_Task(s.vm(), None, None, []),
    ),
    Op(
        "GuestAuthManager.ValidateCredentialsInGuest",
        "without VMware Tools",
        lambda s: s.content.guestOperationsManager.authManager.ValidateCredentialsInGuest(
            s.running, vim.vm.guest.NamePasswordAuthentication(username="root", password="x", interactiveSession=False)
        ),
    ),
)

OPERATIONS: Final = (*SESSIONS, *AUTHORISATION, *FIELDS, *MANAGERS)
