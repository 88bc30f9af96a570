"""The verdicts of the Berkeley function calling leaderboard on real outputs."""

from __future__ import annotations

import json
import re
from typing import Any

from gradeline.graders import create, run_grader
from gradeline.model import GradeContext, Sample

ALLOWED_DISAGREEMENTS = 2
SUFFIX = re.compile(r"[_ ]\d+$")


def test_the_preset_agrees_with_the_published_verdicts(shared_rows: Any) -> None:
    grader = create("tool_calls", {"preset": "bfcl"})
    samples = {row["item_id"]: as_sample(row) for row in shared_rows("bfcl/tests.jsonl")}
    total = 0
    disagreements = []
    for row in shared_rows("bfcl/predictions.jsonl"):
        grade = run_grader(grader, GradeContext(samples[row["item_id"]], as_submission(row)))
        total += 1
        if grade.passed is not row["valid"]:
            published = "valid" if row["valid"] else row["error_type"]
            found = grade.rationale if grade.error is None else grade.error.message
            disagreements.append(f"{row['item_id']} by {row['model']}: published {published}, found {found}")
    assert total > 1000
    assert len(disagreements) <= ALLOWED_DISAGREEMENTS, f"{len(disagreements)} of {total}:\n" + "\n".join(disagreements)


def as_sample(row: dict[str, Any]) -> Sample:
    functions = row["functions"]
    names = {function["name"] for function in (functions if isinstance(functions, list) else [functions])}
    calls = [
        # An allowed value that slipped out of its call (item parallel_multiple_function_179) counts as a call there.
        {"name": name if name in names else SUFFIX.sub("", name), "arguments": allowed if type(allowed) is dict else {}}
        for name, allowed in row["acceptable"].items()
    ]
    return Sample(
        id=row["item_id"],
        input=row["question"],
        ground_truth=json.dumps(calls),
        metadata={"functions": functions},
    )


def as_submission(row: dict[str, Any]) -> str:
    if row["calls"] is None:
        return str(row["raw_text"])
    return json.dumps([{"name": name, "arguments": given} for call in row["calls"] for name, given in call.items()])
