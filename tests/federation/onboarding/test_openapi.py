"""The service answers as its OpenAPI description says, to whatever schemathesis thinks of."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from sottovoce.federation.onboarding.service import create_service
from sottovoce.machine.tokens import new_token

from .live import live

DOCUMENTED = {
    "/v1/specification": {"200"},
    "/v1/context-model": {"200", "404"},
    "/v1/access": {"200", "401", "503"},
    "/v1/onboard": {"200", "400", "401", "409", "413", "422", "503"},
    "/health": {"200"},
    "/metrics": {"200"},
}


def test_every_answer_is_documented_with_its_form(run: Path) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        description = json.loads(urllib.request.urlopen(f"{url}/openapi.json", timeout=600).read())
    for path, statuses in DOCUMENTED.items():
        [operation] = description["paths"][path].values()
        assert statuses <= set(operation["responses"])
        for status in statuses - {"200"}:
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Refusal"}
    assert "application/octet-stream" in description["paths"]["/v1/onboard"]["post"]["requestBody"]["content"]


@pytest.mark.slow
@pytest.mark.parametrize("open_to_all", [True, False])
def test_schemathesis_finds_nothing(run: Path, open_to_all: bool) -> None:
    import hypothesis
    import schemathesis
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    headers = {"Authorization": f"Bearer {new_token(run, 'alice')}"}
    with live(create_service(run, open_to_all=open_to_all)) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for operation in schema.get_all_operations():

            @hypothesis.settings(
                max_examples=100,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.ok().as_strategy())
            def ask(case: schemathesis.Case) -> None:
                case.call_and_validate(
                    headers=None if case.method == "GET" else headers,
                    # A context is authenticated: no schema can say which bytes are one.
                    excluded_checks=[positive_data_acceptance],
                )

            ask()
