"""Live coordination in Redis: leases, the pending queue, stop marks, the event log and its readers (T2.1)."""
