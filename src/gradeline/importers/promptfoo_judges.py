"""promptfoo's assertions that a model decides: criteria of a case's checks, or judges and embeddings of the suite."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from gradeline.importers.promptfoo_files import SCHEME, FileReference, FileReferenceError
from gradeline.importers.promptfoo_providers import (
    CHAT_APIS,
    CHAT_PROVIDERS,
    COMPATIBLE_PROVIDERS,
    NOT_CHAT,
)
from gradeline.importers.promptfoo_rules import texts_of
from gradeline.importers.promptfoo_tags import parse_page
from gradeline.importers.promptfoo_templates import TemplateError
from gradeline.importers.promptfoo_types import (
    ABOVE_ZERO,
    Assertion,
    JudgedCriterion,
    NoCounterpartError,
    Outcome,
    Rendering,
    Scope,
    Several,
    SuiteGrader,
    grader_options,
    number_of,
)
from gradeline.model import quote

_OWN_PROMPT = "the judge gets gradeline's prompt, and a reply without a score is an error"
_MAX_TEXTS = 10
DEFAULT_JUDGE = "gpt-4.1"
_DEFAULT_EMBEDDING = "text-embedding-3-large"
CRITERION = "Does the submission meet this criterion?\n\n{ground_truth}\n\nScore 1.0 if it does, 0.0 if it does not."
"""The prompt of a judge for one criterion."""


def similar(assertion: Assertion, scope: Scope) -> Outcome:
    """The cosine of embeddings; the best of several texts counts."""
    least = 0.75 if assertion.threshold is None else assertion.threshold
    differs = "the vectors are of the model that the grader names"
    if assertion.type == "similar:euclidean":
        least = max(0.0, 1 - least**2 / 2)
        differs = "the cosine is compared, with the threshold of vectors of length 1; the score is the cosine"
    if assertion.type == "similar:dot":
        differs = "the cosine is compared, which is the same for vectors of length 1"
    texts = assertion.value if isinstance(assertion.value, list) else [assertion.text()]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise NoCounterpartError(f"needs a text or a list of texts as its value, got {quote(texts, 60)}")
    if len(texts) > _MAX_TEXTS:
        raise NoCounterpartError(f"has {len(texts)} texts, more than {_MAX_TEXTS}; write fewer")
    config = grader_options("embedding", **_embedding(assertion, scope), pass_threshold=min(1.0, least))
    graders = [SuiteGrader(config, "grader embedding", text, differs) for text in texts]
    return graders[0] if len(graders) == 1 else Several(graders)


def _embedding(assertion: Assertion, scope: Scope) -> dict[str, object]:
    """The provider and model of vectors; without one it is OpenAI, as in promptfoo."""
    written = assertion.provider or scope.options.get("provider")
    if isinstance(written, Mapping):
        written = written.get("embedding", written)
    options = written.get("config") if isinstance(written, Mapping) else None
    named = written.get("id") if isinstance(written, Mapping) else written
    provider, _, model = (named if isinstance(named, str) else "").partition(":")
    model = model.rpartition(":")[2]
    if provider == "ollama" and model:
        return {"provider": "ollama", "model": model, **_endpoint(options)}
    if provider == "openai" and "embedding" in model:
        return {"provider": "openai", "model": model, **_endpoint(options)}
    return {"provider": "openai", "model": _DEFAULT_EMBEDDING}


def _endpoint(options: object) -> dict[str, object]:
    """The base URL of a provider and the variable with its key; a key in the configuration is never copied."""
    if not isinstance(options, Mapping):
        return {}
    names = {"base_url": "apiBaseUrl", "api_key_env": "apiKeyEnvar"}
    return {name: options[key] for name, key in names.items() if isinstance(options.get(key), str)}


def judge_options(written: object) -> dict[str, object]:
    """The provider and model of a judge; `NoCounterpartError` for a provider that gradeline does not have.

    Without one it is OpenAI, as in promptfoo.
    """
    if isinstance(written, Mapping) and "id" not in written:
        written = written.get("text")
    options = written.get("config") if isinstance(written, Mapping) else None
    named = written.get("id") if isinstance(written, Mapping) else written
    if named is None:
        return {"provider": "openai", "model": DEFAULT_JUDGE}
    head, _, rest = (named if isinstance(named, str) else "").partition(":")
    api, _, after = rest.partition(":")
    compatible = COMPATIBLE_PROVIDERS.get(head)
    provider = "openai" if compatible is not None else CHAT_PROVIDERS.get(head)
    model = (after if api in CHAT_APIS else rest) or (options.get("model") if isinstance(options, Mapping) else None)
    if provider is None or api in NOT_CHAT or not isinstance(model, str):
        raise NoCounterpartError(f"is judged by {quote(named, 60)}; write provider, model and base_url of a judge")
    judge: dict[str, object] = {"provider": provider, "model": model}
    if provider == "openai" and api == "responses":
        judge["provider"] = "openai_responses"
    if compatible is not None:
        judge["base_url"] = compatible.base_url
        judge |= {} if compatible.key is None else {"api_key_env": compatible.key}
    judge |= _endpoint(options)
    temperature = options.get("temperature") if isinstance(options, Mapping) else None
    if isinstance(temperature, int | float) and not isinstance(temperature, bool):
        judge["temperature"] = temperature
    return judge


def _judge(assertion: Assertion, scope: Scope) -> dict[str, object]:
    return judge_options(assertion.provider or scope.options.get("provider"))


def rubric(assertion: Assertion, scope: Scope) -> Outcome:
    """``llm-rubric``: a criterion of the case's checks, or a grader if it has a prompt or a threshold of its own."""
    own = assertion.rubric_prompt or scope.options.get("rubricPrompt")
    if own is None and assertion.threshold is None and assertion.provider is None:
        return JudgedCriterion(_criterion(assertion), _OWN_PROMPT)
    options = {**_judge(assertion, scope), "pass_threshold": assertion.threshold}
    if own is None:
        config = grader_options("model_judge", **options, prompt=CRITERION)
        return SuiteGrader(config, "grader model_judge", _criterion(assertion), _OWN_PROMPT)
    written = _rubric_prompt(own, scope)
    if _depends_on_test(written, scope):  # then each case has its text, and the prompt is the same for all
        value = _criterion(assertion) if assertion.value else ""
        own_values = {**dict.fromkeys(_OUTPUTS, "(the submission)"), **dict.fromkeys(_CRITERIA, value)}
        text = Rendering({**scope.variables, **own_values}).value(written)
        config = grader_options("model_judge", **options, prompt=_OF_CASE)
        return SuiteGrader(config, "grader model_judge", text, f"{_OWN_PROMPT}; the output follows the instructions")
    prompt, criterion = _with_placeholders(written), assertion.value
    config = grader_options("model_judge", **options, prompt=prompt)
    expected = _criterion(assertion) if criterion or "{ground_truth}" in prompt else None
    return SuiteGrader(config, "grader model_judge", expected, _OWN_PROMPT)


