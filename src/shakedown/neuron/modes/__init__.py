"""Where the stream of operator calls is cut into programs: after each one (eager, in ``dispatch``), or where Dynamo does."""
