"""Several ranks: one process each. Rank 0 is the run's process; the others run the rank program."""
