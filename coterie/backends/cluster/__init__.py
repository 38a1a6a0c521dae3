"""What the processes of a distributed run share: how errors and plugins travel, and the connection to Ray."""
