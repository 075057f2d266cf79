"""The web server of `gpuops serve`: the page of `gpuops report`, kept current for whoever watches it.

    following   the main thread: reads vCenter when it told of a change, and says what there is now
    current     what there is now: one edition of the page and its documents, and what is wrong
    overview    what there is of several sites together: the table of all, and their documents as one
    access      who may see it: a password, or the word of a reverse proxy; and which Host headers are answered
    application the ASGI application: addresses, headers, and the events by which pages learn of a new edition
    connection  HTTP connections with limits of time and number
    server      the thread with the event loop

It is given values and functions that read; nothing that changes a vCenter is imported here or can be called by a
request, and the session refuses changes besides (`api.connection.only_read`). A request never makes vCenter be asked:
however many watch, it is one session and one WaitForUpdatesEx.
"""
