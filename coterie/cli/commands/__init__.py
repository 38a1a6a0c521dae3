"""One module a command; each has `command`, and is imported when it is invoked."""
