"""What is wrong with a run, or with the machine that it is to run on."""
