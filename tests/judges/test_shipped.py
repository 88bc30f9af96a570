"""The rubrics of the package: named, versioned, complete, and never changed."""

from __future__ import annotations

import pytest

from gradeline.errors import ConfigError
from gradeline.graders import registry
from gradeline.judges.prompts import (
    RESERVED,
    ShippedRubric,
    doubled,
    placeholders,
    shipped_rubric,
    shipped_rubrics,
    shows_case,
)
from gradeline.model import fingerprint

ALL = shipped_rubrics()

DIGESTS = {
    "answer_relevance@1": "0cafa374159f1858626c0c18c9d02781",
    "context_recall@1": "487950f222a277980eab7405dff6c4c7",
    "context_relevance@1": "88f14f10bdb016388ffb5a5201e07963",
    "faithfulness@2": "4862e38d36c9a1dffb231d48a88abcb8",
    "closed_qa@1": "2b1230148fea33bc4f06ee4cb676aab1",
    "factuality@1": "6566d6f3f9056954d1d2689aab3ae3ca",
    "faithfulness@1": "82f6695b514923feb8f769a229ebc8a7",
    "helpfulness@1": "4e4f7b9633f7ccdc7eccf6f21179859b",
    "refusal@1": "df2d9e77f26d1abd326bce7d7ecbb585",
    "summary_quality@1": "a74de7c0df18429d3517e631f50f3dab",
}
"""A version that was released does not change: write the new wording into a file of the next version."""


def test_no_released_version_has_changed() -> None:
    found = {
        rubric.id: fingerprint(rubric.text, rubric.needs, rubric.checklist, rubric.pass_threshold)
        if rubric.statements is None
        else fingerprint(rubric.text, rubric.needs, rubric.statements, rubric.pass_threshold)
        for rubric in ALL
    }
    assert found == DIGESTS


@pytest.mark.parametrize("rubric", ALL, ids=lambda rubric: rubric.id)
class TestEveryShippedRubric:
    def test_it_shows_the_case_and_has_rules(self, rubric: ShippedRubric) -> None:
        assert shows_case(rubric.text)
        assert doubled(rubric.text) == []
        assert "\nRules\n1. " in rubric.text

    def test_it_mentions_the_fields_it_requires(self, rubric: ShippedRubric) -> None:
        spoken = placeholders(rubric.text)
        assert ("submission" in rubric.needs) is rubric.shows_submission
        assert set(rubric.needs) <= set(spoken)
        assert set(spoken) - set(rubric.needs) <= set(RESERVED), "what is not the case's own must be needed"

    def test_it_has_a_scale_or_a_checklist_or_statements(self, rubric: ShippedRubric) -> None:
        has_scale = "\nScale\n- 1.0: " in rubric.text
        assert [has_scale, bool(rubric.checklist), rubric.statements is not None].count(True) == 1
        assert 0 < rubric.pass_threshold <= 1


def test_the_listing_names_them_all() -> None:
    (entry,) = [entry for entry in registry.list() if entry["id"] == "model_judge"]
    reason = entry["config_schema"]["properties"]["rubric"]["description"]
    assert [rubric.name for rubric in ALL if rubric.name not in reason] == []


def test_a_name_means_its_newest_version() -> None:
    assert shipped_rubric("factuality") == shipped_rubric("factuality@1")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("factualty", "no shipped rubric named 'factualty'; did you mean 'factuality'?"),
        ("factuality@9", "no rubric 'factuality@9'; available: factuality@1"),
        ("factuality@new", "no rubric 'factuality@new'; available: factuality@1"),
    ],
)
def test_an_unknown_name_is_refused(wanted: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shipped_rubric(wanted)
    assert [tuple(problem) for problem in caught.value.problems] == [("rubric", message)]
