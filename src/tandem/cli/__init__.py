"""The command line: it parses arguments, calls the Python interface, and prints results."""
