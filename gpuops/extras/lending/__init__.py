"""`gpuops pool` lends parts of a GPU's memory over the network to VMs without a GPU, until a moment that is agreed.

A program such as those in `templates/remote-gpu` carries the CUDA calls; gpuops decides who gets which share, keeps the
book of leases, and runs the program's hooks in the guests of servers and clients. README.md has the rules.

Read in this order:
`lease_book`  pools, servers and leases, and the answer of a command
`lending`     changes of a book: lend, return, end, drain (pure)
`members`     checks of the VMs that are servers or clients (pure)
`reclaim`     takes servers back; compares the book with the health of servers (pure)
`remote_gpu`, `pool_file`  the program, and reading the files of pools and programs
`book`        the books in SQLite or PostgreSQL
`guests`      runs the hooks in guests, and marks the servers that lend
`running`     the commands: decide in one transaction, then work in guests
`view`, `cli` output and command line

The core reaches it by `gpuops/extensions.py`: the command `pool` and its documents. Nights and moves see a server by
the mark on its VM (`gpuops.advise.lending_servers`).
"""
