import json

from letta_evals.decorators import grader
from letta_evals.models import GradeResult, Sample

@grader
def appropriate_length(sample: Sample, submission: str) -> GradeResult:
    """Check if response length is within expected range."""
    min_len = 50
    max_len = 500
    length = len(submission)

    if min_len <= length <= max_len:
        score = 1.0
        rationale = f"Length {length} is appropriate"
    elif length < min_len:
        score = max(0.0, length / min_len)
        rationale = f"Too short: {length} chars (min {min_len})"
    else:
        score = max(0.0, 1.0 - (length - max_len) / max_len)
        rationale = f"Too long: {length} chars (max {max_len})"

    return GradeResult(score=score, rationale=rationale)


@grader
def keyword_coverage(sample: Sample, submission: str) -> GradeResult:
    """Check what percentage of required keywords are present."""
    keywords = sample.ground_truth.split(",")
    submission_lower = submission.lower()

    found = [kw for kw in keywords if kw.lower() in submission_lower]
    score = len(found) / len(keywords) if keywords else 0.0

    return GradeResult(
        score=score,
        rationale=f"Found {len(found)}/{len(keywords)} keywords: {', '.join(found)}",
        metadata={"found": found, "missing": list(set(keywords) - set(found))}
    )


@grader
def correct_tool_arguments(sample: Sample, submission: str) -> GradeResult:
    """Validate tool was called with correct arguments."""
    try:
        args = json.loads(submission)
    except json.JSONDecodeError:
        return GradeResult(score=0.0, rationale="No valid tool call found")

    expected_tool = sample.metadata.get("expected_tool")
    if args.get("tool_name") != expected_tool:
        return GradeResult(
            score=0.0,
            rationale=f"Wrong tool: expected {expected_tool}, got {args.get('tool_name')}"
        )

    # Check arguments
    expected_args = json.loads(sample.ground_truth)
    matches = all(args.get(k) == v for k, v in expected_args.items())

    if matches:
        return GradeResult(score=1.0, rationale="Tool called with correct arguments")
    else:
        return GradeResult(score=0.5, rationale="Tool correct but arguments differ")


@grader
def numeric_range(sample: Sample, submission: str) -> GradeResult:
    """Check if extracted number is within expected range."""
    try:
        value = float(submission.strip())
        min_val, max_val = map(float, sample.ground_truth.split(","))

        if min_val <= value <= max_val:
            return GradeResult(
                score=1.0,
                rationale=f"Value {value} is within range [{min_val}, {max_val}]"
            )
        else:
            # Partial credit based on distance
            if value < min_val:
                distance = min_val - value
            else:
                distance = value - max_val

            score = max(0.0, 1.0 - (distance / max_val))
            return GradeResult(
                score=score,
                rationale=f"Value {value} outside range [{min_val}, {max_val}]"
            )

    except ValueError as e:
        return GradeResult(score=0.0, rationale=f"Invalid numeric value: {e}")


@grader
def comprehensive_check(sample: Sample, submission: str) -> GradeResult:
    """Multiple checks with weighted scoring."""
    points = 0.0
    issues = []

    # Check 1: Contains answer (40%)
    if sample.ground_truth.lower() in submission.lower():
        points += 0.4
    else:
        issues.append("Missing expected answer")

    # Check 2: Appropriate length (20%)
    if 100 <= len(submission) <= 500:
        points += 0.2
    else:
        issues.append(f"Length {len(submission)} not in range [100, 500]")

    # Check 3: Starts with capital letter (10%)
    if submission and submission[0].isupper():
        points += 0.1
    else:
        issues.append("Doesn't start with capital letter")

    # Check 4: Ends with punctuation (10%)
    if submission and submission[-1] in ".!?":
        points += 0.1
    else:
        issues.append("Doesn't end with punctuation")

    # Check 5: No profanity (20%)
    profanity = ["badword1", "badword2"]
    if not any(word in submission.lower() for word in profanity):
        points += 0.2
    else:
        issues.append("Contains inappropriate language")

    rationale = f"Score: {points:.2f}. " + (
        "All checks passed!" if not issues else f"Issues: {'; '.join(issues)}"
    )

    return GradeResult(
        score=points,
        rationale=rationale,
        metadata={"issues": issues}
    )
