from letta_evals import GradeResult, RewardOutput, Sample, grader, reward_composer


@grader
def mentions_answer(sample: Sample, submission: str) -> GradeResult:
    found = str(sample.ground_truth).lower() in submission.lower()
    return GradeResult(score=1.0 if found else 0.0, rationale="mentioned" if found else "not mentioned")


@reward_composer
def both(ctx) -> RewardOutput:
    score = min(grade.score for grade in ctx.grades.values())
    return RewardOutput(score=score, metadata={"turns": len(ctx.trajectory)})
