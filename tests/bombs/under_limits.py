"""Evaluates the corpus in one process with a memory and a CPU limit, and prints what became of each as JSON.

    python tests/bombs/under_limits.py graders|extractors|answers [deadline]

The limits are the assertion: a bomb that goes off here ends this process. Workers have limits of their own.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from corpus import AnswerBomb, GraderBomb, answer_bombs, grader_bombs, path_bombs

from gradeline import GradeContext, Sample, extractors, graders
from gradeline.errors import AgentError, GraderError
from gradeline.targets.answer import AnswerReader, ResponseMap, parse
from gradeline.targets.answer_values import with_workers
from gradeline.usercode import pools

MEMORY = 1536 * 1024**2
CPU_S = 60


def graded(bomb: GraderBomb) -> str:
    ctx = GradeContext(Sample(id=0, input="", ground_truth=bomb.expected), bomb.submission)
    grade = graders.run_grader(graders.create(bomb.kind, bomb.config), ctx)
    return grade.outcome.value if grade.error is None else grade.error.type


def extracted(bomb: tuple[str, str, str]) -> str:
    _, path, text = bomb
    try:
        return "found" if extractors.extract("json", text, {"path": path}) else "nothing"
    except GraderError as error:
        return error.type


def answered(bomb: AnswerBomb) -> str:
    reader = AnswerReader(ResponseMap(**bomb.response))
    try:
        asyncio.run(with_workers(lambda: reader.read(parse(bomb.body))))
    except AgentError as error:
        return error.type
    return "read"


def main(what: str, deadline: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    pools.DEADLINE_S = deadline
    with ThreadPoolExecutor(4) as threads:
        if what == "graders":
            bombs = grader_bombs()
            found = dict(zip([bomb.name for bomb in bombs], threads.map(graded, bombs), strict=True))
        elif what == "extractors":
            paths = path_bombs()
            found = dict(zip([name for name, _, _ in paths], threads.map(extracted, paths), strict=True))
        else:
            answers = answer_bombs()
            found = dict(zip([bomb.name for bomb in answers], threads.map(answered, answers), strict=True))
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else pools.DEADLINE_S)
