"""Whether two answers are the same text."""

from __future__ import annotations

from dataclasses import dataclass

from gradeline.judges.calls import require_name
from gradeline.model.fingerprint import fingerprint
from gradeline.model.llm import GradingResult, LLMResponse, RunConfig

_VERSION = 1


@dataclass
class ExactMatchJudge:
    """1.0 where the candidate says what the baseline says, else 0.0.

    White space around an answer never counts; ``case_sensitive=False`` ignores case, ``normalize_whitespace`` takes
    each run of white space for one space. For short answers of a fixed form: of free answers hardly two are the same.
    """

    grader_id: str = "exact-match"
    case_sensitive: bool = True
    normalize_whitespace: bool = False

    def __post_init__(self) -> None:
        require_name(self.grader_id)

    @property
    def fingerprint(self) -> str:
        """Changes with whatever could change a score."""
        options = {"case_sensitive": self.case_sensitive, "normalize_whitespace": self.normalize_whitespace}
        return fingerprint("exact-match", _VERSION, options)

    def judge(
        self,
        baseline_response: LLMResponse,
        candidate_response: LLMResponse,
        *,
        prompt: str,  # noqa: ARG002 - the protocol's: what was asked makes no difference here
        run_config: RunConfig,  # noqa: ARG002
    ) -> GradingResult:
        """Compares the two texts."""
        same = self._compared(baseline_response.content) == self._compared(candidate_response.content)
        ways = ["stripped"]
        if not self.case_sensitive:
            ways.append("case ignored")
        if self.normalize_whitespace:
            ways.append("white space normalised")
        notes = f"{'match' if same else 'no match'} ({', '.join(ways)})"
        return GradingResult(float(same), notes, self.grader_id, baseline_response, candidate_response)

    async def ajudge(
        self, baseline_response: LLMResponse, candidate_response: LLMResponse, *, prompt: str, run_config: RunConfig
    ) -> GradingResult:
        """`judge`; there is nothing to wait for."""
        return self.judge(baseline_response, candidate_response, prompt=prompt, run_config=run_config)

    def _compared(self, text: str) -> str:
        text = " ".join(text.split()) if self.normalize_whitespace else text.strip()
        return text if self.case_sensitive else text.casefold()
