"""A process that works until it is told to stop: above all the worker, which keeps a scanner.

`worker` is the process, `scan_run` one run of its scanner, `shifts` and `shift` the part of each
Redis node. `service` is what every process shares: its identity, signals and tasks, and how they
end. `parts` names what other rooms add to a process; `pulse` asks Redis for all of them once a
second. `eventlog` writes its events to the log.
"""
