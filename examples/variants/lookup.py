"""The baseline: a table instead of a model."""

CAPITALS = {"France": "Paris", "Kenya": "Nairobi", "Peru": "Lima"}


def answer(text: str) -> str:
    return next((city for country, city in CAPITALS.items() if country in text), "I do not know.")
