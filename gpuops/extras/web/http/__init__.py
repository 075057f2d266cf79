"""The web server of `gpuops serve`: the page of `gpuops report`, kept current while it is open.

    following   the main thread: reads vCenter after a notice of a change, and publishes the current state
    current     the current state: one edition of the page and its documents, and the error if vCenter is not followed
    overview    several sites together: the table of all, and their merged documents
    access      logins: by password or by a reverse proxy; and the accepted Host headers
    application the ASGI application: addresses, headers, and the events by which pages learn of a new edition
    connection  HTTP connections with limits of time and number
    server      the thread with the event loop

It is given values and functions that read; nothing that changes a vCenter is imported here or can be called by a
request, and the session refuses changes too (`api.connection.only_read`). A request never causes a read of vCenter: for
any number of watchers there is one session and one WaitForUpdatesEx.
"""
