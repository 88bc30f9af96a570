"""Graders over REST: built in, stored with versions, and the operator's own in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from gradeline import graders
from gradeline.graders.registry import BUILTINS
from gradeline.service import graders as stored_graders
from gradeline.service.errors import Code, ServiceError
from gradeline.service.graders import ResolvedGrader, StoredGraders
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

Call = Any
"""The fixture of conftest."""

GRADERS = "/api/graders"
RULES = {"rules": [{"condition": "contains", "value": "please"}]}
GOOD = {"name": "Polite", "type": "custom-rules", "config": RULES}
JUDGE = {"prompt": "Is it right? {submission}", "model": "judge-1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What `--graders-dir` names."""
    made = tmp_path / "graders"
    made.mkdir()
    (made / "polite.py").write_text(
        "from gradeline import GradeResult, grader\n"
        "from words import NICE\n\n"
        "@grader\n"
        "def says_please(sample, submission):\n"
        '    """Whether it says please.\n\n    More about it."""\n'
        "    return GradeResult(1.0 if NICE in submission else 0.0)\n\n"
        "@grader\n"
        "def breaks(sample, submission):\n"
        "    raise RuntimeError('no idea')\n"
    )
    (made / "words.py").write_text("NICE = 'please'\n")
    (made / "broken.py").write_text("from gradeline import grader\n\n@grader\ndef broken(sample submission): ...\n")
    return made


@pytest.fixture
def settings(settings: ServeSettings, request: pytest.FixtureRequest) -> ServeSettings:
    if "folder" not in request.fixturenames:
        return settings
    return replace(settings, graders_dir=request.getfixturevalue("folder"))


def created(call: Call, **fields: Any) -> dict[str, Any]:
    answer = call("POST", GRADERS, json={**GOOD, **fields})
    assert answer.status == 201, answer.body
    data: dict[str, Any] = answer.data
    return data


def listed(call: Call) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in call("GET", GRADERS).data["graders"]}


def problems(answer: Any) -> list[str]:
    assert (answer.status, answer.error["code"]) == (400, "INVALID_GRADER"), answer.body
    return [problem["field"] for problem in answer.error["details"]["errors"]]


class TestBuiltIns:
    def test_all_of_them_are_listed(self, call: Call) -> None:
        answer = call("GET", GRADERS)
        known = graders.registry.list()
        assert {name: value for name, value in answer.data.items() if name != "graders"} == {
            "count": len(known),
            "total": len(known),
            "next_cursor": None,
        }
        assert [one["id"] for one in answer.data["graders"]] == [one["id"] for one in known]

    def test_an_entry_has_everything_a_form_needs(self, call: Call) -> None:
        (known,) = [one for one in graders.registry.list() if one["id"] == "string-match"]
        assert call("GET", f"{GRADERS}/string-match").data == {
            **known,
            "status": "active",
            "source": "built-in",
            "config": {},
            "caveats": [],
            "created_at": None,
            "modified_at": None,
            "error": None,
        }

    def test_a_judge_lists_its_caveats(self, call: Call) -> None:
        assert len(call("GET", f"{GRADERS}/model_judge").data["caveats"]) == 4

    @pytest.mark.parametrize("method", ["PUT", "DELETE"])
    def test_they_cannot_be_changed(self, call: Call, method: str) -> None:
        answer = call(method, f"{GRADERS}/string-match", json={"name": "x"} if method == "PUT" else None)
        assert (answer.status, answer.error["code"]) == (403, "FORBIDDEN")

    def test_versions(self, call: Call) -> None:
        assert call("GET", f"{GRADERS}/string-match?version=1").status == 200
        assert call("GET", f"{GRADERS}/string-match?version=2").status == 404


