"""The files of a new suite for any agent: the suite itself, its cases and a custom grader.

In the suite, a ``#`` with a space after it starts a comment; one without disables an option, which works once the
``#`` is deleted.
"""

from __future__ import annotations

from gradeline.cli.starter.agents import KINDS, AgentChoice

SUITE = "suite.yaml"
CASES = "cases.jsonl"
_GRADERS_FILE = "graders.py"
ALWAYS = (SUITE, CASES, _GRADERS_FILE)
"""The files of every new suite; those of its agent are in addition."""
SCHEMA = "suite.schema.json"

_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA}
# With the line above your editor completes and checks this file. Delete the # before an option to use it.

name: capitals
#description: Questions about capitals.

# The cases, one JSON object per line; .csv, .json and .yaml files work too. Replace them with your own.
dataset: cases.jsonl
#max_samples: 2           # only the first two cases
#sample_tags: [europe]    # only the cases with this tag

"""

_GRADED = """\

# The graders of a response, under names of your choice. "gradeline graders" lists the kinds and their options.
graders:
  right:
    kind: string-match     # compares with the case's ground_truth
    mode: contains
    #case_sensitive: true
  rules:
    kind: custom-rules     # rules for every response
    rules:
      - {condition: not_contains, value: as an AI}
      - {condition: word_count_max, value: 50}
      #- {condition: starts_with, value: The capital}
  brief:
    kind: tool             # your own Python code
    function: graders.py:brief
  #similar: {kind: similarity, threshold: 0.5, extractor: first_assistant}
"""

_GATE = """\
# The rule a run must satisfy. Exit code 0: it does; 1: it does not; 3: too little was graded.
gate:
  kind: simple
  metric_key: right
  aggregation: accuracy    # share of the cases that pass; avg_score is the mean of their scores
  op: gte
  value: 0.75

#repeats: 3                # three calls per case
#concurrency: 4            # maximum calls in flight
#budget: {calls: 100}      # the run stops after this number of calls
#coverage_floor: 0.9       # share of the cases that must have a score (default 0.95)
"""

_CASES = """\
{"id": "france", "input": "What is the capital of France?", "ground_truth": "Paris", "tags": ["europe"]}
{"id": "spain", "input": "What is the capital of Spain?", "ground_truth": "Madrid", "tags": ["europe"]}
{"id": "peru", "input": "What is the capital of Peru?", "ground_truth": "Lima", "metadata": {"max_words": 8}}
{"id": "kenya", "input": "What is the capital of Kenya?", "ground_truth": "Nairobi"}
{"id": "sum", "input": "What is 19 + 23?", "ground_truth": "42"}
"""

_GRADERS = '''\
"""Custom graders; each returns a score from 0 to 1 and a rationale."""

from gradeline import GradeResult, Sample, grader


@grader
def brief(sample: Sample, submission: str) -> GradeResult:
    words = len(submission.split())
    most = sample.metadata.get("max_words", 20)
    return GradeResult(score=1.0 if words <= most else 0.0, rationale=f"{words} words, maximum {most}")
'''


def starter_files(choice: AgentChoice) -> dict[str, str]:
    """The files of a suite for this agent, by name, without the schema."""
    kind = KINDS[choice.kind]
    suite = _HEAD + kind.target(choice) + _GRADED + _judge(choice.kind) + _GATE
    return {SUITE: suite, CASES: _CASES, _GRADERS_FILE: _GRADERS, **kind.files(choice)}


def _judge(kind: str) -> str:
    # a judge favours the answers of its own family, so OpenAI's models get one of another
    model = "provider: anthropic, model: claude-haiku-5-5" if kind == "openai" else "model: gpt-6-luna"
    key = "ANTHROPIC_API_KEY" if kind == "openai" else "OPENAI_API_KEY"
    return f"""\
  # A model as the judge, for what no rule can check. It needs {key}, and each call costs money.
  #facts: {{kind: model_judge, {model}, rubric: factuality}}

"""
