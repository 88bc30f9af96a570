"""A very small agent: it knows some capitals."""

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo", "Peru": "Lima"}


def answer(text: str) -> str:
    country = text.rstrip("?").rsplit(" ", 1)[-1]
    city = CAPITALS.get(country)
    return f"The capital of {country} is {city}, you are welcome." if city else "I do not know."
