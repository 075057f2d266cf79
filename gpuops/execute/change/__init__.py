"""Rolling changes, done: host by host, each effect in the journal before it is sent, to go on after a crash."""
