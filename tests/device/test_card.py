"""The simulated card itself: memory between processes, its cache, streams that are busy, pinned memory."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.device import card
from tests.device.conftest import CONTEXT, MIB, TOTAL
from tests.park_harness import wait_until


def test_bytes_are_told_outside_as_they_are_taken_and_given_back(on_card, card_path):
    def check(cuda):
        said = [cuda.is_initialized(), card.used(card_path)]
        one = torch.empty(3 * MIB, dtype=torch.uint8, device="card")
        said += [card.used(card_path)[os.getpid()], cuda.memory_allocated(), cuda.memory_reserved()]
        del one
        said += [cuda.memory_allocated(), cuda.memory_reserved()]
        cuda.empty_cache()
        return [*said, cuda.memory_reserved(), card.used(card_path)[os.getpid()]]

    segment = 20 * MIB
    taken = [CONTEXT + segment, 3 * MIB, segment]
    assert on_card(check) == [False, {}, *taken, 0, segment, 0, CONTEXT]


def test_freed_blocks_are_joined_and_used_again(on_card):
    def check(cuda):
        parts = [torch.empty(5 * MIB, dtype=torch.uint8, device="card") for _ in range(4)]
        addresses = [part.data_ptr() for part in parts]
        before, found = cuda.memory_reserved(), len(cuda.memory_snapshot())
        del parts
        whole = torch.empty(10 * MIB - 512, dtype=torch.uint8, device="card")
        return [before, found, cuda.memory_reserved(), whole.data_ptr() == addresses[0]]

    assert on_card(check) == [20 * MIB, 1, 20 * MIB, True]


def test_what_was_freed_is_no_number_and_no_address_comes_twice(on_card):
    def check(cuda):
        one = torch.ones(4 * MIB, device="card")
        address = one.data_ptr()
        storage = one.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            one.sum()
        cuda.empty_cache()
        storage.resize_(size)
        return [bool(one.isnan().all()), one.data_ptr() == address]

    assert on_card(check) == [True, False]


def test_more_than_there_is_raises_and_is_counted(on_card):
    def check(cuda):
        kept = torch.empty(TOTAL // 2, dtype=torch.uint8, device="card")
        freed = torch.empty(TOTAL // 4, dtype=torch.uint8, device="card")
        del freed  # what the cache has is given back before anything fails
        again = torch.empty(3 * TOTAL // 8, dtype=torch.uint8, device="card")
        with pytest.raises(torch.OutOfMemoryError, match="card out of memory"):
            torch.empty(TOTAL // 8, dtype=torch.uint8, device="card")
        return [cuda.memory_stats(0)["num_ooms"], len(kept) + len(again) == cuda.memory_allocated()]

    assert on_card(check) == [1, True]


def test_a_process_may_be_bound_to_a_part(on_card):
    def check(cuda):
        cuda.set_per_process_memory_fraction(0.25, 0)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(TOTAL // 2, dtype=torch.uint8, device="card")
        part = cuda.get_per_process_memory_fraction(0)
        cuda.set_per_process_memory_fraction(1.0, 0)
        torch.empty(TOTAL // 2, dtype=torch.uint8, device="card")
        return part

    assert on_card(check) == 0.25


def test_neighbours_bytes_are_missing(on_card, card_path):
    with card.occupied(card_path, TOTAL - CONTEXT - 2 * MIB):

        def check(cuda):
            kept = torch.ones(8, device="card")
            with pytest.raises(torch.OutOfMemoryError):
                torch.ones(2 * MIB, device="card")
            return [*cuda.mem_get_info(0), len(kept)]

        assert on_card(check) == [0, TOTAL, 8]
    assert on_card(lambda cuda: cuda.mem_get_info(0)) == [TOTAL - CONTEXT, TOTAL]


HOLDER = """
import sys, torch
from tests.device import backend
backend.install()
kept = torch.ones(20 << 20, device="card")
print("holds", flush=True)
sys.stdin.read()
"""


def test_memory_of_a_killed_process_is_free_at_once(card_env, card_path, on_card):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=card_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "holds\n"
        assert card.used(card_path) == {holder.pid: CONTEXT + 80 * MIB}
        holder.send_signal(signal.SIGKILL)
        wait_until(lambda: not card.used(card_path), "the process to be gone")
        # It is a zombie still.
        assert on_card(lambda cuda: cuda.mem_get_info(0)) == [TOTAL - CONTEXT, TOTAL]


def test_streams_are_busy_behind_the_script(on_card):
    def check(cuda):
        began = time.monotonic()
        cuda.queue_work(5.0)
        event = cuda.Event()
        event.record(cuda.current_stream(0))
        side = cuda.Stream()
        said = [event.query(), side.query()]
        side.wait_event(event)
        said += [side.query(), time.monotonic() - began < 5.0]
        cuda.synchronize(0)
        return [*said, event.query(), time.monotonic() - began >= 5.0]

    assert on_card(check) == [False, True, False, True, True, True]


def test_who_reads_a_value_waits_and_who_copies_to_pinned_memory_must(on_card):
    def check(cuda):
        one = torch.full((4,), 7.0, device="card")
        target = torch.zeros(4, pin_memory=True)
        began = time.monotonic()
        cuda.queue_work(2.0)
        target.copy_(one, non_blocking=True)
        early = target.tolist()
        value = one.sum().item()
        return [target.is_pinned(), early, value, time.monotonic() - began >= 2.0, target.tolist()]

    assert on_card(check) == [True, [0.0] * 4, 28.0, True, [7.0] * 4]


def test_copies_take_their_time(on_card):
    def check(cuda):
        cuda.set_pace(bytes_per_s=100 * MIB)
        began = time.monotonic()
        torch.zeros(20 * MIB, dtype=torch.uint8).to("card")
        return time.monotonic() - began

    assert 0.2 <= on_card(check) < 60


def test_devices_are_not_mixed(on_card):
    def check(cuda):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.ones(3, device="card") + torch.ones(3)
        return (torch.ones(3, device="card") * torch.tensor(2.0)).tolist()

    assert on_card(check) == [2.0] * 3


def test_its_own_generator_is_drawn_from_and_put_back(on_card):
    def check(cuda):
        torch.manual_seed(3)
        state = cuda.get_rng_state(0)
        first = torch.rand(3, device="card").tolist()
        cuda.set_rng_state(state, 0)
        again = torch.rand(3, device="card").tolist()
        host = torch.rand(3).tolist()
        own = torch.rand(3, device="card", generator=torch.Generator("card:0").manual_seed(3)).tolist()
        return [first == again, first == host, first == own]

    assert on_card(check) == [True, True, True]
