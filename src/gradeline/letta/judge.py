"""An agent of letta's as the judge of one submission: it gives its grade by calling a tool."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn
from weakref import WeakKeyDictionary

import msgspec

from gradeline.adapters.errors import CallerRefused, FailureScope, ProviderAccess
from gradeline.errors import AgentError, ConfigError, Problem, ProviderRefusedError
from gradeline.extractors.base import assistant_texts
from gradeline.graders.base import ConfigIssue
from gradeline.judges.base import JudgeFailedError, JudgeGrader, JudgeRefusedError, collected, usage_shown
from gradeline.judges.fencing import Fence
from gradeline.judges.model_judge import case_of, placeholder_remarks, sample_rubric, unfilled
from gradeline.judges.options import Prompt, PromptPath, RubricVars, file_text, one_source, reserved_names
from gradeline.judges.prompts import judge_prompt, with_submission
from gradeline.judges.reply_formats import RATIONALE, SCORE
from gradeline.judges.reply_parsing import InvalidReply, ReplyError, Verdict, read_verdict
from gradeline.letta.base import CLEANUP_S, SHORTEST_SECRET, connection_faults, usage_of, worth_repeating
from gradeline.letta.server import ENDING, AgentFile, AgentReply, Connection, Deadline, LettaServer
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, Sample, described, fingerprint, quote
from gradeline.model.config import canonical_options
from gradeline.model.response import Usage, total_usage
from gradeline.targets.base import hide, spellings

if TYPE_CHECKING:
    from gradeline.adapters.transport import TransportPool

_log = logging.getLogger("gradeline")

KEY_NAME = "LETTA_API_KEY"
_MAX_SAID = 300
_PAUSE_S = 1.0
_OF_MODELS = ("model", "provider", "temperature", "system_prompt")
"""Options of a model as the judge, which the releases of letta that had agents let stand here."""
_NOT_DECIDING = frozenset(
    {"prompt", "prompt_path", "agent_file", "base_url", "api_key_env", "project_id", "max_retries", "timeout"}
).union(_OF_MODELS)
"""Options that the fingerprint holds in another form, or that change no score."""
_BUNDLED = (
    "the one that letta-evals 0.5 to 0.19.0 contains is in its wheel: pip download --no-deps letta-evals==0.19.0, then"
    " unzip -p letta_evals-0.19.0-*.whl letta_evals/graders/letta-evals-judge-agent.af > judge.af, and write"
    " agent_file: judge.af"
)
_REFUSED_FILE = frozenset({400, 409, 413, 415, 422})
_ELSEWHERE = described("Of kind model_judge, without effect here: the agent has a model of its own.")

Text = Annotated[str, msgspec.Meta(min_length=1)]


class LettaJudgeConfig(Config, frozen=True, kw_only=True):
    """Options of `LettaJudge`."""

    prompt: Prompt = None
    prompt_path: PromptPath = None
    agent_file: Annotated[
        str | None,
        described("The judge's agent file (.af), beside the suite; each case gets an agent of its own."),
    ] = None
    agent_id: Annotated[
        str | None, described("A judge that is there already; all cases ask it, one after the other, and it remembers.")
    ] = None
    judge_tool_name: Annotated[
        str, described("The agent's tool that it gives its grade with: (score: float, rationale: str).", min_length=1)
    ] = "submit_grade"
    rubric_vars: RubricVars = msgspec.field(default_factory=dict)
    base_url: Annotated[
        Text | None,
        described("The letta server; else that of the suite's target, else as letta's targets do."),
    ] = None
    api_key_env: Annotated[
        Text | None, described("The environment variable that holds the key, if not LETTA_API_KEY.")
    ] = None
    project_id: Annotated[Text | None, described("The project on the server; else LETTA_PROJECT_ID.")] = None
    timeout: Annotated[
        float, described("Seconds that the judge may take for one case, retries included.", gt=0, le=86_400)
    ] = 300.0
    max_retries: Annotated[
        int, described("How often a failed case is put to a new agent from `agent_file`.", ge=0, le=20)
    ] = 2
    model: Annotated[Any, _ELSEWHERE] = None
    model_provider: Annotated[Any, _ELSEWHERE] = msgspec.field(default=None, name="provider")
    temperature: Annotated[Any, _ELSEWHERE] = None
    system_prompt: Annotated[Any, _ELSEWHERE] = None

    @property
    def provider(self) -> str:
        """Who serves the judge: what decides where its key may be sent, whatever the options say."""
        return "letta"

    def faults(self) -> Iterator[Problem]:
        yield from one_source(self, "prompt", "prompt_path")
        if self.prompt is self.prompt_path is None:
            yield Problem("prompt", "is required: say how to grade by prompt or prompt_path")
        yield from reserved_names(self.rubric_vars)
        yield from self._faults_of_agent()
        yield from connection_faults(Connection.of(self.base_url, None, self.project_id, {}))
        if self.api_key_env is not None and not (self.api_key_env.isascii() and self.api_key_env.isidentifier()):
            # Not quoted: it may well be the key itself.
            yield Problem("api_key_env", f"must be the name of an environment variable such as {KEY_NAME}, not a key")

    def _faults_of_agent(self) -> Iterator[Problem]:
        if self.agent_file is None and self.agent_id is None:
            message = (
                f"name the agent that judges, here or by agent_id; {_BUNDLED}; or let a model judge by the same prompt"
            )
            yield Problem("agent_file", f"{message}: kind: model_judge")
        if self.agent_file is not None and self.agent_id is not None:
            yield Problem("agent_id", "stands beside 'agent_file'; keep one of them")
        if self.agent_file is not None and not self.agent_file.endswith(ENDING):
            yield Problem("agent_file", f"{quote(self.agent_file)} is no agent file; its name ends in {ENDING}")
        if self.agent_id is not None and not self.agent_id.strip():
            yield Problem("agent_id", "is empty")


@dataclass(slots=True)
class _Inquiry:
    """One case put to the judge: how long it may take, whom it is put to, and what that used so far."""

    prompt: str
    deadline: Deadline
    agent: str | None = None
    sent: bool = False
    attempts: int = 0
    used: list[Usage | None] = field(default_factory=list)


class _RefusedError(AgentError):
    """The letta server refused a request."""

    def __init__(self, message: str, remedy: str, reach: FailureScope) -> None:
        super().__init__("status", message)
        self.remedy = remedy
        self.reach = reach


class LettaJudge(JudgeGrader[LettaJudgeConfig]):
    """Asks an agent on a letta server to grade the submission by a rubric.

    The agent must call its judge tool with a score and a rationale; the first such call is the grade. An agent from
    a file is made for each case and deleted after it: one that remembers other cases would judge by them.
    """

    kind = "letta_judge"
    name = "Letta judge"
    case_rubrics = True
    scoring_guide = (
        "The score from 0.0 to 1.0 that the agent calls its judge tool with; no call, or one without such a score, is"
        " an error. Passes from 0.5. Beware of the biases of judges: length, format, position, self-preference."
    )
    pause_s: ClassVar[float] = _PAUSE_S
    """The pause before a second attempt; it doubles each time."""

    @property
    def judges(self) -> tuple[str, ...]:
        return (f"letta:{self.options.agent_file or self.options.agent_id}",)

    @cached_property
    def fingerprint(self) -> str:
        """Covers the text of the prompt and the agent's file; never a key or a server."""
        options = {name: value for name, value in canonical_options(self.options).items() if name not in _NOT_DECIDING}
        agent = "" if self._file is None else self._file.digest
        rubric = with_submission(self._rubric)
        return fingerprint(self.noun, self.kind, self.version, rubric, self._instruction, agent, options)

    def make_ready(self) -> None:
        collected(lambda: self._rubric, lambda: self.connection, self._require_file)

    def remarks(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
        options = self.options
        if options.agent_file is not None:
            file = AgentFile(folder / options.agent_file)
            yield from (ConfigIssue(problem, fatal=True) for problem in file.judge_problems(options.judge_tool_name))
        try:
            text = _text(options, folder)
        except ConfigError as error:
            yield from (ConfigIssue(problem, fatal=True) for problem in error.problems)
        else:
            source = "prompt" if options.prompt_path is None else "prompt_path"
            yield from placeholder_remarks(text, source, options.rubric_vars, case)
        for name in canonical_options(options):
            if name in _OF_MODELS:
                yield ConfigIssue(Problem(name, "has no effect here: the agent that judges has a model of its own"))

    @cached_property
    def connection(self) -> Connection:
        """Where the judge is, and what lets one in; `ConfigError` where that cannot be."""
        options, given = self.options, self.resources.environment
        environment: Mapping[str, str] = os.environ if given is None else given
        key = None if options.api_key_env is None else environment.get(options.api_key_env)
        if options.api_key_env is not None and not key:
            message = f"the environment has no {options.api_key_env}; set it to the key"
            raise ConfigError(Problem("api_key_env", message))
        found = Connection.of(options.base_url, key, options.project_id, environment)
        problems = list(connection_faults(found))
        if problems:
            raise ConfigError(problems)
        return found

    @cached_property
    def _rubric(self) -> str:
        return _text(self.options, self.resources.folder)

    @cached_property
    def _file(self) -> AgentFile | None:
        folder = self.resources.folder or Path()
        return None if self.options.agent_file is None else AgentFile(folder / self.options.agent_file)

    def _require_file(self) -> None:
        if self._file is None:
            return
        if self.resources.folder is None and self.resources.policy is not None:
            # Whoever bounds the network and gives no folder serves others, and this one's files are not theirs.
            raise ConfigError(Problem("agent_file", "no file is read here; name a judge that is there by agent_id"))
        problems = list(self._file.judge_problems(self.options.judge_tool_name))
        if problems:
            raise ConfigError(problems)

    @property
    def _instruction(self) -> str:
        return (
            f"Give your grade by calling the tool {self.options.judge_tool_name} exactly once, with"
            f' "{SCORE}", a number from 0.0 (worst) to 1.0 (best), and "{RATIONALE}", a short text that says why.'
            " A grade that is only written and not given by the tool is not read."
        )

    @cached_property
    def _hidden(self) -> frozenset[str]:
        key = self.connection.api_key or ""
        return spellings([key] if len(key) >= SHORTEST_SECRET else [])

    @cached_property
    def _transports(self) -> TransportPool:
        from gradeline.adapters.transport import TransportPool  # loads aiohttp

        return TransportPool(self.resources.transport)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """A letta server reports tokens, and not what they cost."""
        return self.judges

    async def aclose(self) -> None:
        if "_transports" in vars(self):
            await self._transports.close()

    @cached_property
    def _locks(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]:
        return WeakKeyDictionary()

    def _only_one(self) -> asyncio.Lock | nullcontext[None]:
        """Held while the agent is asked that all cases share."""
        if self.options.agent_id is None:
            return nullcontext()
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def judged(self, ctx: GradeContext) -> MeteredResult:
        rubric = sample_rubric(ctx.sample, self.resources.folder) or self._rubric
        case = case_of(ctx, self.options.rubric_vars)
        prompt = judge_prompt(rubric, case, self._instruction, Fence())
        async with self._only_one():
            inquiry = _Inquiry(prompt, Deadline(self.options.timeout))
            try:
                answered = await self._access.call(lambda: self._answer(inquiry))
            except CallerRefused as refused:
                raise self._for_a_person(refused.error) from refused.error.__cause__
            except _RefusedError as error:
                return MeteredResult(JudgeRefusedError(f"{self.judges[0]}: {error}"), total_usage(inquiry.used))
            except AgentError as error:
                message = f"{self.judges[0]} could not be asked ({error.type}, {inquiry.attempts} attempts): {error}"
                return MeteredResult(JudgeFailedError(hide(message, self._hidden)), total_usage(inquiry.used))
        usage = total_usage(inquiry.used)
        if isinstance(answered, ReplyError):
            return MeteredResult(answered, usage)
        verdict = answered
        metadata: dict[str, Any] = {
            "judge": self.judges[0],
            "judge_agent_id": inquiry.agent,
            "prompt": fingerprint("prompt", with_submission(rubric), self._instruction),
            "usage": usage_shown(usage),
        }
        notes = unfilled(rubric, case)
        if notes:
            metadata["notes"] = notes
        return MeteredResult(GradeResult(verdict.score, verdict.notes or None, metadata), usage)

    async def _answer(self, inquiry: _Inquiry) -> Verdict | ReplyError:
        """The judge's answer, after as many attempts as are allowed; a shared agent is asked once."""
        allowed = 1 if self._file is None else 1 + self.options.max_retries
        while True:
            inquiry.attempts += 1
            inquiry.sent = False
            try:
                return await self._attempt(inquiry)
            except ReplyError as error:
                return error
            except AgentError as error:
                self._require_accepted(error, inquiry)
                if inquiry.attempts >= allowed or error.type == "timeout" or not worth_repeating(error):
                    raise
            await asyncio.sleep(min(self.pause_s * 2.0 ** (inquiry.attempts - 1), inquiry.deadline.left()))

    async def _attempt(self, inquiry: _Inquiry) -> Verdict:
        server = LettaServer(self.connection, await self._transports.get(), self._hidden)
        inquiry.agent = self.options.agent_id
        try:
            if self._file is not None:
                inquiry.agent = await server.import_agent(self._file.content, inquiry.deadline)
            inquiry.sent = True
            # What a failed message has used is not known.
            inquiry.used.append(Usage())
            reply = await server.send(inquiry.agent or "", inquiry.prompt, inquiry.deadline)
            inquiry.used[-1] = usage_of([reply.usage or {}], None) or Usage()
            return self._verdict(reply)
        finally:
            if self._file is not None and inquiry.agent is not None:
                await self._delete(server, inquiry.agent)

    def _verdict(self, reply: AgentReply) -> Verdict:
        """The first grade that the agent gave; an agent may well fail after it."""
        tool = self.options.judge_tool_name
        for message in reply.turn:
            for call in message.tool_calls:
                if call.name == tool:
                    return read_verdict(call.arguments, SCORE, RATIONALE)
        reply.check()
        said = "\n".join(assistant_texts(reply.turn))
        raise InvalidReply(f"the judge did not call {tool}; it said {quote(said, _MAX_SAID)}", said)

    async def _delete(self, server: LettaServer, agent: str) -> None:
        try:
            await server.delete(agent, Deadline(CLEANUP_S))
        except AgentError as error:
            message = hide(f"the judge's agent {agent} could not be deleted: {error}", self._hidden)
            _log.warning("%s: %s", self.kind, message)

    def _require_accepted(self, error: AgentError, inquiry: _Inquiry) -> None:
        """`_RefusedError` where the server refused the request."""
        status = getattr(error, "http_status", None)
        key = self.options.api_key_env or KEY_NAME
        if status in (401, 403):
            reach: FailureScope = "caller" if status == 401 else "unclear"
            self._refuse(error, reach, "the server does not accept this key", f"put a valid key into {key}")
        if status == 402:
            self._refuse(error, "caller", "the account is used up", "top it up, or let a model judge")
        if status == 404 and inquiry.sent and self._file is None:
            message = f"the server has no agent {quote(self.options.agent_id)}"
            self._refuse(error, "unclear", message, "check agent_id, base_url and project_id")
        if status in (404, 405) and not inquiry.sent:
            self._refuse(error, "unclear", "there is no letta server at this address", "check base_url")
        if status in _REFUSED_FILE and not inquiry.sent:
            message = f"the server makes no agent from {quote(self.options.agent_file)}"
            self._refuse(error, "unclear", message, "export the agent again, from a server of the same age")
        if status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429):
            self._refuse(error, "request", "the server refused this request", "see what it says")

    def _refuse(self, error: AgentError, reach: FailureScope, what: str, remedy: str) -> NoReturn:
        said = quote(hide(str(error), self._hidden), _MAX_SAID)
        raise _RefusedError(f"{what} ({said})", remedy, reach) from error

    def _for_a_person(self, error: AgentError) -> ProviderRefusedError:
        remedy = f"; {error.remedy}" if isinstance(error, _RefusedError) else ""
        return ProviderRefusedError(Problem(f"judge {self.judges[0]}", f"{error}{remedy}"))

    def _new_access(self) -> ProviderAccess:
        return ProviderAccess(lambda error: error.reach if isinstance(error, _RefusedError) else "request")


def _text(options: LettaJudgeConfig, folder: Path | None) -> str:
    """The rubric; `ConfigError` where its file cannot be read."""
    if options.prompt_path is not None:
        return file_text(folder, options.prompt_path, "prompt_path")
    return options.prompt or ""
