"""``python -m gradeline.testing.fake_judge --port 0 --seed 7 --behaviour '{"accuracy": 0.9}'``"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path

from gradeline.testing.fake_judge.behaviours import read_behaviour
from gradeline.testing.fake_judge.server import FakeJudge, load_script
from gradeline.testing.fake_judge.verdicts import read_truths


def _judge(args: argparse.Namespace) -> FakeJudge:
    if args.script is not None:
        judge = load_script(args.script, args.port, args.seed)
    else:
        judge = FakeJudge(seed=args.seed or 0, port=args.port)
    if args.behaviour is not None:
        behaviour = json.loads(args.behaviour) if args.behaviour.lstrip().startswith("{") else args.behaviour
        judge.behaviour = read_behaviour(behaviour, judge.behaviour)
    if args.items is not None:
        judge.items = read_truths(json.loads(args.items.read_bytes()))
    return judge


async def _serve(judge: FakeJudge) -> None:
    async with judge:
        sys.stdout.write(f"{judge.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gradeline.testing.fake_judge", description="Serve a fake judge.")
    parser.add_argument("--port", type=int, default=0, help="port (default 0: any free port)")
    parser.add_argument("--seed", type=int, help="random seed (default: the script's, else 0)")
    parser.add_argument("--behaviour", help="behaviour as a JSON object or a name such as position,b=0.3")
    parser.add_argument("--items", type=Path, help="JSON file with the quality of each item")
    parser.add_argument("--script", type=Path, help="JSON file with seed, behaviour, items and rules")
    args = parser.parse_args()
    try:
        judge = _judge(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(judge))


if __name__ == "__main__":
    main()
