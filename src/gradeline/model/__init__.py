"""Data types from suite to report, and the protocols of targets, extractors, graders and stores."""

from gradeline.errors import Fault, Outcome
from gradeline.model.config import Config, config_schema, described, read_struct
from gradeline.model.context import GradeContext, Need
from gradeline.model.fingerprint import canonical_json, case_digest, fingerprint
from gradeline.model.grade import Grade, GradeResult
from gradeline.model.llm import EmbeddingAdapter, GradingResult, Judge, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.protocols import AsyncGrader, Extractor, GraderProtocol, MeteredResult, Storage, Target
from gradeline.model.record import GradeKey, Record, ResponseKey, digest_of, from_json, sample_digest, to_json
from gradeline.model.response import Document, ErrorInfo, Response, Usage
from gradeline.model.run import (
    CodeVersion,
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
from gradeline.model.sample import Sample, TestCase
from gradeline.model.text import clean_data, clean_text, quote
from gradeline.model.trajectory import Message, Role, ToolCall, Trajectory, Turn

__all__ = [
    "AsyncGrader",
    "CodeVersion",
    "Columns",
    "Config",
    "Counts",
    "Document",
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
    "GraderCounts",
    "GraderProtocol",
    "GradingResult",
    "Judge",
    "LLMAdapter",
    "LLMResponse",
    "Measure",
    "Message",
    "MeteredResult",
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
