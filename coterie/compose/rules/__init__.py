"""Rules between the tables of a configuration: all in `table.py`, by subject in the other files."""
