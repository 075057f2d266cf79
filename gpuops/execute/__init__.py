"""The only package that changes anything, and the journal it cannot work without.

Problem: a night of suspends and starts must survive `kill -9` at any point, a vCenter restart and a lost reply, and
every desktop must come back.
Choice: an intent is on disk before its effect (`journal`), the effect is read back before it is called done
(`steps/step_executor`), and after a crash nothing is replayed: what was in flight is settled by looking
(`steps/settle`), and the rest is planned afresh on what vCenter shows. So the journal never has to agree with the
world; it only has to remember what to look for, and what the morning must restore (`runs/nights`).
Given up: a plan that survives the crash unchanged. The second plan may differ from the first, because vCenter does.
And long waits for a vCenter that cannot be reached: a read is sent once more, a wait for tasks is started again four
times in a minute, and then the run ends (exit code 5). Five reads with growing pauses would handle a short outage
better, but a run that waits keeps lock and lease from a machine that can reach vCenter, and acts on an old snapshot.
The next run, which cron starts ten minutes later, replaces the wait: it reads everything again, and its six logins an
hour lock no account.
"""
