"""The values of the parameters of a target's function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gradeline.usercode.function_calls import PARAMETER_NAMES, ParameterError, read_parameters

VALUES = {name: name.upper() for name in PARAMETER_NAMES}


def called(function: Callable[..., Any]) -> Any:
    return read_parameters(function).call(function, VALUES)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda question: question, "INPUT"),
        (lambda input: input, "INPUT"),  # noqa: A006
        (lambda text="": text, "INPUT"),
        (lambda *texts: texts, ("INPUT",)),
        (lambda question, top_k=5: (question, top_k), ("INPUT", 5)),
        (lambda sample: sample, "SAMPLE"),
        (lambda sample, temperature=0.2: (sample, temperature), ("SAMPLE", 0.2)),
        (lambda sample, text: (sample, text), ("SAMPLE", "INPUT")),
        (lambda model, text: (model, text), ("MODEL", "INPUT")),
        (lambda messages, session: (messages, session), ("MESSAGES", "SESSION")),
        (lambda session, text="": (session, text), ("SESSION", "INPUT")),
        (lambda text, k=1, session=None: (text, k, session), ("INPUT", 1, "SESSION")),
        (lambda *, session, input: (session, input), ("SESSION", "INPUT")),  # noqa: A006
        (lambda text, /, k=1, *, model: (text, k, model), ("INPUT", 1, "MODEL")),
        (lambda k=1, sample=None, /: (k, sample), (1, "SAMPLE")),
        (lambda text, **others: (text, others), ("INPUT", {})),
        (partial(lambda text, extra: (text, extra), extra="!"), ("INPUT", "!")),
        (partial(lambda first, text: (first, text), "bound"), ("bound", "INPUT")),
        (str.lower, "input"),
    ],
)
def test_parameters_get_what_they_name_and_the_first_other_one_the_text(function: Callable[..., Any], got: Any) -> None:
    assert called(function) == got


def test_methods_and_callable_objects_work() -> None:
    class Agent:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, messages: Any) -> Any:
            return messages

        def answer(self, text: str, session: Any) -> Any:
            return text, session

    assert called(Agent()) == "MESSAGES"
    assert called(Agent().answer) == ("INPUT", "SESSION")


@pytest.mark.parametrize(
    ("function", "by_turn"),
    [
        (lambda text: text, True),
        (lambda messages: messages, True),
        (lambda sample: sample, False),
        (lambda sample, model: model, False),
        (lambda sample, session: sample, True),
        (lambda sample, messages: sample, True),
        (lambda sample, text: sample, True),
    ],
)
def test_only_a_function_of_the_whole_sample_is_called_once(function: Callable[..., Any], by_turn: bool) -> None:
    assert read_parameters(function).by_turn is by_turn


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: "", "takes no input; give it a parameter for the user's text, such as def answer(input)"),
        (lambda **values: "", "takes no input"),
        (lambda session, model: "", "takes no input"),
        (lambda text, message: "", "takes the parameter 'message', which gets no value; did you mean 'messages'?"),
        (lambda text, context: "", "takes the parameter 'context', which gets no value; give it a default, or one of"),
        (lambda text, *, sesion: "", "did you mean 'session'?"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_with_the_remedy(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(ParameterError) as caught:
        read_parameters(function)
    assert reason in str(caught.value)
