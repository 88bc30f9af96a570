from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from msgspec import Meta

from gradeline.errors import Problem
from gradeline.model import Config, config_schema, described, read_struct


class Oven(Config, frozen=True):
    heat: Annotated[int, described("Degrees.", ge=0, le=300)]
    mode: Annotated[Literal["fan", "grill"], described("How it heats.")] = "fan"
    racks: Annotated[list[str], described("What stands where.")] = []
    names: list[str] | Annotated[int, Meta(ge=0)] = 0

    def faults(self) -> Iterator[Problem]:
        if self.mode == "grill" and self.heat < 200:
            yield Problem("heat", "is too low to grill")


def problems(data: Any) -> list[str]:
    reading = read_struct(Oven, data)
    return [str(problem) for problem in (*reading.problems, *reading.unknown)]


def test_valid_options_are_read_with_defaults() -> None:
    assert read_struct(Oven, {"heat": 180, "x-note": "mine"}) == (Oven(heat=180), [], [])


def test_every_problem_is_named_at_once() -> None:
    assert problems({"heat": 301, "mode": "gril", "racks": ["a", 3], "modus": 1}) == [
        "config.heat: expected int <= 300, got 301",
        "config.mode: expected one of fan, grill (did you mean 'grill'?), got 'gril'",
        "config.racks[1]: expected str, got ['a', 3]",
        "config.modus: unknown option; did you mean 'mode'?",
    ]


def test_invalid_options_fall_back_and_a_required_one_gives_no_config() -> None:
    assert read_struct(Oven, {"heat": 100, "mode": 3}).options == Oven(heat=100)
    assert read_struct(Oven, {"mode": "fan"}).options is None
    assert problems({}) == ["config.heat: is required"]


def test_problems_between_options_are_named() -> None:
    assert problems({"heat": 100, "mode": "grill"}) == ["config.heat: is too low to grill"]


@pytest.mark.parametrize("data", [None, 3, "heat: 3", ["heat"]])
def test_a_config_that_is_not_a_mapping_is_refused(data: Any) -> None:
    assert problems(data)[0].startswith("config: expected a mapping, got ")


def test_too_deeply_nested_values_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert len(problems({"heat": 1, "racks": deep})) == 1


def test_the_schema_agrees_with_the_reader() -> None:
    schema = config_schema(Oven)
    assert schema["required"] == ["heat"]
    assert schema["properties"]["heat"] == {
        "description": "Degrees.",
        "type": "integer",
        "minimum": 0,
        "maximum": 300,
    }
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid({"heat": 1, "x-note": 1})
    assert not validator.is_valid({"heat": 1, "note": 1})


@pytest.mark.slow
def test_repeated_reading_does_not_corrupt_the_interpreter() -> None:
    # msgspec 0.22 crashes in the collector when it forgets some types; see `_Field.holder`
    for index in range(2_000):
        read_struct(Oven, {"heat": 1, "names": ["a"], "mode": "x"})
        if index % 100 == 0:
            gc.collect()
