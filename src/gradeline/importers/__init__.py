"""Importers: suites, cases, responses and grades of other tools, with a report of what was mapped and what was not."""
