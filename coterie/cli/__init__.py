"""The command `coterie`."""
