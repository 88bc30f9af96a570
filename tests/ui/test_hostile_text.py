"""Text from users, agents and graders is shown only as text, on every page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from live import EchoAgent

if TYPE_CHECKING:
    from live import Server
    from playwright.sync_api import Page

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<style>*{display:none}</style><a id=\"planted\" href='javascript:document.title=1'>a</a>"
    "[link](javascript:alert(1)) ![i](https://example.invalid/x.png) **bold** `code`"
    "\x1b[31mred\x1b[0m \u202egnp.exe\u202c \u2066isolated"
)
SHORT = HOSTILE[:100]
SEEN = "<script>document.title='owned'</script>"


@pytest.fixture
def paths(server: Server) -> dict[str, str]:
    """Paths of pages that show hostile text, by what they show."""
    with EchoAgent() as agent:
        case = {"input": HOSTILE, "expected_output": HOSTILE + "!", "description": HOSTILE, "tags": ["hostile"]}
        stored = server.data("POST", "/api/test-cases", case)["id"]
        rules = {"name": SHORT, "description": HOSTILE, "type": "custom-rules"}
        config = {"rules": [{"condition": "contains", "value": HOSTILE}]}
        grader = server.data("POST", "/api/graders", {**rules, "config": config})["id"]
        runs = []
        for suffix in ("one", "two"):
            body = {"test_case_ids": [stored], "agent_endpoint_url": agent.url, "name": f"{SHORT} {suffix}"}
            graders = [grader, {"id": "string-match", "name": SHORT}]
            run = server.data("POST", "/api/evaluations", {**body, "grader_ids": graders})["id"]
            server.until_ended(run)
            runs.append(run)
        label = {"verdict": "fail", "reason": HOSTILE}
        server.data("PUT", f"/api/evaluations/{runs[0]}/results/{stored}~0/labels/{grader}", label)
    both = f"baseline={runs[0]}&candidate={runs[1]}"
    return {
        "the runs": "/runs",
        "the cases": "/cases",
        "a case": f"/cases?open={stored}",
        "a run": f"/runs/{runs[0]}",
        "a result": f"/runs/{runs[0]}?row={stored}~0",
        "a difference": f"/runs/{runs[0]}?row={stored}~0&diff=on",
        "a result's history": f"/runs/{runs[0]}?row={stored}~0&tab=history",
        "a comparison": f"/compare?{both}",
        "a compared case": f"/compare?{both}&row={stored}&view=sides",
        "the graders": "/graders",
        "a grader": f"/graders/{grader}",
        "a grader tried": f"/graders/{grader}?tab=try",
        "a grader's versions": f"/graders/{grader}?tab=versions",
        "an editor": f"/graders/{grader}/edit",
        "a new evaluation": "/new",
    }


def test_hostile_text_stays_text_everywhere(page: Page, server: Server, paths: dict[str, str]) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    # hostile text could call it before the page is checked
    page.add_init_script("window.open = () => { throw new Error('opened') }")
    for what, path in paths.items():
        page.goto("about:blank")
        page.goto(f"{server.url}/#{path}")
        if what != "a new evaluation":
            page.get_by_text(SEEN, exact=False).first.wait_for(state="attached")
        page.wait_for_load_state("networkidle")
        planted = page.evaluate(
            "document.querySelectorAll('#root img, #root script, #root style, #planted, a[href^=\"javascript:\"]')"
            ".length"
        )
        assert planted == 0, what
        assert page.title().endswith("· gradeline"), what
        raw = page.evaluate("/[\\u202e\\u2066\\u001b]/.test(document.body.innerText)")
        assert not raw, f"{what}: invisible or direction-changing characters are shown unescaped"
    assert [url for url in requested if not url.startswith(server.url)] == []
