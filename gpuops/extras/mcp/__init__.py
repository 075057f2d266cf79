"""`gpuops mcp`: offers commands that read or plan as tools of the Model Context Protocol.

* `mcp_server.py`   the table of tools, how the arguments of a tool become a command line, and the server over stdin and
  stdout: each call of a tool runs its command in a process of its own
* `cli.py`          the command

Nothing here reads or changes a vCenter: a tool prints what `gpuops COMMAND --output json` prints.
"""
