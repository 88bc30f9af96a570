"""A judge model that errs on purpose, in known ways. It serves the formats of OpenAI, Anthropic and Gemini.

    async with FakeJudge("position,b=0.3", seed=7, items={"17-a": Truth(quality=0.9)}) as judge:
        await ask(judge.base_url(), prompt_with(with_mark(answer, "17-a")))
        judge.decisions[0].true_winner

Its behaviour is that of the server; the path (``judge.base_url("fenced")``), the model's name
(``fake-judge/position?b=0.3``, or ``fake-judge/position,b=0.3`` inside a URL) and rules override it, in this order. The
names are those of `behaviour_names`, and can be combined: ``position,b=0.3+fenced,rate=0.5``.

All random choices derive from the seed and the question: any server with the same seed gives the same verdict on the
same question, and `predict` computes it in advance. The nonce of a fence does not change the question.
``GET /fake/counts`` returns what a server received, ``GET /fake/decisions`` its verdicts and the true values.

Two faults need no server: a host name that does not resolve (``judge.invalid``), and a TLS failure (this address with
``https``).

``python -m gradeline.testing.fake_judge --port 0 --seed 7 --behaviour '{"accuracy": 0.9}'`` serves the same and prints
its address.
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
