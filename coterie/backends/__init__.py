"""Systems: engines, trainers, executors, trackers; one optional dependency a file."""
