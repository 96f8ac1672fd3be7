"""Fixtures of several files of this floor."""

import pytest

from tests.node_floor import Floor


@pytest.fixture
def floor(tmp_path):
    made = []

    def make(**more):
        made.append(Floor(tmp_path, **more))
        return made[-1]

    yield make
    for page in made[0].pages if made else ():
        page.close()
