"""The evaluation service: a thin front door over the same engine and store as the command line."""