class TestStoring:
    def test_rules_are_stored_whole(self, call: Call) -> None:
        answer = call("POST", GRADERS, json={**GOOD, "description": "Says please 🙂"})
        kind = call("GET", f"{GRADERS}/custom-rules").data
        assert (answer.status, answer.data) == (
            201,
            {
                "id": answer.data["id"],
                "name": "Polite",
                "description": "Says please 🙂",
                "type": "custom-rules",
                "config_schema": kind["config_schema"],
                "scoring_guide": kind["scoring_guide"],
                "default_extractor": "last_assistant",
                "version": 1,
                "fingerprint": graders.create("custom-rules", RULES).fingerprint,
                "status": "active",
                "source": "stored",
                "config": RULES,
                "caveats": [],
                "created_at": answer.data["created_at"],
                "modified_at": answer.data["created_at"],
                "error": None,
            },
        )
        assert call("GET", f"{GRADERS}/{answer.data['id']}").data == answer.data
        assert list(listed(call))[-1] == answer.data["id"]

    @pytest.mark.parametrize(
        "sent",
        [
            {"name": "n", "type": "custom-rules", "rules": RULES["rules"]},
            {"name": "n", "kind": "custom-json", "config": RULES},
            {"name": "n", "type": "custom-rules", "kind": "custom-rules", "config": RULES},
        ],
    )
    def test_other_spellings_are_the_same_grader(self, call: Call, sent: dict[str, Any]) -> None:
        data = call("POST", GRADERS, json=sent).data
        assert (data["type"], data["config"]) == ("custom-rules", RULES)

    def test_a_judge_and_a_kind_without_options(self, call: Call) -> None:
        judge = created(call, type="rubric", config=JUDGE)
        assert (judge["type"], judge["config"], len(judge["caveats"])) == ("model_judge", JUDGE, 4)
        plain = call("POST", GRADERS, json={"name": "Same", "type": "exact_match"})
        assert (plain.status, plain.data["config"]) == (201, {})

    def test_a_custom_id(self, call: Call) -> None:
        assert created(call, id="my-Grader_1.0")["id"] == "my-Grader_1.0"
        for taken, by in {
            "my-Grader_1.0": "a stored grader, perhaps a deleted one",
            "string-match": "a built-in grader",
            "string_match": "a built-in grader",
        }.items():
            again = call("POST", GRADERS, json={**GOOD, "id": taken})
            assert (again.status, again.error["code"]) == (409, "DUPLICATE_ID")
            assert f"is taken by {by}; choose another" in again.error["message"]
        call("DELETE", f"{GRADERS}/my-Grader_1.0")
        assert call("POST", GRADERS, json={**GOOD, "id": "my-Grader_1.0"}).status == 409

    def test_an_id_that_a_later_built_in_has_too_is_refused_and_can_be_deleted(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service.graders.create({**GOOD, "id": "later"})
        monkeypatch.setitem(BUILTINS, "later", "gradeline.letta.graders:ContainsGrader")
        monkeypatch.setattr(stored_graders, "_builtins", stored_graders._builtins.__wrapped__)
        monkeypatch.setattr("gradeline.letta.graders.ContainsGrader.kind", "later")
        with pytest.raises(ServiceError) as caught:
            service.graders.resolve(["later"])
        assert caught.value.code is Code.INVALID_GRADER
        assert "'later' is the id of a built-in grader and of a stored grader" in caught.value.message
        service.graders.delete("later")
        assert service.graders.resolve(["later"])[0].kind == "later"

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"id": "new"}, "INVALID_INPUT"),
            ({"id": "a/b"}, "INVALID_INPUT"),
            ({"id": "a:b"}, "INVALID_INPUT"),
            ({"id": "é"}, "INVALID_INPUT"),
            ({"id": ""}, "INVALID_LENGTH"),
            ({"id": "x" * 101}, "INVALID_LENGTH"),
            ({"id": 7}, "INVALID_INPUT"),
            ({"name": ""}, "INVALID_LENGTH"),
            ({"name": "x" * 101}, "INVALID_LENGTH"),
            ({"name": "  "}, "INVALID_INPUT"),
            ({"name": "a\0"}, "INVALID_INPUT"),
            ({"name": None}, "INVALID_INPUT"),
            ({"description": "d" * 501}, "INVALID_LENGTH"),
            ({"config": []}, "INVALID_INPUT"),
            ({"config": {"x-note": "a\0"}}, "INVALID_INPUT"),
            ({"config": {"x-note": "n" * 200_001}}, "INVALID_LENGTH"),
            ({"type": None}, "MISSING_FIELD"),
            ({"more": 1}, "INVALID_INPUT"),
        ],
    )
    def test_wrong_fields(self, call: Call, fields: dict[str, Any], code: str) -> None:
        answer = call("POST", GRADERS, json={**GOOD, **fields})
        assert (answer.status, answer.error["code"]) == (400, code)

    def test_a_name_is_required(self, call: Call) -> None:
        answer = call("POST", GRADERS, json={"type": "exact_match"})
        assert (answer.error["code"], answer.error["message"]) == ("MISSING_FIELD", "Field 'name' is required")

    @pytest.mark.parametrize(
        ("fields", "paths"),
        [
            ({"type": "custom-rulez"}, ["type"]),
            ({"type": "python"}, ["type"]),
            ({"type": "exact_match", "kind": "contains"}, ["kind"]),
            ({"config": {}}, ["config.rules"]),
            ({"config": RULES, "rules": []}, ["rules"]),
            (
                {"config": {"rules": [{"condition": "contain", "value": "x"}, {"condition": "contains"}], "more": 1}},
                ["config.rules[0].condition", "config.rules[1].value", "config.more"],
            ),
            ({"type": "model_judge", "config": {"model": "m"}}, ["config.prompt"]),
            (
                {"type": "model_judge", "config": {"model": "m", "prompt_path": "/etc/passwd"}},
                ["config.prompt_path"],
            ),
            (
                {"type": "model_judge", "config": {**JUDGE, "provider": "openai", "api_key_env": "ANTHROPIC_API_KEY"}},
                ["config.api_key_env"],
            ),
            (
                {
                    "type": "panel",
                    "config": {
                        "prompt": "x",
                        "judges": [
                            {"model": "a"},
                            {"model": "b", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "OPENAI_API_KEY"},
                        ],
                    },
                },
                ["config.judges[1].api_key_env"],
            ),
        ],
    )
    def test_faults_of_a_definition_are_reported_by_path(
        self, call: Call, fields: dict[str, Any], paths: list[str]
    ) -> None:
        assert problems(call("POST", GRADERS, json={**GOOD, **fields})) == paths

    @pytest.mark.parametrize(
        ("url", "code"),
        [
            ("http://169.254.169.254/v1", "URL_NOT_ALLOWED"),
            ("http://10.0.0.1/v1", "URL_NOT_ALLOWED"),
            ("http://127.0.0.1:9/a b", "INVALID_URL"),
            ("ftp://127.0.0.1/v1", "INVALID_GRADER"),
        ],
    )
    def test_a_judge_that_may_not_be_called_is_not_stored(self, call: Call, url: str, code: str) -> None:
        answer = call("POST", GRADERS, json={**GOOD, "type": "model_judge", "config": {**JUDGE, "base_url": url}})
        assert (answer.status, answer.error["code"]) == (400, code)

    def test_a_number_that_is_not_finite_is_refused(self, call: Call) -> None:
        body = b'{"name": "n", "type": "numeric", "config": {"tolerance": NaN}}'
        answer = call("POST", GRADERS, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")


class TestVersions:
    def test_a_change_makes_a_version_and_the_old_one_stays(self, call: Call) -> None:
        first = created(call)
        place = f"{GRADERS}/{first['id']}"
        other = {"rules": [{"condition": "contains", "value": "thanks"}]}
        second = call("PUT", place, json={"config": other})
        assert second.status == 200
        assert second.data == {
            **first,
            "config": other,
            "version": 2,
            "fingerprint": graders.create("custom-rules", other).fingerprint,
            "modified_at": second.data["modified_at"],
        }
        assert call("GET", place).data == second.data
        assert call("GET", f"{place}?version=1").data == first
        assert call("GET", f"{place}?version=3").status == 404
        assert list(listed(call)).count(first["id"]) == 1

    def test_a_new_name_or_description_keeps_the_fingerprint(self, call: Call) -> None:
        first = created(call, description="d")
        second = call("PUT", f"{GRADERS}/{first['id']}", json={"name": "Nicer", "description": None}).data
        assert (second["version"], second["name"], second["description"]) == (2, "Nicer", None)
        assert second["fingerprint"] == first["fingerprint"]

    @pytest.mark.parametrize("fields", [{}, {"name": "Polite"}, {"config": RULES, "type": "custom-rules"}])
    def test_a_change_of_nothing_makes_no_version(self, call: Call, fields: dict[str, Any]) -> None:
        first = created(call)
        answer = call("PUT", f"{GRADERS}/{first['id']}", json=fields)
        assert (answer.status, answer.data) == (200, first)

    def test_a_wrong_change_changes_nothing(self, call: Call) -> None:
        first = created(call)
        place = f"{GRADERS}/{first['id']}"
        assert problems(call("PUT", place, json={"config": {"rules": []}})) == ["config.rules"]
        assert call("PUT", place, json={"name": None}).error["code"] == "INVALID_INPUT"
        assert call("PUT", place, json={"id": "x"}).error["code"] == "INVALID_INPUT"
        assert call("GET", place).data == first

    def test_concurrent_changes_are_all_kept(self, service: Service) -> None:
        first = service.graders.create(GOOD)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: service.graders.change(first.id, {"name": f"name {n}"}), range(8)))
        names = {service.graders.get(first.id, version).name for version in range(2, 10)}
        assert (service.graders.get(first.id).version, names) == (9, {f"name {n}" for n in range(8)})

    def test_a_deleted_grader_is_gone_and_its_versions_stay(self, call: Call) -> None:
        first = created(call)
        place = f"{GRADERS}/{first['id']}"
        answer = call("DELETE", place)
        assert (answer.status, answer.body) == (204, None)
        assert first["id"] not in listed(call)
        for method in ("GET", "PUT", "DELETE"):
            assert call(method, place, json={} if method == "PUT" else None).status == 404
        assert call("GET", f"{place}?version=1").data == {**first, "status": "deleted"}

    @pytest.mark.parametrize("query", ["version=0", "version=-1", "version=x", "version=2147483648"])
    def test_a_version_is_a_number(self, call: Call, query: str) -> None:
        assert call("GET", f"{GRADERS}/string-match?{query}").error["code"] == "INVALID_INPUT"

    @pytest.mark.parametrize("name", ["nope", "%00", "é", "new"])
    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    def test_an_unknown_id_is_not_found(self, call: Call, method: str, name: str) -> None:
        answer = call(method, f"{GRADERS}/{name}", json={} if method == "PUT" else None)
        assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")


