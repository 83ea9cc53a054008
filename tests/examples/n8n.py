"""Runs the nodes of an n8n workflow file as n8n does, as far as ours need it: triggers, requests, lists taken apart.

Expressions are JavaScript, and Node runs them.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx

_EVALUATE = """
const { expression, scope } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const $ = (name) => ({ item: { json: scope.nodes[name] } });
const run = new Function("$", "$json", "$execution", "return (" + expression + ");");
const found = run($, scope.json, { id: scope.execution });
process.stdout.write(JSON.stringify(found === undefined ? null : found));
"""

PASSING = ("n8n-nodes-base.noOp", "n8n-nodes-base.scheduleTrigger", "n8n-nodes-base.manualTrigger")


class Workflow:
    """A workflow file; `addresses` are put in the place of those that are written in it."""

    def __init__(self, file: Path, node: str, addresses: dict[str, str], credential: str) -> None:
        text = file.read_text(encoding="utf-8")
        for written, real in addresses.items():
            assert written in text, written
            text = text.replace(written, real)
        self.content: dict[str, Any] = json.loads(text)
        self.nodes: dict[str, dict[str, Any]] = {each["name"]: each for each in self.content["nodes"]}
        self._node = node
        self._credential = credential
        self._executions = 0

    def following(self, name: str) -> list[str]:
        found = self.content["connections"].get(name, {"main": []})
        return [link["node"] for branch in found["main"] for link in branch]

    def execute(self, trigger: str, item: Any) -> list[Any]:
        """Run a workflow from a trigger with an item; the items of its last node."""
        self._executions += 1
        return self._run(trigger, [({}, item)])

    def _run(self, name: str, items: list[tuple[dict[str, Any], Any]]) -> list[Any]:
        """Each item comes with what it was at the nodes before."""
        done: list[tuple[dict[str, Any], Any]] = []
        for earlier, item in items:
            done += [({**earlier, name: found}, found) for found in self._do(self.nodes[name], earlier, item)]
        following = self.following(name)
        if not following:
            return [found for _, found in done]
        assert len(following) == 1
        return self._run(following[0], done) if done else []

    def _do(self, node: dict[str, Any], earlier: dict[str, Any], item: Any) -> list[Any]:
        kind = node["type"]
        if kind in PASSING or kind == "n8n-nodes-base.webhook":
            return [item]
        if kind == "n8n-nodes-base.splitOut":
            return list(item[node["parameters"]["fieldToSplitOut"]])
        assert kind == "n8n-nodes-base.httpRequest", kind
        return [self._request(node["parameters"], {"json": item, "nodes": earlier})]

    def _request(self, parameters: dict[str, Any], scope: dict[str, Any]) -> Any:
        assert parameters["authentication"] == "genericCredentialType"
        assert parameters["genericAuthType"] == "httpHeaderAuth"
        query = {}
        if parameters.get("sendQuery"):
            for each in parameters["queryParameters"]["parameters"]:
                query[each["name"]] = str(self._value(each["value"], scope))
        content = None
        headers = {"Authorization": self._credential}
        if parameters.get("sendBody"):
            assert parameters["specifyBody"] == "json"
            value = self._value(parameters["jsonBody"], scope)
            content = value if isinstance(value, str) else json.dumps(value)
            headers["Content-Type"] = "application/json"
        url = str(self._value(parameters["url"], scope))
        with httpx.Client(trust_env=False, timeout=60) as client:
            answer = client.request(parameters["method"], url, params=query, content=content, headers=headers)
        answer.raise_for_status()
        return answer.json()

    def _value(self, text: str, scope: dict[str, Any]) -> Any:
        """A parameter, evaluated if it is an expression."""
        if not text.startswith("="):
            return text
        whole = re.fullmatch(r"=\{\{(.*)\}\}", text, re.DOTALL)
        assert whole is not None, "an expression of ours is one whole"
        asked = {"expression": whole[1].strip(), "scope": {**scope, "execution": str(self._executions)}}
        run = subprocess.run(
            [self._node, "-e", _EVALUATE],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)
