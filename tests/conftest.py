"""What holds for all tests."""

from hypothesis import settings

from tests.support.users import shared_root

__all__ = ["shared_root"]

settings.register_profile("lockstep", deadline=None)  # seconds say what else the machine does, not what is right
settings.load_profile("lockstep")
