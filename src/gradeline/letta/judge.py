"""A letta agent as the judge of a submission: it returns its grade by calling a tool."""

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
from gradeline.judges.base import JudgeFailedError, JudgeGrader, JudgeRefusedError, run_steps, usage_metadata
from gradeline.judges.fencing import Fence
from gradeline.judges.model_judge import placeholder_issues, prompt_case, require_context, sample_rubric, unfilled
from gradeline.judges.options import Prompt, PromptPath, RubricVars, exclusive_sources, file_text, reserved_names
from gradeline.judges.prompts import judge_prompt, with_submission
from gradeline.judges.reply_formats import RATIONALE, SCORE
from gradeline.judges.reply_parsing import InvalidReply, JudgeVerdict, ReplyError, read_verdict
from gradeline.letta.base import CLEANUP_TIMEOUT_S, SHORTEST_SECRET, connection_faults, usage_of, worth_repeating
from gradeline.letta.server import ENDING, AgentFile, AgentReply, Deadline, LettaConnection, LettaServer
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, Sample, described, fingerprint, quote
from gradeline.model.config import canonical_options
from gradeline.model.response import Usage, total_usage
from gradeline.targets.base import hide, json_spellings

if TYPE_CHECKING:
    from gradeline.adapters.transport import TransportPool

_log = logging.getLogger("gradeline")

KEY_NAME = "LETTA_API_KEY"
_MAX_QUOTED = 300
_PAUSE_S = 1.0
_IGNORED_OPTIONS = ("model", "provider", "temperature", "system_prompt")
"""Options of model judges; releases of letta with agent judges accepted them here too."""
_NOT_IN_FINGERPRINT = frozenset(
    {"prompt", "prompt_path", "agent_file", "base_url", "api_key_env", "project_id", "max_retries", "timeout"}
).union(_IGNORED_OPTIONS)
"""Options that the fingerprint covers in another form, or that do not affect scores."""
_BUNDLED = (
    "the one that letta-evals 0.5 to 0.19.0 contains is in its wheel: pip download --no-deps letta-evals==0.19.0, then"
    " unzip -p letta_evals-0.19.0-*.whl letta_evals/graders/letta-evals-judge-agent.af > judge.af, and write"
    " agent_file: judge.af"
)
_REFUSED_FILE = frozenset({400, 409, 413, 415, 422})
_IGNORED = described("Option of kind model_judge, without effect here: the agent has its own model.")

Text = Annotated[str, msgspec.Meta(min_length=1)]


class LettaJudgeConfig(Config, frozen=True, kw_only=True):
    """Options of `LettaJudge`."""

    prompt: Prompt = None
    prompt_path: PromptPath = None
    agent_file: Annotated[
        str | None,
        described("Agent file of the judge (.af), relative to the suite; each case gets a new agent."),
    ] = None
    agent_id: Annotated[
        str | None, described("ID of an existing agent; all cases use it, one after the other, and it remembers them.")
    ] = None
    judge_tool_name: Annotated[
        str, described("Tool that the agent calls with its grade: (score: float, rationale: str).", min_length=1)
    ] = "submit_grade"
    rubric_vars: RubricVars = msgspec.field(default_factory=dict)
    base_url: Annotated[
        Text | None,
        described("URL of the letta server (default that of the suite's target, or as for letta targets)."),
    ] = None
    api_key_env: Annotated[Text | None, described("Environment variable with the API key (default LETTA_API_KEY).")] = (
        None
    )
    project_id: Annotated[Text | None, described("Project on the server (default LETTA_PROJECT_ID).")] = None
    timeout: Annotated[float, described("Timeout of one case in seconds, including retries.", gt=0, le=86_400)] = 300.0
    max_retries: Annotated[
        int, described("Retries of a failed case, each with a new agent from `agent_file`.", ge=0, le=20)
    ] = 2
    model: Annotated[Any, _IGNORED] = None
    model_provider: Annotated[Any, _IGNORED] = msgspec.field(default=None, name="provider")
    temperature: Annotated[Any, _IGNORED] = None
    system_prompt: Annotated[Any, _IGNORED] = None

    @property
    def provider(self) -> str:
        """The provider for checks of where its key may be sent, whatever the ignored option `provider` is."""
        return "letta"

    def faults(self) -> Iterator[Problem]:
        yield from exclusive_sources(self, "prompt", "prompt_path")
        if self.prompt is self.prompt_path is None:
            yield Problem("prompt", "is required: define the grading with prompt or prompt_path")
        yield from reserved_names(self.rubric_vars)
        yield from self._faults_of_agent()
        yield from connection_faults(LettaConnection.of(self.base_url, None, self.project_id, {}))
        if self.api_key_env is not None and not (self.api_key_env.isascii() and self.api_key_env.isidentifier()):
            # Not quoted: it may be the key itself.
            yield Problem("api_key_env", f"must be the name of an environment variable such as {KEY_NAME}, not a key")

    def _faults_of_agent(self) -> Iterator[Problem]:
        if self.agent_file is None and self.agent_id is None:
            message = (
                f"name the agent that judges, here or by agent_id; {_BUNDLED}; or use a model with the same prompt"
            )
            yield Problem("agent_file", f"{message}: kind: model_judge")
        if self.agent_file is not None and self.agent_id is not None:
            yield Problem("agent_id", "conflicts with 'agent_file'; keep one of them")
        if self.agent_file is not None and not self.agent_file.endswith(ENDING):
            yield Problem("agent_file", f"{quote(self.agent_file)} is not an agent file; its name must end in {ENDING}")
        if self.agent_id is not None and not self.agent_id.strip():
            yield Problem("agent_id", "is empty")


