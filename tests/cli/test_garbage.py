"""Garbage is looked for when there can be some."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gradeline import cli


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_a_service_collects_as_python_does_whatever_was_set_before() -> None:
    """In a process of its own: in this one other tests have run commands, which change the thresholds."""
    script = """
import gc
default = gc.get_threshold()
from gradeline import cli
cli.delay_gc()
cli.restore_gc()
assert gc.get_threshold() == default
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_run_looks_more_often_than_a_command_that_loads_and_never_at_what_is_loaded() -> None:
    cli.delay_gc()
    loading, _, _ = gc.get_threshold()
    cli.relax_gc()
    running, _, _ = gc.get_threshold()
    assert 700 < running < loading
    assert gc.get_freeze_count() > 0
