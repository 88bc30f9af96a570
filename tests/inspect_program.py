"""Inspect itself, as a process of its own: it takes over the event loop, the terminal and warnings.

``write FOLDER``: logs of scripted models. ``kill FOLDER``: the log of a run whose process dies. ``read FILE...``: prints
each log as Inspect reads it, as JSON. ``serve FOLDER``: prints what ``inspect view`` answers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from inspect_ai.log import (
    EvalSample,
    ProvenanceData,
    edit_score,
    list_eval_logs,
    read_eval_log,
    read_eval_log_sample_summaries,
    write_eval_log,
)
from inspect_ai.log._recorders.chunked.convert import convert_eval_logs_to_chunked
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    Model,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import (
    Score,
    ScoreEdit,
    Scorer,
    Target,
    accuracy,
    choice,
    includes,
    match,
    mean,
    model_graded_qa,
    scorer,
    stderr,
    value_to_float,
)
from inspect_ai.solver import Generate, Solver, TaskState, generate, multiple_choice, solver, use_tools
from inspect_ai.tool import Tool, ToolError, tool

LONG = "The longest answer of them all repeats itself. " * 60
CAPITALS = [
    Sample(id="france", input="What is the capital of France?", target="Paris", metadata={"area": "europe"}),
    Sample(id="peru", input="What is the capital of Peru?", target="Lima", metadata={"area": "america"}),
    Sample(id=3, input="What is the capital of Japan?", target=["Tokyo", "Edo"]),
]
WEAK = {"France": "Paris.", "Peru": "Cusco, I think.", "Japan": "It is Tokyo."}
STRONG = {**WEAK, "Peru": "Lima."}
VALUES: Mapping[str, Any] = {
    "correct": "C",
    "partial": "P",
    "incorrect": "I",
    "noanswer": "N",
    "true": True,
    "half": 0.5,
    "yes": "yes",
    "five": 5,
    "negative": -0.5,
    "word": "splendid",
    "list": [1, 0, 1],
    "refused": None,
}


def spoken(text: str) -> ModelOutput:
    output = ModelOutput.from_content("mockllm/scripted", text)
    output.usage = _usage()
    return output


def _usage() -> ModelUsage:
    return ModelUsage(
        input_tokens=10, output_tokens=3, total_tokens=18, input_tokens_cache_read=4, input_tokens_cache_write=1
    )


def scripted(answers: Mapping[str, str], name: str = "weak") -> Model:
    def answer(messages: list[ChatMessage], *_: object) -> ModelOutput:
        asked = " ".join(message.text for message in messages if message.role == "user")
        return spoken(next((text for word, text in answers.items() if word in asked), "I do not know."))

    return get_model(f"mockllm/{name}", custom_outputs=answer, memoize=False)


def calls_then_answers() -> Model:
    def answer(messages: list[ChatMessage], *_: object) -> ModelOutput:
        if messages[-1].role == "tool":
            return spoken(f"The tool answers: {messages[-1].text}")
        country = messages[0].text.removeprefix("Capital of ").removesuffix("?")
        output = ModelOutput.for_tool_call("mockllm/tools", "lookup", {"country": country}, content="I look it up.")
        output.usage = _usage()
        return output

    return get_model("mockllm/tools", custom_outputs=answer, memoize=False)


@tool
def lookup() -> Tool:
    async def execute(country: str) -> str:
        """Look up a capital.

        Args:
            country: The country.
        """
        if country == "Atlantis":
            raise ToolError("no such country")
        return {"France": "Paris", "Peru": "Lima"}[country]

    return execute


@scorer(metrics=[mean()])
def brief() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=1 / len(state.output.completion.split()), answer=state.output.completion)

    return score


@scorer(metrics={"style": [mean(), stderr()], "facts": [accuracy()]})
def rubric() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        right = target.text in state.output.completion
        return Score(value={"style": 0.25, "facts": "C" if right else "I"}, explanation="two parts")

    return score


@scorer(metrics=[mean()])
def listed() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        value = VALUES[str(state.sample_id)]
        if value is None:
            return Score.unscored(reason="refusal", explanation="the judge refused")
        return Score(value=value, explanation="as listed", metadata={"path": "x"})

    return score


@solver
def fails_for(name: str) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if state.sample_id == name:
            raise RuntimeError(f"the sandbox of {name} is gone")
        return await generate(state)

    return solve


@solver
def dies_at(name: str) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if str(state.sample_id) == name:
            os._exit(9)
        return await generate(state)

    return solve


@solver
def talks_on() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        for _ in range(5):
            state = await generate(state)
            state.messages.append(ChatMessageUser(content="And then?"))
        return state

    return solve


@solver
def reasons() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        parts = [ContentReasoning(reasoning="Which city?"), ContentText(text="It is "), ContentText(text=LONG)]
        message = ChatMessageAssistant(content=parts)
        state.messages.append(message)
        state.output = ModelOutput.from_message(message)
        return state

    return solve


def capitals(name: str, *, solver: Solver | None = None, **options: Any) -> Task:
    options = {"scorer": includes(), **options}
    return Task(dataset=CAPITALS, solver=solver or generate(), name=name, **options)


def tools() -> Task:
    samples = [Sample(id=name, input=f"Capital of {name}?", target="i") for name in ("France", "Peru", "Atlantis")]
    return Task(dataset=samples, solver=[use_tools(lookup()), generate()], scorer=match(location="any"), name="tools")


def chats() -> Task:
    turns = [ChatMessageSystem(content="Answer briefly."), ChatMessageUser(content="Capital of France?")]
    samples = [
        Sample(id="chat", input=turns, target="Paris", metadata={"long": LONG, "nested": {"a": [1, 2]}}),
        Sample(id="one/twoé", input=[ChatMessageUser(content=LONG)], target="It is"),
    ]
    return Task(dataset=samples, solver=reasons(), scorer=includes(), name="chats")


def options() -> Task:
    samples = [Sample(id="peru", input="Capital of Peru?", choices=["Quito", "Lima"], target="B")]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice(), name="options")


def values() -> Task:
    samples = [Sample(id=name, input=name, target="") for name in VALUES]
    return Task(dataset=samples, solver=generate(), scorer=listed(), name="values")


def judge() -> Model:
    def answer(messages: list[ChatMessage], *_: object) -> ModelOutput:
        return spoken("GRADE: I" if "Cusco" in messages[-1].text else "GRADE: C")

    return get_model("mockllm/judge", custom_outputs=answer, memoize=False)


def write(folder: Path) -> None:
    """Every log is named after what it shows."""
    raw = folder / "raw"

    def run(name: str, task: Task, model: Model, **settings: Any) -> None:
        (log,) = run_eval(task, model=model, log_dir=str(raw), display="none", **settings)
        Path(log.location.removeprefix("file://")).rename(folder / f"{name}.eval")

    weak = scripted(WEAK)
    both = [includes(), brief()]
    run("weak", capitals("capitals", scorer=both), weak)
    run("strong", capitals("capitals", scorer=both), scripted(STRONG, "strong"))
    run("epochs", capitals("epochs", epochs=3), weak)
    run("errors", capitals("errors", solver=fails_for("peru")), weak, fail_on_error=False)
    run("stopped", capitals("stopped", solver=fails_for("peru")), weak, max_samples=1)
    run("limits", capitals("limits", solver=talks_on()), weak, message_limit=4)
    run("tools", tools(), calls_then_answers())
    run("rubric", capitals("rubric", scorer=rubric()), weak)
    run("values", values(), weak)
    run(
        "judged", capitals("judged", scorer=model_graded_qa(model_role="grader")), weak, model_roles={"grader": judge()}
    )
    run("chats", chats(), weak)
    run("options", options(), scripted({"Peru": "ANSWER: B"}))
    for name in ("tools", "chats"):
        convert_eval_logs_to_chunked(
            str(folder / f"{name}.eval"), str(folder / "chunked"), chunk_size=1, attachments_chunk_bytes=100
        )
    log = read_eval_log(str(folder / "weak.eval"))
    write_eval_log(log, str(folder / "document.json"))
    by = ProvenanceData(author="ada", reason="history")
    edit_score(log, "peru", "includes", ScoreEdit(value="C", explanation="once the capital", provenance=by))
    write_eval_log(log, str(folder / "edited.eval"))


def kill(folder: Path) -> None:
    """The process dies in its third sample; the two before it are in the log."""
    task = capitals("killed", solver=dies_at("3"))
    run_eval(task, model=scripted(WEAK), log_dir=str(folder), display="none", max_samples=1, log_buffer=1)


def read(paths: list[str]) -> None:
    sys.stdout.write(json.dumps({path: log_data(path) for path in paths}))


def serve(folder: Path) -> None:
    """What the server of ``inspect view`` answers about the logs of a folder."""
    from fastapi.testclient import TestClient
    from inspect_ai._view.fastapi_server import view_server_app

    client = TestClient(view_server_app(default_dir=str(folder)))
    logs = client.get("/logs").raise_for_status().json()
    names = [log["name"] for log in logs["files"]]
    headers = client.get("/log-headers", params={"file": names}).raise_for_status().json()
    sys.stdout.write(json.dumps({"logs": logs, "headers": headers}))


def log_data(path: str) -> dict[str, Any]:
    """What Inspect reads in a log, and whether it lists the file."""
    log = read_eval_log(path, resolve_attachments=True)
    convert = value_to_float()
    summaries = read_eval_log_sample_summaries(path)

    def number(value: Any) -> Any:
        return {key: convert(one) for key, one in value.items()} if isinstance(value, Mapping) else convert(value)

    def sample_data(sample: EvalSample) -> dict[str, Any]:
        data = sample.model_dump(mode="json", include={"id", "epoch", "input", "target", "metadata", "error", "limit"})
        scores = sample.scores or {}
        judged = [usage for role, usage in sample.role_usage.items() if role == "grader"]
        return {
            **data,
            "completion": sample.output.completion,
            "scores": {name: number(score.value) for name, score in scores.items()},
            "raw_scores": {name: score.model_dump(mode="json") for name, score in scores.items()},
            "messages": [_message(message) for message in sample.messages],
            "tokens": [
                whole - part for whole, part in zip(_tokens(sample.model_usage.values()), _tokens(judged), strict=True)
            ],
        }

    listed_names = [Path(info.name).name for info in list_eval_logs(str(Path(path).parent))]
    return {
        "status": log.status,
        "task": log.eval.task,
        "model": log.eval.model,
        "header": log.model_dump(mode="json", exclude={"samples", "reductions"}),
        "samples": [sample_data(sample) for sample in log.samples or []],
        "summaries": [{"id": one.id, "epoch": one.epoch, "completed": one.completed} for one in summaries],
        "listed": Path(path).name in listed_names,
    }


def _tokens(usages: Iterable[ModelUsage]) -> tuple[int, int]:
    """Tokens read, also from a cache, and written."""
    read = written = 0
    for usage in usages:
        read += usage.input_tokens + (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0)
        written += usage.output_tokens
    return read, written


def _message(message: ChatMessage) -> list[Any]:
    calls = getattr(message, "tool_calls", None) or []
    failed = getattr(message, "error", None)
    return [
        message.role,
        message.text or (failed.message if failed else ""),
        [[call.function, call.arguments] for call in calls],
    ]


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "read":
        read(arguments)
    else:
        {"write": write, "kill": kill, "serve": serve}[command](Path(arguments[0]))
