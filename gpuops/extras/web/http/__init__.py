"""The web server of `gpuops serve`: the page of `gpuops report`, kept current while it is open.

* `current.py`  the current state: one edition of the page and its documents, of several sites also a common table;
  the main thread publishes it after each notice of a change
* `access.py`  logins: by password or by a reverse proxy; and the accepted Host headers
* `web_server.py`  the ASGI application (addresses, headers, and the events by which pages learn of a new edition), its
  thread, and limits for connections

It is given values and functions that read; nothing that changes a vCenter is imported here or can be called by a
request, and the session refuses changes too (`api.connection.only_read`). A request never causes a read of vCenter: for
any number of watchers there is one session and one WaitForUpdatesEx.
"""
