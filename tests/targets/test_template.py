from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.model import Sample
from gradeline.targets.template import JsonAroundInput, PlaceholderValues, fill, write_json

TEXTS = st.text(st.characters(), max_size=20)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.sampled_from(["{{input}}", "{{ input }}", "{{model}}", "Q: {{input}}\n{{model}}{{input}}", '"{{input}}"']),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3))
)


def asked(tree: object, turn: str, model: str | None) -> bytes:
    return write_json(fill(tree, PlaceholderValues(Sample(id="1", input=turn), turn, model=model))).encode()


@given(tree=TREES, turn=TEXTS, model=st.one_of(st.none(), TEXTS))
def test_json_written_around_the_input_equals_the_filled_tree(tree: Any, turn: str, model: str | None) -> None:
    around = JsonAroundInput.of({"body": tree}, model)
    assert around is not None
    assert around.fill(turn) == asked({"body": tree}, turn, model)


@pytest.mark.parametrize("turn", ["", '"\\', "{{input}}", "\ude00 \ud83d", "\x00\u2028é😀"])
def test_any_input_is_escaped(turn: str) -> None:
    tree = {"whole": "{{input}}", "part": ["\ud83d{{input}}!"], "{{input}}": 1}
    around = JsonAroundInput.of(tree, None)
    assert around is not None
    assert around.fill(turn) == asked(tree, turn, None)


@pytest.mark.parametrize("leaf", ["{{id}}", "of {{metadata.town}}", "{{session}}", float("nan"), {1, 2}])
def test_a_tree_with_other_placeholders_is_not_prepared(leaf: object) -> None:
    assert JsonAroundInput.of({"input": "{{input}}", "more": [leaf]}, "large") is None
