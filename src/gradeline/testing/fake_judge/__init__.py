"""A judge model that errs on purpose, in known ways: it speaks OpenAI's formats, Anthropic's and Gemini's.

    async with FakeJudge("position,b=0.3", seed=7, items={"17-a": Truth(quality=0.9)}) as judge:
        await ask(judge.base_url(), prompt_with(with_mark(answer, "17-a")))
        judge.decisions[0].true_winner

How it behaves is said by the server, over that by the path (``judge.base_url("fenced")``), over that by the
model's name (``fake-judge/position?b=0.3``, or ``fake-judge/position,b=0.3`` where a URL must hold it), over
that by rules. The names are those of `behaviour_names`, and may be added up: ``position,b=0.3+fenced,rate=0.5``.

Every choice is drawn from the seed and the question, so that the same question gets the same verdict from any
server with that seed, and `predict` knows it beforehand. A fence's nonce makes no new question.
``GET /fake/counts`` tells what a server saw, ``GET /fake/decisions`` what it said and what is true.

Two faults need no server: a host name that does not resolve (``judge.invalid``), and TLS that fails
(this address with ``https``).

``python -m gradeline.testing.fake_judge --port 0 --seed 7 --behaviour '{"accuracy": 0.9}'`` serves the same and
prints its address.
"""

from gradeline.testing.fake_judge.behaviours import Behaviour, behaviour_names, read_behaviour
from gradeline.testing.fake_judge.replies import Decision, predict, predict_fault
from gradeline.testing.fake_judge.server import BehaviourRule, FakeJudge, RequestCounts, SeenRequest, load_script
from gradeline.testing.fake_judge.verdicts import Truth, read_truths, with_mark

__all__ = [
    "Behaviour",
    "BehaviourRule",
    "Decision",
    "FakeJudge",
    "RequestCounts",
    "SeenRequest",
    "Truth",
    "behaviour_names",
    "load_script",
    "predict",
    "predict_fault",
    "read_behaviour",
    "read_truths",
    "with_mark",
]
