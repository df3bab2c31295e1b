"""Sending threads share one core, because they share Python's interpreter lock."""

import os
import sys
import threading

import pytest

from crmctl.write.sender import on_one_core

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind threads to cores")


def test_threads_started_inside_stay_on_the_core_of_their_starter():
    before, cores = os.sched_getaffinity(0), []
    with on_one_core():
        thread = threading.Thread(target=lambda: cores.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        cores.append(os.sched_getaffinity(0))
    assert cores[0] == cores[1]
    assert len(cores[0]) == 1
    assert cores[0] <= before
    assert os.sched_getaffinity(0) == before


def test_an_interrupt_frees_the_thread_again():
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyboardInterrupt), on_one_core():
        raise KeyboardInterrupt
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("refusal", [PermissionError(), OSError(22, "Invalid argument")])
def test_a_system_that_forbids_it_changes_nothing(monkeypatch, refusal):
    def refuse(*_):
        raise refusal

    before = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with on_one_core():
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_an_interpreter_without_the_lock_uses_all_cores(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    before = os.sched_getaffinity(0)
    with on_one_core():
        assert os.sched_getaffinity(0) == before
