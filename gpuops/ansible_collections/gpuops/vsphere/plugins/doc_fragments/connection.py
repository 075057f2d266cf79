# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  hostname:
    description:
      - The vCenter - a host name, an address or a URL, a target of the configuration file of gpuops,
        V(sim:SCENARIO) for a private simulated one, or V(sim@FILE) for one that M(gpuops.vsphere.sim_vcenter) started.
      - If it is left out, E(GPUOPS_VCENTER), E(VMWARE_HOST), E(GOVC_URL) and the default target of the configuration
        file are asked, in this order.
    type: str
  port:
    description:
      - The port of O(hostname). Default V(443); for E(VMWARE_HOST) it is E(VMWARE_PORT).
    type: int
  username:
    description:
      - The user name. If it is left out, E(GPUOPS_USERNAME), E(VMWARE_USER), E(GOVC_USERNAME) and the target are asked.
    type: str
    aliases: [admin, user]
  password:
    description:
      - The password. If it is left out, E(GPUOPS_PASSWORD), E(VMWARE_PASSWORD), E(GOVC_PASSWORD) and the target are
        asked.
    type: str
    aliases: [pass, pwd]
  password_file:
    description:
      - A file that holds the password and nothing else, readable by its owner alone.
    type: path
  validate_certs:
    description:
      - Whether the certificate of the vCenter is verified. It is, unless this, E(GPUOPS_INSECURE),
        E(VMWARE_VALIDATE_CERTS), E(GOVC_INSECURE) or the target says otherwise; a connection that is not verified is
        warned about and noted in the audit log.
    type: bool
  ca_file:
    description:
      - Trust the certificates of this PEM file alone. If it is left out, E(GPUOPS_CA_FILE), E(GOVC_TLS_CA_CERTS), the
        target, E(REQUESTS_CA_BUNDLE) and the system are asked.
    type: path
  proxy_host:
    description:
      - The host of an HTTP proxy. If it is left out, E(GPUOPS_PROXY), E(VMWARE_PROXY_HOST) and the target are asked.
    type: str
  proxy_port:
    description:
      - The port of O(proxy_host). Default V(8080).
    type: int
  journal_url:
    description:
      - The PostgreSQL database that keeps the journal, where several machines share it. Default
        E(GPUOPS_JOURNAL_URL), the target, or a file in O(state_dir).
    type: str
  reader:
    description:
      - Over which protocol inventories are read. V(auto) is VI/JSON where C(gpuops login test) proved it equal to SOAP,
        and SOAP elsewhere. Default E(GPUOPS_READER), the target, or V(auto).
    type: str
    choices: [auto, soap, json]
  state_dir:
    description:
      - The directory of the journal and its locks. Default E(GPUOPS_STATE_DIR), or C(~/.local/state/gpuops).
    type: path
requirements:
  - gpuops-vsphere
notes:
  - The module runs where the Python package gpuops-vsphere is installed, as a rule on the control node.
"""
