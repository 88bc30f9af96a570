"""A small agent with retrieval: it ranks notes by the words that they share with the question and quotes the best one."""

import json
import re
from pathlib import Path

NOTES = [json.loads(line) for line in Path(__file__).with_name("notes.jsonl").read_text().splitlines()]
COMMON = {"a", "and", "are", "can", "do", "for", "how", "i", "in", "is", "it", "my", "of", "the", "to", "what", "when"}


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower())) - COMMON


def search(question: str, most: int = 3) -> list[dict]:
    asked = words(question)
    ranked = sorted(NOTES, key=lambda note: -len(asked & words(note["text"])))
    return [{**note, "score": len(asked & words(note["text"]))} for note in ranked[:most]]


def answer(question: str) -> dict:
    documents = [note for note in search(question) if note["score"] > 0]
    text = documents[0]["text"] if documents else "I do not know."
    return {"text": text, "documents": documents}