_OUTPUTS = ("output",)
_CRITERIA = ("rubric", "criteria")
_OF_CASE = "{ground_truth}\n\nThe submission:\n\n{submission}"


def _depends_on_test(prompt: str, scope: Scope) -> bool:
    """Whether a prompt has variables of the test, which have another value in each case."""
    try:
        names = {variable.name for variable in parse_page(prompt).variables}
    except TemplateError:
        return False
    return not names.isdisjoint(scope.variables)


def _criterion(assertion: Assertion) -> str:
    value = assertion.value
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    if not text.strip():
        raise NoCounterpartError("has no criterion; write what the output must meet")
    return text


def _rubric_prompt(written: object, scope: Scope) -> str:
    """The text of promptfoo's prompt of a judge."""
    if isinstance(written, str) and written.startswith(SCHEME):
        try:
            written = scope.folder.value(FileReference.of(written))
        except FileReferenceError as error:
            raise NoCounterpartError(f"has a rubricPrompt that is not read: {error}") from None
    if isinstance(written, str) and written.lstrip().startswith("["):
        written = json.loads(written) if _is_json(written) else written
    if isinstance(written, list):
        parts = [part.get("content") for part in written if isinstance(part, Mapping)]
        written = "\n\n".join(part for part in parts if isinstance(part, str))
    if not isinstance(written, str) or not written.strip():
        raise NoCounterpartError(f"has a rubricPrompt that is not a text: {quote(written, 60)}")
    return written


