"""Certificates are made once for all tests of a folder: signing takes time."""

import pytest

from tests.support.security.certificates import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
