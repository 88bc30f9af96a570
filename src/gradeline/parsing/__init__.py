"""Parsers for untrusted input: JSON, JSON Schema, JMESPath, numbers, patterns, all bounded in time and depth."""