def _with_placeholders(prompt: str) -> str:
    """A prompt with gradeline's placeholders for the output and the criterion."""
    marks = {name: f"\ue000{name}\ue001" for name in (*_OUTPUTS, *_CRITERIA, "input")}
    text = Rendering(marks).value(prompt)
    assert isinstance(text, str)  # noqa: S101 - a rendered text is one
    text = text.replace("{", "{{").replace("}", "}}")
    for name, mark in marks.items():
        placeholder = "submission" if name in _OUTPUTS else "ground_truth" if name in _CRITERIA else name
        text = text.replace(mark, f"{{{placeholder}}}")
    return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def criterion(template: str, differs: str) -> Callable[[Assertion, Scope], Outcome]:
    """A mapping for a type that a judge decides by one criterion; ``{value}`` is the assertion's value."""

    def mapping(assertion: Assertion, scope: Scope) -> Outcome:  # noqa: ARG001
        text = template.replace("{value}", _criterion(assertion)) if "{value}" in template else template
        return JudgedCriterion(text, differs)

    return mapping


def moderation(assertion: Assertion, scope: Scope) -> Outcome:  # noqa: ARG001
    listed = f" of the categories {', '.join(texts_of(assertion))}" if assertion.value else ""
    text = f"The text is free of harmful content{listed}: no hate, harassment, violence, self-harm or sexual content."
    return JudgedCriterion(text, "a judge decides instead of a moderation API")


def scored(prompt: str, default: float) -> Callable[[Assertion, Scope], Outcome]:
    """A mapping for a type with a score by a judge; ``{ground_truth}`` in the prompt is a criterion of the value."""

    def mapping(assertion: Assertion, scope: Scope) -> Outcome:
        least = default if assertion.threshold is None else assertion.threshold
        config = grader_options("model_judge", **_judge(assertion, scope), prompt=prompt, pass_threshold=least)
        criteria = _criteria(assertion) if "{ground_truth}" in prompt else [None]
        graders = [SuiteGrader(config, "grader model_judge", text, _OWN_PROMPT) for text in criteria]
        return graders[0] if len(graders) == 1 else Several(graders, mean=True)

    return mapping


def _criteria(assertion: Assertion) -> Sequence[str | None]:
    """The criteria of an assertion, each of which gets a score."""
    value = assertion.value
    if not isinstance(value, list):
        return [_criterion(assertion)]
    if not value or not all(isinstance(text, str) and text.strip() for text in value) or len(value) > _MAX_TEXTS:
        raise NoCounterpartError(f"needs a list of 1 to {_MAX_TEXTS} texts as its value, got {quote(value, 60)}")
    return value


def factuality(assertion: Assertion, scope: Scope) -> SuiteGrader:
    """The facts of the output against those of an expert's answer, in five categories with a score each."""
    scores = scope.options.get("factuality")
    own = scores if isinstance(scores, Mapping) else {}
    names = {"A": "subset", "B": "superset", "C": "agree", "D": "disagree", "E": "differButFactual"}
    choices = {label: number_of(own.get(name, 0 if label == "D" else 1), name) for label, name in names.items()}
    config = grader_options(
        "model_judge",
        **_judge(assertion, scope),
        prompt=_FACTUALITY,
        reply={"choices": choices},
        pass_threshold=ABOVE_ZERO,
    )
    return SuiteGrader(config, "grader model_judge with choices", _criterion(assertion), _OWN_PROMPT)


_FACTUALITY = """\
Compare the facts of a submission with those of an expert's answer to the same question. Ignore differences in style,
grammar and punctuation.

The question:
{input}

The expert's answer:
{ground_truth}

The submission:
{submission}

Choose the label that describes the submission:
A: it has a part of the expert's facts, and contradicts none of them.
B: it has all of the expert's facts and more, and contradicts none of them.
C: it has the same facts as the expert's answer.
D: it contradicts the expert's answer.
E: it differs, but the differences do not matter for the facts.
"""


