from collections.abc import Iterator

import pytest

from dragoman.client import TranslationClient
from tests.fakes.translation_server import FakeTranslationService, serve


@pytest.fixture
def service() -> FakeTranslationService:
    return FakeTranslationService()


@pytest.fixture
def address(service: FakeTranslationService) -> Iterator[str]:
    with serve(service) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[TranslationClient]:
    with TranslationClient(address, timeout_s=20) as client:
        yield client
