"""Which threads may interrupt which: the loop's the computing ones, where the kernel knows how."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from evenflow.server.run import Server, listen
from evenflow.server.settings import Settings
from evenflow.server.slices import LONG_S, SOON_S, USUAL_S, ask_for, slice_of
from helpers.servers import LetterModel, post, read_all, serving


def on_a_thread(work):
    """Run on a thread of its own, which takes its slice with it."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def probe() -> bool:
    return ask_for(SOON_S) and slice_of(threading.get_native_id()) == SOON_S


known = pytest.mark.skipif(
    not on_a_thread(probe),
    reason="this kernel gives no slices, or the tests do not run as SCHED_OTHER",
)


@known
def test_a_thread_hands_its_slice_to_those_it_starts_and_may_change_it():
    def work():
        ask_for(LONG_S)
        child = on_a_thread(lambda: slice_of(threading.get_native_id()))
        ask_for(USUAL_S)
        return child, slice_of(threading.get_native_id())

    child, usual = on_a_thread(work)
    assert child == LONG_S
    assert usual not in {SOON_S, LONG_S}


@known
def test_a_thread_that_has_served_gets_its_own_back():
    def work():
        server = Server(Settings(port=0), LetterModel, lambda *_: server.stop())
        with asyncio.Runner() as runner:
            runner.run(server.serve(listen("127.0.0.1", 0)))
        return slice_of(threading.get_native_id())

    assert on_a_thread(work) not in {SOON_S, LONG_S}


@known
def test_the_loop_may_interrupt_the_engine():
    with serving(load=LetterModel) as served:
        assert served.on_loop(lambda: slice_of(threading.get_native_id())) == SOON_S
        model, _ = served.server.state.loaded()
        assert slice_of(model.engine._thread.native_id) == LONG_S
        body = {"prompt": "a" * 3000, "max_tokens": 1}  # long enough for the encoding thread
        read_all(post(served.port, "/v1/completions", body, headers={"connection": "close"}))
        (encoder,) = [t for t in threading.enumerate() if t.name.startswith("evenflow-encode")]
        assert slice_of(encoder.native_id) not in {SOON_S, LONG_S}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such kinds")
def test_a_thread_of_another_kind_is_left_alone():
    def work():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return ask_for(SOON_S), os.sched_getscheduler(0)

    assert on_a_thread(work) == (False, os.SCHED_IDLE)
