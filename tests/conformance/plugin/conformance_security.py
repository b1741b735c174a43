"""A pytest plugin for kafka-python's own run: their fixtures connect as CONFORMANCE_SECURITY says.

It is a JSON object of arguments of their clients. Their fixtures know how to connect to a broker
that they have started with SASL themselves, and take any other for one without. Only what the
fixtures hand over is filled in; a test that says how it connects is left alone.
"""

import importlib
import json
import os
from typing import Any

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    KafkaFixture: Any = importlib.import_module("test.integration.fixtures").KafkaFixture
    secure = json.loads(os.environ["CONFORMANCE_SECURITY"])
    theirs = KafkaFixture._enrich_client_params

    def enriched(self: Any, params: Any, **defaults: Any) -> Any:
        return theirs(self, params, **{**secure, **defaults})

    KafkaFixture._enrich_client_params = enriched
