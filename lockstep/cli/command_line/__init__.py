"""Shell completions and man pages, generated from the parsers of the command line."""
