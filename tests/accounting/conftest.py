"""What the tests of the accounting share."""

import pytest

from tests.accounting.scene import Scene


@pytest.fixture
def scene():
    """Return a mark buffer of which this thread is the training thread; on teardown its steps must add up."""
    scene = Scene()
    try:
        yield scene
        scene.check()
    finally:
        scene.close()
