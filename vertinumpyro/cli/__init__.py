"""Floor 8: the command line, the only place that prints or exits."""
