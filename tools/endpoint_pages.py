"""Writes docs/server/: a page per endpoint, from the OpenAPI document that the server serves.

Without an argument it writes the pages; with --check it exits with 1 if one is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from evenflow.server.run import Server
from evenflow.server.settings import Settings

FOLDER = Path(__file__).parents[1] / "docs" / "server"
NOTE = "<!-- made by tools/endpoint_pages.py from the code; change it there -->"
EXAMPLES = {
    "/v1/completions": {"model": "smollm2", "prompt": "The sea is", "max_tokens": 16},
    "/v1/chat/completions": {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Name three colors."}],
        "stream": True,
    },
    "/tokenize": {"prompt": "The sea is"},
    "/detokenize": {"tokens": [504, 3300, 314]},
}


def pages() -> dict[str, str]:
    """File name -> content."""
    document = Server(Settings(), _no_model, lambda *_: None).document()
    schemas = document["components"]["schemas"]
    made = {}
    for path, entry in document["paths"].items():
        ((method, about),) = entry.items()
        name = path.strip("/").replace("/", "-").replace("{", "").replace("}", "") + ".md"
        made[name] = "\n".join([*_page(path, method, about, schemas), ""])
    index = [NOTE, "", "# Endpoints", "", "| | |", "|---|---|"]
    for (path, entry), name in zip(document["paths"].items(), list(made), strict=True):
        ((method, about),) = entry.items()
        summary = about.get("description", about["summary"]).split(". ")[0].rstrip(".")
        index.append(f"| [{method.upper()} {path}]({name}) | {summary} |")
    made["README.md"] = "\n".join([*index, ""])
    return made


def _no_model() -> Any:
    raise AssertionError("no page needs a model")


def _page(path: str, method: str, about: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    lines = [NOTE, "", f"# {method.upper()} {path}", "", about.get("description", "")]
    if "requestBody" in about:
        reference = about["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        lines += _fields(schemas[reference.rsplit("/", 1)[1]], schemas)
        example = json.dumps(EXAMPLES[path])
        lines += ["", "## Example", "", "```sh", f"curl http://127.0.0.1:8000{path} \\"]
        lines += ["  -H 'content-type: application/json' \\", f"  -d '{example}'", "```"]
    for parameter in about.get("parameters", []):
        schema = parameter["schema"]
        default = f", {schema['default']} unless given" if "default" in schema else ""
        lines += [
            "",
            f"`{parameter['name']}` (in the {parameter['in']}): {schema['type']}{default}",
        ]
    lines += ["", "## Answers", "", "| status | meaning |", "|---|---|"]
    for status, answer in sorted(about["responses"].items()):
        lines.append(f"| {status} | {answer['description']} |")
    return lines


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    required = set(schema.get("required", ()))
    lines = ["", "## Fields", "", "| field | takes | |", "|---|---|---|"]
    neutral = [
        "",
        "These pass with the values given here, which ask for nothing; any other value is a",
    ]
    neutral += ["400 that names the field.", "", "| field | values | |", "|---|---|---|"]
    plain = len(neutral)
    for name, field in schema["properties"].items():
        if "enum" in field:
            values = ", ".join(f"`{json.dumps(v)}`" for v in field["enum"])
            hint = field["description"].removeprefix("Nothing else: ")
            neutral.append(f"| `{name}` | {values} | {hint[:1].upper()}{hint[1:]} |")
            continue
        text = field.get("description", "") + (" **Required.**" if name in required else "")
        lines.append(f"| `{name}` | {_kind(field, schemas)} | {text.strip()} |")
    return lines + (neutral if len(neutral) > plain else [])


def _many(kind: str) -> str:
    """The plural of a kind."""
    for one, many in (("list of", "lists of"), ("object of", "objects of")):
        if kind.startswith(one):
            return kind.replace(one, many, 1)
    return f"{kind}s"


def _kind(field: dict[str, Any], schemas: dict[str, Any]) -> str:
    """What a field takes, in words."""
    if "anyOf" in field:
        kinds = [_kind(one, schemas) for one in field["anyOf"]]
        return " or ".join(kind for kind in kinds if kind != "null")
    if "$ref" in field:
        inner = schemas[field["$ref"].rsplit("/", 1)[1]]["properties"]
        return "object of " + ", ".join(f"`{name}`" for name in inner)
    kind = str(field.get("type", "any"))
    if kind == "array":
        items = {k: v for k, v in field["items"].items() if k != "minimum"}
        return f"list of {_many(_kind(items, schemas))}"
    low = field.get("minimum", field.get("exclusiveMinimum"))
    if low is not None and "maximum" in field:
        start = "above" if "exclusiveMinimum" in field else "from"
        return f"{kind} {start} {low} to {field['maximum']}"
    return kind


def main() -> int:
    """Write the pages, or check them."""
    made = pages()
    stale = [
        name
        for name, text in made.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]
    extra = [path.name for path in FOLDER.glob("*.md") if path.name not in made]
    if "--check" in sys.argv:
        for name in stale + extra:
            print(f"docs/server/{name} is out of date", file=sys.stderr)
        return 1 if stale or extra else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in extra:
        (FOLDER / name).unlink()
    for name in stale:
        (FOLDER / name).write_text(made[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
