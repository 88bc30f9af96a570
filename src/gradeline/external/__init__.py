"""Graders outside of Python: a program (`command`) or a server (`http`), in any language."""
