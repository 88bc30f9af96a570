"""The rules grader agrees with Google's instruction-following checker on every kind that it can express."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from gradeline.graders import create
from gradeline.model import GradeContext, Sample

Rule = dict[str, Any]
Options = dict[str, Any]


def relation(options: Options, prefix: str, bound: int) -> Rule:
    """The checker's "at least n" and "less than n" as the bounds of a count."""
    return {"min": bound} if options[f"{prefix}relation"] == "at least" else {"max": bound - 1}


def number_words(options: Options) -> list[Rule]:
    n = options["num_words"]
    if options["relation"] == "at least":
        return [{"condition": "word_count_min", "value": n}]
    return [{"condition": "word_count_max", "value": n - 1}]


def postscript(options: Options) -> list[Rule]:
    marker = options["postscript_marker"]
    shapes = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return [{"condition": "regex", "value": "(?i)" + shapes.get(marker, re.escape(marker))}]


def paragraphs(options: Options) -> list[Rule]:
    stars = r"\s?\*\*\*\s?"
    return [
        {"condition": "split", "pattern": stars, "skip_blank": True, "count": options["num_paragraphs"]},
        # a blank paragraph is forgiven at either end alone
        {"condition": "not_regex", "value": rf"\S\s*{stars}\s*{stars}\s*\S"},
    ]


def nth_paragraph_first_word(options: Options) -> list[Rule]:
    word = re.escape(options["first_word"])
    first = rf"""(?i)^\s*['"]*{word}(?:[.,?!'"\s]|$)"""
    return [
        {
            "condition": "split",
            "separator": "\n\n",
            "skip_blank": True,
            "count": options["num_paragraphs"],
        },
        {
            "condition": "split",
            "separator": "\n\n",
            "item": options["nth_paragraph"] - 1,
            "rules": [{"condition": "regex", "value": first}],
        },
    ]


RULES: dict[str, Callable[[Options], list[Rule]]] = {
    "punctuation:no_comma": lambda _: [{"condition": "not_contains", "value": ","}],
    "detectable_format:number_highlighted_sections": lambda o: [
        {
            "condition": "count",
            "pattern": r"\*\*[^\n*]*[^\n*\s][^\n*]*\*\*|\*[^\n*]*[^\n*\s][^\n*]*\*",
            "min": o["num_highlights"],
        }
    ],
    "length_constraints:number_words": number_words,
    "detectable_content:number_placeholders": lambda o: [
        {"condition": "count", "pattern": r"\[.*?\]", "min": o["num_placeholders"]}
    ],
    "combination:repeat_prompt": lambda o: [
        {"condition": "regex", "value": r"(?i)^\s*" + re.escape(o["prompt_to_repeat"].strip())}
    ],
    "detectable_format:title": lambda _: [{"condition": "regex", "value": r"<<[^\n]*[^\s<>\n][^\n]*>>"}],
    "detectable_format:number_bullet_lists": lambda o: [
        {"condition": "count", "pattern": r"(?m)^\s*(?:\*[^*]|-).*$", "equals": o["num_bullets"]}
    ],
    "change_case:english_lowercase": lambda _: [{"condition": "is_lower"}],
    "change_case:english_capital": lambda _: [{"condition": "is_upper"}],
    "detectable_format:json_format": lambda _: [{"condition": "is_json"}],
    "length_constraints:number_paragraphs": paragraphs,
    "combination:two_responses": lambda _: [
        {"condition": "split", "separator": "******", "skip_blank": True, "count": 2},
        {"condition": "not_regex", "value": r"\S\s*\*{6}\s*\*{6}\s*\S"},
    ],
    "detectable_format:multiple_sections": lambda o: [
        {
            "condition": "count",
            "pattern": rf"\s?{re.escape(o['section_spliter'])}\s?\d+\s?",
            "min": o["num_sections"],
        }
    ],
    "startend:end_checker": lambda o: [
        {"condition": "regex", "value": rf'(?i){re.escape(o["end_phrase"].strip())}"*\s*$'}
    ],
    "keywords:letter_frequency": lambda o: [
        {"condition": "count", "text": o["letter"], **relation(o, "let_", o["let_frequency"])}
    ],
    "keywords:forbidden_words": lambda o: [
        {"none": [{"condition": "regex", "value": rf"(?i)\b{re.escape(word)}\b"} for word in o["forbidden_words"]]}
    ],
    "keywords:existence": lambda o: [{"condition": "contains_all", "value": o["keywords"]}],
    "keywords:frequency": lambda o: [{"condition": "count", "text": o["keyword"], **relation(o, "", o["frequency"])}],
    "change_case:capital_word_frequency": lambda o: [
        {
            "condition": "count",
            "pattern": r"\b(?:[A-Z][A-Z0-9.&'/-]*)\b(?:[^\w]|$)",
            **relation(o, "capital_", o["capital_frequency"]),
        }
    ],
    "detectable_content:postscript": postscript,
    "startend:quotation": lambda _: [{"condition": "regex", "value": r'(?s)^\s*".*"\s*$'}],
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_format:constrained_response": lambda _: [
        {
            "condition": "contains_any",
            "case_sensitive": True,
            "value": ["My answer is yes.", "My answer is no.", "My answer is maybe."],
        }
    ],
}
"""Left out as kinds: the response's language (a language detector) and sentence counts (NLTK's splitter)."""


def left_out(kind: str, options: Options, response: str, strict: bool) -> bool:
    """Rows that something other than the instruction's own text decides."""
    if kind == "change_case:english_lowercase":
        return response.islower() and not strict
    if kind == "change_case:english_capital":
        return response.isupper() and not strict
    return kind == "keywords:letter_frequency" and not options["letter"].isalpha()


def test_rules_agree_with_the_official_checker_on_every_supported_row(shared_rows) -> None:
    seen: Counter[str] = Counter()
    wrong = []
    for row in shared_rows("ifeval/rows.jsonl"):
        for kind, options, strict in zip(row["instruction_id_list"], row["kwargs"], row["strict"], strict=True):
            if kind not in RULES or left_out(kind, options, row["response"], strict):
                continue
            seen[kind] += 1
            grader = create("custom-rules", {"rules": RULES[kind](options)})
            result = grader.grade(GradeContext(Sample(row["item_id"], row["prompt"]), row["response"]))
            if result.passed is not strict:
                wrong.append((row["item_id"], kind, options, strict, result.rationale))
    assert wrong == []
    assert set(seen) == set(RULES)
    assert len(seen) >= 20
    assert sum(seen.values()) > 350
