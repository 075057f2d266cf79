"""The web server of `gpuops serve`: the page of `gpuops report`, kept current while it is open.

* `following.py`    the main thread: reads vCenter after a notice of a change, and publishes the current state
* `current.py`      the current state: one edition of the page and its documents; of several sites also a common table
* `access.py`       logins: by password or by a reverse proxy; and the accepted Host headers
* `application.py`  the ASGI application: addresses, headers, and the events by which pages learn of a new edition
* `server.py`       the thread with the event loop, and limits for connections

It is given values and functions that read; nothing that changes a vCenter is imported here or can be called by a
request, and the session refuses changes too (`api.connection.only_read`). A request never causes a read of vCenter: for
any number of watchers there is one session and one WaitForUpdatesEx.
"""
