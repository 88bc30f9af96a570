from __future__ import annotations

from gradeline.graders import create
from gradeline.model import GradeContext, Response, Sample, Trajectory
from gradeline.model.context import copy_context, copy_sample, is_own_class

SAMPLE = Sample(
    "a",
    ["one", "two"],
    ["1", "2"],
    {"nested": {"list": [1]}},
    rubric_vars={"tone": "kind"},
    tags=("x",),
    rubric="r",
    rubric_path="r.md",
)


def test_a_copy_is_equal_and_shares_no_container() -> None:
    copied = copy_sample(SAMPLE)
    assert copied == SAMPLE
    copied.metadata["nested"]["list"].append(2)
    copied.rubric_vars.clear()
    copied.agent_args["new"] = 1
    copied.extra_vars["new"] = 1
    assert isinstance(copied.input, list)
    assert isinstance(copied.ground_truth, list)
    copied.input.append("three")
    copied.ground_truth.append("3")
    assert SAMPLE.metadata == {"nested": {"list": [1]}}
    assert SAMPLE.rubric_vars == {"tone": "kind"}
    assert (SAMPLE.agent_args, SAMPLE.extra_vars) == ({}, {})
    assert (SAMPLE.input, SAMPLE.ground_truth) == (["one", "two"], ["1", "2"])


def test_a_context_is_copied_with_the_agents_memory() -> None:
    response = Response(text="a", trajectory=Trajectory(memory={"human": "Ann"}))
    copied = copy_context(GradeContext(SAMPLE, "a", response, response))
    for each in (copied.response, copied.baseline):
        assert each == response
        assert each is not None
        assert each.trajectory is not None
        assert each.trajectory.memory is not None
        each.trajectory.memory["human"] = "Bob"
    assert response.trajectory is not None
    assert response.trajectory.memory == {"human": "Ann"}


def test_only_classes_of_this_package_count_as_built_in() -> None:
    class Plugin:
        pass

    assert is_own_class(type(create("exact_match")))
    assert not is_own_class(Plugin)
