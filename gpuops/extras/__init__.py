"""Optional capabilities, each in a folder of its own. An extra may import the core and the extras before it.

`observe`    keeps performance counters for weeks; forecasts of use
`notify`     notices by mail, webhook or syslog
`sizing`     how many VMs may share a GPU; measured sharing; what-if
`diagnosis`  which component slows a VM down
`clusters`   clusters of VMs for training, and programs in them
`jobs`       containers as jobs on VMs with GPUs
`lending`    GPUs lent over the network
`fleet`      many vCenters: one answer from all of them, and runners that share their nights
`web`        the HTML page and its server, Prometheus metrics, `gpuops top`
`bundle`     an archive for a bug report, with names hidden
"""
