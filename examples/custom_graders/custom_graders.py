# custom_graders.py
import json
from letta_evals.decorators import grader
from letta_evals.models import GradeResult, Sample

@grader
def json_field_validator(sample: Sample, submission: str) -> GradeResult:
    """Validates JSON and checks for required fields."""
    required_fields = sample.ground_truth.split(",")  # e.g., "name,age,email"

    try:
        data = json.loads(submission)
    except json.JSONDecodeError as e:
        return GradeResult(
            score=0.0,
            rationale=f"Invalid JSON: {e}",
            metadata={"error": "json_decode"}
        )

    missing = [f for f in required_fields if f not in data]

    if missing:
        score = 1.0 - (len(missing) / len(required_fields))
        return GradeResult(
            score=score,
            rationale=f"Missing fields: {', '.join(missing)}",
            metadata={"missing_fields": missing}
        )

    return GradeResult(
        score=1.0,
        rationale="All required fields present",
        metadata={"fields_found": required_fields}
    )
