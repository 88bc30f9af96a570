"""The file and line of the cases of a suite, for messages about single cases."""

from __future__ import annotations

from collections.abc import Collection

from gradeline.errors import ConfigError
from gradeline.suite.dataset import Dataset, open_dataset
from gradeline.suite.document import read_document
from gradeline.suite.letta_dialects import rewrite_suite
from gradeline.suite.problems import SourcePosition
from gradeline.suite.spec import SuiteDefinition


def case_positions(suite: SuiteDefinition, cases: Collection[str]) -> dict[str, SourcePosition]:
    """The file and line of each of these cases that is found; the dataset is read up to the last one.

    Cases of the Hugging Face Hub have no position. A dataset that can no longer be read gives what was found before
    the fault.
    """
    missing = set(cases)
    found: dict[str, SourcePosition] = {}
    if not missing or suite.dataset.hub_datasets or suite.dataset.is_empty:
        return found
    try:
        dataset = _open(suite)
        for sample in dataset:
            if sample.case_key in missing:
                missing.remove(sample.case_key)
                found[sample.case_key] = dataset.position
                if not missing:
                    break
    except (ConfigError, OSError):
        return found
    return found


def _open(suite: SuiteDefinition) -> Dataset:
    if suite.dataset.files:
        return open_dataset(suite.dataset)
    document = read_document(suite.file)
    written = rewrite_suite(document.data).written
    return open_dataset(suite.dataset, position_of=lambda path: document.position(written(path)))