class TestListing:
    def test_pages(self, call: Call) -> None:
        mine = [created(call, name=str(n))["id"] for n in range(3)]
        known = [*(one["id"] for one in graders.registry.list()), *mine]
        seen: list[str] = []
        cursor = ""
        while True:
            page = call("GET", f"{GRADERS}?limit=7{cursor}").data
            assert (page["count"], page["total"]) == (len(page["graders"]), len(known))
            seen += [one["id"] for one in page["graders"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == known
        assert [one["id"] for one in call("GET", f"{GRADERS}?skip={len(known) - 1}").data["graders"]] == mine[-1:]

    @pytest.mark.parametrize(
        ("query", "status"),
        [("limit=1000", 200), ("limit=1001", 400), ("limit=0", 400), ("cursor=x", 400), ("skip=-1", 400)],
    )
    def test_parameters_at_their_edges(self, call: Call, query: str, status: int) -> None:
        assert call("GET", f"{GRADERS}?{query}").status == status


@pytest.mark.usefixtures("folder")
class TestPython:
    def test_functions_are_listed_and_a_file_that_cannot_be_loaded_too(self, call: Call, folder: Path) -> None:
        known = {name: one for name, one in listed(call).items() if one["type"] == "python"}
        assert {name: (one["status"], one["description"]) for name, one in known.items()} == {
            "broken.py": ("error", ""),
            "says_please": ("active", "Whether it says please."),
            "breaks": ("active", ""),
        }
        assert "broken.py:4" in known["broken.py"]["error"]
        assert str(folder) not in json.dumps(known)
        assert known["says_please"]["source"] == "python"

    def test_an_edited_file_is_reloaded(self, call: Call, folder: Path) -> None:
        before = call("GET", f"{GRADERS}/says_please").data["fingerprint"]
        (folder / "words.py").write_text("NICE = 'thank you'\n")
        assert call("GET", f"{GRADERS}/says_please").data["fingerprint"] != before
        (folder / "broken.py").unlink()
        assert "broken.py" not in listed(call)

    def test_a_name_that_two_have_names_neither(self, call: Call, folder: Path) -> None:
        mark = "from gradeline import grader\n\n@grader\ndef {}(sample, submission): return 1.0\n"
        (folder / "again.py").write_text(mark.format("says_please"))
        (folder / "builtin.py").write_text(mark.format("contains"))
        found = listed(call)
        assert "says_please" not in found
        twice = "2 functions are marked as grader 'says_please': again.py:4 and polite.py:5; rename all but one"
        built_in = (
            "the built-in grader 'contains' has the name of this function (builtin.py:4); rename the function, for"
            ' instance @grader(name="my_contains")'
        )
        assert {name: (one["status"], one["error"]) for name, one in found.items() if ":" in name} == {
            "again.py:says_please": ("error", twice),
            "polite.py:says_please": ("error", twice),
            "builtin.py:contains": ("error", built_in),
        }

    def test_they_cannot_be_changed_over_rest(self, call: Call) -> None:
        assert call("PUT", f"{GRADERS}/says_please", json={"name": "x"}).status == 403
        assert call("DELETE", f"{GRADERS}/says_please").status == 403
        assert call("POST", GRADERS, json={**GOOD, "id": "says_please"}).status == 409

    def test_a_preview_runs_in_a_worker(self, call: Call) -> None:
        place = f"{GRADERS}/says_please/preview"
        assert call("POST", place, json={"agent_response": "yes please"}).data["score_status"] == "pass"
        assert call("POST", place, json={"agent_response": "no"}).data["score_value"] == 0.0
        broken = call("POST", f"{GRADERS}/breaks/preview", json={"agent_response": "x"}).data
        assert (broken["score_status"], broken["score_value"], broken["error_type"]) == ("error", None, "RuntimeError")
        refused = call("POST", f"{GRADERS}/broken.py/preview", json={"agent_response": "x"})
        assert (refused.status, refused.error["code"]) == (400, "INVALID_GRADER")


class TestResolving:
    def test_ids_and_entries_become_columns(self, service: Service) -> None:
        stored = service.graders.create(GOOD)
        service.graders.change(stored.id, {"name": "Nicer"})
        entries = [
            "string_match",
            {"id": "string-match", "config": {"case_sensitive": True}, "name": "strict"},
            stored.id,
            {"id": stored.id, "config": {"mode": "any"}, "name": "any"},
        ]
        found = service.graders.resolve(entries)
        assert [(one.key, one.name, one.kind, one.config, one.function) for one in found] == [
            ("string-match", "String match", "string-match", {}, None),
            ("strict", "strict", "string-match", {"case_sensitive": True}, None),
            (stored.id, "Nicer", "custom-rules", RULES, None),
            ("any", "any", "custom-rules", {**RULES, "mode": "any"}, None),
        ]
        assert found[2].definition == {
            "id": stored.id,
            "source": "stored",
            "version": 2,
            "name": "Nicer",
            "type": "custom-rules",
            "config": RULES,
            "fingerprint": stored.fingerprint,
        }

    @pytest.mark.usefixtures("folder")
    def test_a_python_grader_is_named_by_its_function(self, service: Service) -> None:
        (one,) = service.graders.resolve(["says_please"])
        assert (one.key, one.kind, one.function) == ("says_please", "python", "polite.py:says_please")
        refused = self._refused(service, [{"id": "says_please", "config": {"x": 1}}])
        assert (refused.code, refused.message.split(":")[0]) == (Code.INVALID_GRADER, "grader_ids[0].config")

    @pytest.mark.parametrize(
        ("entries", "code", "fields"),
        [
            (["nope"], Code.INVALID_GRADER_ID, ["grader_ids[0]"]),
            (["contains", "\0"], Code.INVALID_GRADER_ID, ["grader_ids[1]"]),
            (["contains", "contains"], Code.DUPLICATE_ID, ["grader_ids[1]"]),
            (["string-match", "string_match"], Code.DUPLICATE_ID, ["grader_ids[1]"]),
            (["contains", {"id": "exact_match", "name": "contains"}], Code.DUPLICATE_ID, ["grader_ids[1]"]),
            (["custom-rules"], Code.INVALID_GRADER, ["grader_ids[0].config.rules"]),
            (
                ["nope", {"id": "string-match", "config": {"x": 1, "case_sensitive": 7}}],
                Code.INVALID_GRADER_ID,
                ["grader_ids[0]", "grader_ids[1].config.case_sensitive", "grader_ids[1].config.x"],
            ),
        ],
    )
    def test_all_faults_are_reported_at_once(
        self, service: Service, entries: list[Any], code: Code, fields: list[str]
    ) -> None:
        error = self._refused(service, entries)
        assert (error.code, error.status) == (code, 400)
        assert error.details is not None
        assert [fault["field"] for fault in error.details["errors"]] == fields

    def test_a_deleted_grader_is_unknown(self, service: Service) -> None:
        stored = service.graders.create(GOOD)
        service.graders.delete(stored.id)
        assert self._refused(service, [stored.id]).code is Code.INVALID_GRADER_ID

    def _refused(self, service: Service, entries: list[Any]) -> ServiceError:
        with pytest.raises(ServiceError) as caught:
            service.graders.resolve(entries)
        return caught.value


def test_a_grader_of_a_kind_that_is_gone_is_an_error(service: Service) -> None:
    stored = service.graders.create(GOOD)
    service.database.transact(lambda transaction: transaction.run("UPDATE stored_grader_versions SET kind = 'gone'"))
    info = service.graders.get(stored.id)
    assert (info.status, info.fingerprint) == ("error", stored.fingerprint)
    with pytest.raises(ServiceError, match="cannot be used"):
        service.graders.resolve_one(stored.id)


def test_graders_are_there_after_a_restart(service: Service, settings: ServeSettings) -> None:
    stored = service.graders.create(GOOD)
    again = StoredGraders(service.database, settings)
    assert again.get(stored.id) == stored
    assert isinstance(again.resolve_one(stored.id), ResolvedGrader)


def test_scopes_and_the_audit_log(client: TestClient, service: Service, call_with: Callable[[str], Any]) -> None:
    reader, runner, admin = call_with("read"), call_with("run"), call_with("admin")
    assert client.get(GRADERS).status_code == 401
    assert client.get(GRADERS, headers=reader).status_code == 200
    assert client.post(GRADERS, json=GOOD, headers=runner).status_code == 403
    stored = client.post(GRADERS, json=GOOD, headers=admin)
    assert stored.status_code == 201
    place = f"{GRADERS}/{stored.json()['data']['id']}"
    assert client.put(place, json={"name": "x"}, headers=runner).status_code == 403
    assert client.put(place, json={"name": "x"}, headers=admin).status_code == 200
    text = {"agent_response": "please"}
    assert client.post(f"{place}/preview", json=text, headers=reader).status_code == 403
    assert client.post(f"{place}/preview", json=text, headers=runner).status_code == 200
    unsaved = {**text, "definition": {"type": "custom-rules", "config": RULES}}
    assert client.post(f"{GRADERS}/new/preview", json=unsaved, headers=runner).status_code == 403
    assert client.post(f"{GRADERS}/new/preview", json=unsaved, headers=admin).status_code == 200
    assert client.delete(place, headers=runner).status_code == 403
    assert client.delete(place, headers=admin).status_code == 204
    subject = f"grader/{stored.json()['data']['id']}"
    assert [entry.action for entry in service.audit.entries() if entry.subject == subject] == [
        "create",
        "update",
        "delete",
    ]