@dataclass(slots=True)
class _JudgeCalls:
    """The calls for one case: their deadline, the agent, and the usage so far."""

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
    """Has an agent on a letta server grade the submission by a rubric.

    The agent must call its judge tool with a score and a rationale; the first such call is the grade. An agent from
    a file is created for each case and deleted afterwards, so that it cannot remember other cases.
    """

    kind = "letta_judge"
    name = "Letta judge"
    case_rubrics = True
    scoring_guide = (
        "The score from 0.0 to 1.0 in the agent's call of its judge tool; no call, or one without such a score, is"
        " an error. Passes from 0.5. Beware of the biases of judges: length, format, position, self-preference."
    )
    pause_s: ClassVar[float] = _PAUSE_S
    """Pause before the first retry in seconds; it doubles each time."""

    @property
    def judges(self) -> tuple[str, ...]:
        return (f"letta:{self.options.agent_file or self.options.agent_id}",)

    @cached_property
    def fingerprint(self) -> str:
        """Covers the text of the prompt and the agent's file; never a key or a server."""
        options = {
            name: value for name, value in canonical_options(self.options).items() if name not in _NOT_IN_FINGERPRINT
        }
        agent = "" if self._file is None else self._file.digest
        rubric = with_submission(self._rubric)
        return fingerprint(self.noun, self.kind, self.version, rubric, self._instruction, agent, options)

    @property
    def prompt_hash(self) -> str:
        return self._prompt_fingerprint(self._rubric)

    def prepare(self) -> None:
        run_steps(lambda: self._rubric, lambda: self.connection, self._require_file)

    def config_issues(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
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
            yield from placeholder_issues(text, source, options.rubric_vars, case)
        for name in canonical_options(options):
            if name in _IGNORED_OPTIONS:
                yield ConfigIssue(Problem(name, "has no effect here: the agent that judges has its own model"))

    @cached_property
    def connection(self) -> LettaConnection:
        """URL and credentials of the judge's server; `ConfigError` if they are invalid."""
        options, bound = self.options, self.resources.environment
        environment: Mapping[str, str] = os.environ if bound is None else bound
        key = None if options.api_key_env is None else environment.get(options.api_key_env)
        if options.api_key_env is not None and not key:
            message = f"the environment has no {options.api_key_env}; set it to the key"
            raise ConfigError(Problem("api_key_env", message))
        found = LettaConnection.of(options.base_url, key, options.project_id, environment)
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
            # an egress policy without a folder means a service, whose users must not read its files
            raise ConfigError(Problem("agent_file", "files cannot be read here; name an existing agent by agent_id"))
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
        return json_spellings([key] if len(key) >= SHORTEST_SECRET else [])

    @cached_property
    def _transports(self) -> TransportPool:
        from gradeline.adapters.transport import TransportPool  # loads aiohttp

        return TransportPool(self.resources.transport)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """A letta server reports tokens, but no cost."""
        return self.judges

    async def aclose(self) -> None:
        if "_transports" in vars(self):
            await self._transports.close()

    @cached_property
    def _locks(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]:
        return WeakKeyDictionary()

    def _only_one(self) -> asyncio.Lock | nullcontext[None]:
        """Held during a call of an agent that all cases share."""
        if self.options.agent_id is None:
            return nullcontext()
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        rubric = sample_rubric(ctx.sample, self.resources.folder) or self._rubric
        case = prompt_case(ctx, self.options.rubric_vars)
        require_context(rubric, case)
        prompt = judge_prompt(rubric, case, self._instruction, Fence())
        async with self._only_one():
            conversation = _JudgeCalls(prompt, Deadline(self.options.timeout))
            try:
                answered = await self._access.call(lambda: self._answer(conversation))
            except CallerRefused as refused:
                raise self._config_error(refused.error) from refused.error.__cause__
            except _RefusedError as error:
                return MeteredResult(JudgeRefusedError(f"{self.judges[0]}: {error}"), total_usage(conversation.used))
            except AgentError as error:
                message = (
                    f"{self.judges[0]} could not be called ({error.type}, {conversation.attempts} attempts): {error}"
                )
                return MeteredResult(JudgeFailedError(hide(message, self._hidden)), total_usage(conversation.used))
        usage = total_usage(conversation.used)
        if isinstance(answered, ReplyError):
            return MeteredResult(answered, usage)
        verdict = answered
        metadata: dict[str, Any] = {
            "judge": self.judges[0],
            "judge_agent_id": conversation.agent,
            "prompt": self._prompt_fingerprint(rubric),
            "usage": usage_metadata(usage),
        }
        notes = unfilled(rubric, case)
        if notes:
            metadata["notes"] = notes
        return MeteredResult(GradeResult(verdict.score, verdict.notes or None, metadata), usage)

    def _prompt_fingerprint(self, rubric: str) -> str:
        return fingerprint("prompt", with_submission(rubric), self._instruction)

    async def _answer(self, conversation: _JudgeCalls) -> JudgeVerdict | ReplyError:
        """The judge's verdict, with retries; a shared agent is called only once."""
        allowed = 1 if self._file is None else 1 + self.options.max_retries
        while True:
            conversation.attempts += 1
            conversation.sent = False
            try:
                return await self._attempt(conversation)
            except ReplyError as error:
                return error
            except AgentError as error:
                self._require_accepted(error, conversation)
                if conversation.attempts >= allowed or error.type == "timeout" or not worth_repeating(error):
                    raise
            await asyncio.sleep(min(self.pause_s * 2.0 ** (conversation.attempts - 1), conversation.deadline.left()))

    async def _attempt(self, conversation: _JudgeCalls) -> JudgeVerdict:
        server = LettaServer(self.connection, await self._transports.get(), self._hidden)
        conversation.agent = self.options.agent_id
        try:
            if self._file is not None:
                conversation.agent = await server.import_agent(self._file.content, conversation.deadline)
            conversation.sent = True
            # the usage of a failed message is unknown
            conversation.used.append(Usage())
            reply = await server.send(conversation.agent or "", conversation.prompt, conversation.deadline)
            conversation.used[-1] = usage_of([reply.usage or {}], None) or Usage()
            return self._verdict(reply)
        finally:
            if self._file is not None and conversation.agent is not None:
                await self._delete(server, conversation.agent)

    def _verdict(self, reply: AgentReply) -> JudgeVerdict:
        """The first grade of the agent, even if it failed after that."""
        tool = self.options.judge_tool_name
        for message in reply.turn:
            for call in message.tool_calls:
                if call.name == tool:
                    return read_verdict(call.arguments, SCORE, RATIONALE)
        reply.check()
        text = "\n".join(assistant_texts(reply.turn))
        raise InvalidReply(f"the judge did not call {tool}; it answered {quote(text, _MAX_QUOTED)}", text)

    async def _delete(self, server: LettaServer, agent: str) -> None:
        try:
            await server.delete(agent, Deadline(CLEANUP_TIMEOUT_S))
        except AgentError as error:
            message = hide(f"the judge's agent {agent} could not be deleted: {error}", self._hidden)
            _log.warning("%s: %s", self.kind, message)

    def _require_accepted(self, error: AgentError, conversation: _JudgeCalls) -> None:
        """Raise `_RefusedError` if the server refused the request."""
        status = getattr(error, "http_status", None)
        key = self.options.api_key_env or KEY_NAME
        if status in (401, 403):
            reach: FailureScope = "caller" if status == 401 else "unclear"
            self._refuse(error, reach, "the server does not accept this key", f"put a valid key into {key}")
        if status == 402:
            self._refuse(error, "caller", "the account is used up", "top it up, or use a model as the judge")
        if status == 404 and conversation.sent and self._file is None:
            message = f"the server has no agent {quote(self.options.agent_id)}"
            self._refuse(error, "unclear", message, "check agent_id, base_url and project_id")
        if status in (404, 405) and not conversation.sent:
            self._refuse(error, "unclear", "there is no letta server at this address", "check base_url")
        if status in _REFUSED_FILE and not conversation.sent:
            message = f"the server rejected the agent file {quote(self.options.agent_file)}"
            self._refuse(error, "unclear", message, "export the agent again, from a server of the same version")
        if status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429):
            self._refuse(error, "request", "the server refused this request", "see its message")

    def _refuse(self, error: AgentError, reach: FailureScope, what: str, remedy: str) -> NoReturn:
        detail = quote(hide(str(error), self._hidden), _MAX_QUOTED)
        raise _RefusedError(f"{what} ({detail})", remedy, reach) from error

    def _config_error(self, error: AgentError) -> ProviderRefusedError:
        remedy = f"; {error.remedy}" if isinstance(error, _RefusedError) else ""
        return ProviderRefusedError(Problem(f"judge {self.judges[0]}", f"{error}{remedy}"))

    def _new_access(self) -> ProviderAccess:
        return ProviderAccess(lambda error: error.reach if isinstance(error, _RefusedError) else "request")


def _text(options: LettaJudgeConfig, folder: Path | None) -> str:
    """The rubric; `ConfigError` if its file cannot be read."""
    if options.prompt_path is not None:
        return file_text(folder, options.prompt_path, "prompt_path")
    return options.prompt or ""
