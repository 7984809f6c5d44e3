"""Requests made from the server's own OpenAPI document: no 500, no undocumented answer."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from helpers.servers import get, make_document, serving
from helpers.tiny_server import TEMPLATES, tiny

DOCUMENT = make_document()
schema = schemathesis.openapi.from_dict(DOCUMENT).exclude(path="/v1/steps")  # it has no end


@pytest.fixture(scope="module")
def small():
    with serving(tiny(TEMPLATES["hermes"], max_model_len=256)) as found:
        yield found


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_document_promises(case, small):
    # what a model's vocabulary, context and template take is in no schema
    case.call_and_validate(
        base_url=small.url, timeout=60, excluded_checks=[positive_data_acceptance]
    )


def test_the_document_is_the_one_that_is_served(small):
    answer = get(small.port, "/openapi.json").partition(b"\r\n\r\n")[2]
    assert json.loads(answer) == DOCUMENT


def test_the_document_names_every_endpoint():
    paths = DOCUMENT["paths"]
    assert set(paths) == {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/steps",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
        "/version",
    }


def test_every_field_of_the_document_can_be_left_out_or_null():
    """But for those that are required."""
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("CompletionRequest", "ChatRequest"):
        body = schemas[name]
        assert body["additionalProperties"] is False
        assert set(body["required"]) <= {"prompt", "messages"}


def test_errors_have_the_shape_of_the_document(served):
    answer = get(served.port, "/nowhere").partition(b"\r\n\r\n")[2]
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}
