"""A stored run with a judge, for the tests of labels."""

from __future__ import annotations

from gradeline.model import ErrorInfo, Fault, Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.store.database import SharedStorage

JUDGE = RunGrader("model_judge", "f1", judges=("openai/judge",))
RULE = RunGrader("contains", "f2")


def judged_run(storage: SharedStorage, cases: int = 10, failing: int = 3, repeats: int = 1) -> Run:
    """A completed run of cases c0, c1, …: the judge fails the first ``failing`` of them, and the last call failed."""
    graders = {"quality": JUDGE, "right": RULE}
    run = storage.save_run(Run(name="judged", suite="s", graders=graders, repeats=repeats, status="running"))
    for number in range(cases):
        for repeat in range(repeats):
            key = ResponseKey(run, f"c{number}", repeat)
            sample = Sample(key.case, f"question {number}", f"expected {number}")
            storage.put_response(key, Response(text=f"answer {number}.{repeat}"), sample, number)
            passed = number >= failing
            outcome = Outcome.PASS if passed else Outcome.FAIL
            grade = Grade("model_judge", "f1", outcome, float(passed), passed, "the judge's secret reason")
            storage.put_grade(GradeKey(*key, "quality"), grade)
            storage.put_grade(GradeKey(*key, "right"), Grade("contains", "f2", Outcome.PASS, 1.0, True))
    failed = ErrorInfo("timeout", "too slow", Fault.AGENT)
    storage.put_response(
        ResponseKey(run, "failed"), Response(status="error", error=failed), Sample("failed", "q"), cases
    )
    return storage.update_run(run, status="completed")
