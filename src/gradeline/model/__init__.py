"""The nouns: what flows from suite to report, and the protocols at each seam."""

from gradeline.errors import Fault, Outcome
from gradeline.model.case import TestCase
from gradeline.model.codec import digest_of, from_json, sample_digest, to_json
from gradeline.model.config import Config, config_schema, described, read_struct
from gradeline.model.context import GradeContext, Need
from gradeline.model.fingerprint import canonical_json, case_digest, fingerprint
from gradeline.model.grade import Grade, GradeResult
from gradeline.model.llm import EmbeddingAdapter, GradingResult, Judge, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.protocols import AskingGrader, Extractor, Grader, Judged, Storage, Target
from gradeline.model.record import GradeKey, Record, ResponseKey
from gradeline.model.response import ErrorInfo, Response, Usage
from gradeline.model.run import (
    Columns,
    Counts,
    EarlyStopping,
    GradeColumns,
    GradeMeasure,
    GraderCounts,
    Measure,
    ResponseColumns,
    Run,
    RunGrader,
    StoredKey,
)
from gradeline.model.sample import Sample
from gradeline.model.text import clean_data, clean_text, quote
from gradeline.model.trajectory import Message, Role, ToolCall, Trajectory, Turn

__all__ = [
    "AskingGrader",
    "Columns",
    "Config",
    "Counts",
    "EarlyStopping",
    "EmbeddingAdapter",
    "ErrorInfo",
    "Extractor",
    "Fault",
    "Grade",
    "GradeColumns",
    "GradeContext",
    "GradeKey",
    "GradeMeasure",
    "GradeResult",
    "Grader",
    "GraderCounts",
    "GradingResult",
    "Judge",
    "Judged",
    "LLMAdapter",
    "LLMResponse",
    "Measure",
    "Message",
    "Need",
    "Outcome",
    "Record",
    "Response",
    "ResponseColumns",
    "ResponseKey",
    "Role",
    "Run",
    "RunConfig",
    "RunGrader",
    "Sample",
    "Storage",
    "StoredKey",
    "Target",
    "TestCase",
    "ToolCall",
    "Trajectory",
    "Turn",
    "Usage",
    "canonical_json",
    "case_digest",
    "clean_data",
    "clean_text",
    "config_schema",
    "described",
    "digest_of",
    "fingerprint",
    "from_json",
    "quote",
    "read_struct",
    "sample_digest",
    "to_json",
]