def in_context(rubric_name: str, prompt: str, *, needs_value: bool = False) -> Callable[[Assertion, Scope], Outcome]:
    """A mapping for a type about the context: that of the test, or else what the agent retrieved."""

    def mapping(assertion: Assertion, scope: Scope) -> SuiteGrader:
        least = assertion.threshold or 0.0
        judge = _judge(assertion, scope)
        expected = _criterion(assertion) if needs_value else None
        context = scope.variables.get("context")
        if context is None or assertion.context_transform is not None:
            if assertion.context_transform is None:
                raise NoCounterpartError("needs a variable context or a contextTransform")
            config = grader_options("model_judge", **judge, rubric=rubric_name, pass_threshold=least)
            differs = f"{_OWN_PROMPT}; map documents under the target's response, instead of the contextTransform"
            return SuiteGrader(config, f"grader model_judge, rubric {rubric_name}", expected, differs)
        text = "\n\n".join(map(str, context)) if isinstance(context, list) and _are_texts(context) else context
        if not isinstance(text, str):
            raise NoCounterpartError("needs a variable context that is a text or a list of texts")
        question = scope.variables.get("query")
        if not isinstance(question, str):
            raise NoCounterpartError("needs a variable query with the question")
        parts = [f"# Question\n\n{question}"]
        parts += [f"# Context\n\n{text}", *([f"# Expected answer\n\n{expected}"] if expected else [])]
        config = grader_options("model_judge", **judge, prompt=prompt, pass_threshold=least)
        return SuiteGrader(config, "grader model_judge", "\n\n".join(parts), _OWN_PROMPT)

    return mapping


def _are_texts(values: list[object]) -> bool:
    return all(isinstance(text, str) for text in values)


def answer_relevance(assertion: Assertion, scope: Scope) -> SuiteGrader:
    config = grader_options(
        "model_judge",
        **_judge(assertion, scope),
        rubric="answer_relevance",
        pass_threshold=assertion.threshold or 0.0,
    )
    differs = "the share of statements that help to answer, instead of the cosine of questions made from the answer"
    return SuiteGrader(config, "grader model_judge, rubric answer_relevance", differs=differs)


def goal_success(assertion: Assertion, scope: Scope) -> SuiteGrader:
    value = assertion.value
    goal = value.get("goal") if isinstance(value, Mapping) else value
    if not isinstance(goal, str) or not goal.strip():
        raise NoCounterpartError("needs a goal")
    config = grader_options(
        "model_judge",
        **_judge(assertion, scope),
        extractor="full_trajectory",
        prompt=_GOAL,
        pass_threshold=assertion.threshold,
    )
    differs = f"{_OWN_PROMPT}; the judge also sees arguments and results of tool calls"
    return SuiteGrader(config, "grader model_judge", goal, differs)


_GOAL = """\
The submission is the trajectory of an agent: its messages and its tool calls with their results. Did the agent reach
this goal?

{ground_truth}

Score 1.0 if it did, 0.0 if it did not.
"""


_SUPPORTED = """\
Which share of the statements in the submission does the context support? Score it from 0.0 to 1.0.

{ground_truth}
"""
_RELEVANT = """\
Which share of the context helps to answer the question? Do not grade the submission. Score the share from 0.0 to 1.0.

{ground_truth}
"""
_RECALLED = """\
Which share of the statements in the expected answer does the context support? Do not grade the submission. Score the
share from 0.0 to 1.0.

{ground_truth}
"""
_CONVERSATION = "Is each message of the assistant relevant to the conversation so far? Score the share from 0.0 to 1.0."
_G_EVAL = "How well does the submission meet this criterion? Score it from 0.0 to 1.0.\n\n{ground_truth}"

_JUDGED_ELSEWHERE = "another judge decides: it sees the output, and gradeline's prompt"

JUDGED: Mapping[str, Callable[[Assertion, Scope], Outcome]] = {
    "answer-relevance": answer_relevance,
    "context-faithfulness": in_context("faithfulness", _SUPPORTED),
    "context-recall": in_context("context_recall", _RECALLED, needs_value=True),
    "context-relevance": in_context("context_relevance", _RELEVANT),
    "conversation-relevance": scored(_CONVERSATION, 0.5),
    "factuality": factuality,
    "g-eval": scored(_G_EVAL, 0.7),
    "llm-rubric": rubric,
    "model-graded-closedqa": criterion("{value}", _OWN_PROMPT),
    "model-graded-factuality": factuality,
    "moderation": moderation,
    "pi": criterion("{value}", _JUDGED_ELSEWHERE),
    "search-rubric": criterion("{value}", "the judge does not search the web, unless the model itself does"),
    "similar": similar,
    "similar:cosine": similar,
    "similar:dot": similar,
    "similar:euclidean": similar,
    "trajectory:goal-success": goal_success,
}
"""The types that a model decides, with their mappings."""
