from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradeline.adapters import Price, Prices
from gradeline.adapters.costs import LongPrompt, Tokens, assumed_prices, flat_price
from gradeline.errors import ConfigError

OPENAI = "api.openai.com"
TABLE = json.loads((Path(__file__).parents[2] / "src/gradeline/adapters/prices.json").read_text())


@pytest.fixture(autouse=True)
def no_prices_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADELINE_PRICES", raising=False)


def entries() -> list[tuple[str, str, str]]:
    return [
        (provider, model, message["hosts"][0])
        for provider, message in TABLE.items()
        if provider != "about"
        for model in message["models"]
    ]


@pytest.mark.parametrize(("provider", "model", "host"), entries())
def test_every_price_has_a_source_and_a_date(provider: str, model: str, host: str) -> None:
    price = Prices.load().price(provider, model, host)
    assert price is not None
    assert price.source is not None
    assert price.source.startswith("https://")
    assert price.checked is not None
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", price.checked)
    assert 0 < price.input < price.output
    assert price.cached is not None
    assert price.cached < price.input


def test_an_unknown_price_is_none() -> None:
    prices = Prices.load()
    assert prices.price("openai", "gpt-4o-mini", OPENAI) is not None
    assert prices.price("openai", "gpt-9", OPENAI) is None
    assert prices.price("nobody", "gpt-4o-mini", OPENAI) is None
    assert prices.price("openai", "gpt-4o-mini", "127.0.0.1") is None, "who serves it elsewhere takes what he likes"
    assert prices.price("openai", "gpt-4o-2024-05-13", OPENAI) is None, "a snapshot may have had another price"


def test_the_cost_of_a_call() -> None:
    price = Price(input=2.0, output=10.0, cached=0.5, cache_write=2.5)
    assert price.cost(Tokens(1_000_000, 100_000)) == pytest.approx(3.0)
    assert price.cost(Tokens(1_000_000, 0, cached=400_000)) == pytest.approx(0.6 * 2 + 0.4 * 0.5)
    assert price.cost(Tokens(1_000_000, 0, written=400_000)) == pytest.approx(0.6 * 2 + 0.4 * 2.5)
    assert price.cost(Tokens(0, 0)) == 0.0


@pytest.mark.parametrize(
    "tokens",
    [Tokens(), Tokens(5), Tokens(None, 5), Tokens(9, 5, cached=1), Tokens(9, 5, written=1), Tokens(9, 5, extra=True)],
)
def test_an_unknown_cost_is_not_guessed(tokens: Tokens) -> None:
    assert Price(input=1.0, output=1.0).cost(tokens) is None


def test_a_long_prompt_may_cost_more_for_all_of_the_call() -> None:
    price = Price(input=1.0, output=2.0, long=LongPrompt(above=200_000, input=3.0, output=4.0))
    assert price.cost(Tokens(200_000, 100_000)) == pytest.approx(0.2 + 0.2)
    assert price.cost(Tokens(300_000, 100_000)) == pytest.approx(0.9 + 0.4)


def test_the_users_prices_override_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {
        "openai": {"hosts": ["llm.example.com"], "models": {"gpt-4o": {"input": 9, "output": 99}}},
        "*": {"models": {"llama": {"input": 0, "output": 0}}},
    }
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(own))
    monkeypatch.setenv("GRADELINE_PRICES", str(path))
    for prices in (Prices.load(), Prices.load(path)):
        assert prices.price("openai", "gpt-4o", OPENAI) == Price(input=9, output=99)
        mini = prices.price("openai", "gpt-4o-mini", "llm.example.com")
        assert mini is not None, "a gateway that takes the provider's prices is named as one of its hosts"
        assert mini.input == 0.15
        assert prices.price("vllm", "llama", "10.0.0.1") == Price(input=0, output=0)
    assert Prices.of({"m": Price(input=1, output=2)}).price("any", "m", "where") == Price(input=1, output=2)


def test_an_invalid_price_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Prices.load(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"prices\.json: is not valid JSON"):
        Prices.load(path)
    path.write_text('{"openai": {"models": {"x": {"input": -1, "output": 1}}}}')
    with pytest.raises(
        ConfigError, match=r"is not a valid price table: Expected `float` >= 0.0 - at `\$\[...\].models\[...\].input`"
    ):
        Prices.load(path)


class TestUserPrices:
    def test_a_price_is_read_with_or_without_its_model(self) -> None:
        by_model, assumed = assumed_prices(["0.15/0.60", "my model=1/2/0.5", "a/b=$3 / $4", "c=.5/1."])
        assert assumed == Price(0.15, 0.6, 0.15, 0.15)
        assert by_model == {
            "my model": Price(1, 2, 0.5, 1),
            "a/b": Price(3, 4, 3, 3),
            "c": Price(0.5, 1, 0.5, 0.5),
        }

    @pytest.mark.parametrize(
        "text", ["", "cheap", "1", "1/", "1/2/3/4", "-1/2", "m=", "=1/2", "1,5/2", "nan/1", "1e3/2"]
    )
    def test_an_invalid_price_is_refused_with_the_format(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            assumed_prices([text])
        assert str(caught.value) == (
            f"--assume-price: invalid price {text!r}: use INPUT/OUTPUT in US dollars per million tokens, such as"
            " 0.15/0.60, or MODEL=0.15/0.60 for one model; a third number is the price of cached input"
        )

    def test_user_prices_override_the_table_and_an_assumed_price_is_the_fallback(self) -> None:
        prices = Prices.load().updated(Prices(own={"gpt-4o": Price(7, 8)}, assumed=Price(1, 2)))
        table = Prices.load().price("openai", "gpt-6-luna", OPENAI)
        assert prices.price("openai", "gpt-4o", OPENAI) == prices.price("vllm", "gpt-4o", "127.0.0.1") == Price(7, 8)
        assert prices.price("openai", "gpt-6-luna", OPENAI) == table
        assert prices.price("vllm", "llama", "127.0.0.1") == Price(1, 2)
        assert (prices.user_price("gpt-4o"), prices.user_price("x"), prices.user_price(None)) == (
            Price(7, 8),
            Price(1, 2),
            Price(1, 2),
        )
        assert Prices.load().user_price("gpt-4o") is None

    def test_cached_tokens_cost_the_input_price_by_default(self) -> None:
        assert flat_price(2, 10).cost(Tokens(1_000_000, 0, cached=500_000, written=100_000)) == pytest.approx(2.0)
        assert flat_price(2, 10, 1).cost(Tokens(1_000_000, 0, cached=500_000)) == pytest.approx(1.5)

    def test_a_prompt_above_the_limit_of_a_price_has_no_known_cost(self) -> None:
        price = Price(input=1.0, output=1.0, up_to=100)
        assert (price.cost(Tokens(100, 0)), price.cost(Tokens(101, 0))) == (0.0001, None)
