"""Commands that run as services, or from cron: pages, metrics, counters, notices, runners."""
