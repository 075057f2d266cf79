"""Carries out changes of the settings of hosts, rolling changes host by host, and the moves of a defragmentation."""
