"""The conformance suite: what every adapter of a broker has to do, tried against the real server.

    @pytest.fixture(scope="module")
    def bench() -> Iterator[Bench]:
        with my_server() as server:
            yield MyBench(server)


    class TestMine(Conformance):
        pass

A bench says what the suite cannot know: how to reach the server, hurt it, and look at what arrived. Cases that hang on
something which an adapter does not promise, or a bench does not have, are left out where the class names it in
``lacks``, and fail where it does not. It takes pytest with pytest-asyncio.
"""

from __future__ import annotations

from oncommit.testing.conformance.bench import Arrived, Bench, ServerControl, WrongLogin
from oncommit.testing.conformance.suite import Conformance

__all__ = ["Arrived", "Bench", "Conformance", "ServerControl", "WrongLogin"]
