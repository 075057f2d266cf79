"""How many VMs may share a GPU, and under which vGPU scheduler. Pure; README.md has problem, method and figures.

`sharing` says how much longer VMs take that share a GPU, by the share of the time that each keeps it busy alone;
`pairs` corrects that where pairs of workloads were seen beside each other; `advice` asks both for groups of a pool.
"""
