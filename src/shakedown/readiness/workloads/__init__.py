"""Built-in workloads: files that follow the protocol of :mod:`shakedown.readiness.workload`, as a user's own would."""
