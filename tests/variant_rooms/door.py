"""Known-wrong variants. The daemons' TCP door, and their signs of life."""

from __future__ import annotations

from tests.variant_kit import Variant

DOOR = "gandiva_slurm/wire/door.py"
CROWD = "tests/controller/test_crowd.py"
TESTS = "tests/controller/test_door.py"

VARIANTS = (
    Variant(
        "connections-take-the-last-descriptor",
        f"{DOOR}:Door._accept",
        "                _leave_spare(link)\n",
        "",
        "A crowd leaves a daemon no descriptor for its own files.",
        ("tests/node/test_crowd.py::test_without_descriptors_left_it_lives_on",),
    ),
    Variant(
        "silence-is-waited-for",
        f"{DOOR}:Door._is_late",
        "guest.deadline = loop.call_later(ONCE_MORE_S, self._show_out, guest)",
        "assert loop",
        "A connection may say nothing for ever.",
        (f"{CROWD}::test_a_head_that_comes_by_the_byte_is_not_waited_for",),
    ),
    Variant(
        "address-without-bound",
        f"{DOOR}:Door.enter",
        "if len(theirs) >= PER_ADDRESS:",
        "if False:",
        "One address may have all connections there are.",
        (f"{TESTS}::test_those_who_ask_for_nothing_now_make_room_too",),
    ),
    Variant(
        "connections-without-bound",
        f"{DOOR}:Door.enter",
        "elif len(self._guests) >= self._most:",
        "elif False:",
        "Connections from many addresses use up the descriptors.",
        (f"{TESTS}::test_where_all_are_too_many_the_address_with_most_makes_room",),
    ),
    Variant(
        "crowd-drives-out-the-known",
        f"{DOOR}:Door._make_room",
        "if not each.is_known",
        "if True",
        "A crowd of strangers ends the connection of a daemon that has signed.",
        (f"{TESTS}::test_who_has_proved_nothing_goes_first_and_the_oldest_of_them",),
    ),
    Variant(
        "accept-fails-for-good",
        f"{DOOR}:Door._accept",
        "except OSError as err:",
        "except BlockingIOError as err:",
        "A daemon without descriptors for a moment takes no connection any more.",
        (
            f"{CROWD}::test_without_descriptors_left_it_waits_for_some",
            "tests/node/test_crowd.py::test_without_descriptors_left_it_lives_on",
        ),
    ),
    Variant(
        "few-descriptors",
        f"{DOOR}:raise_descriptor_limit",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))",
        "pass",
        "A daemon lives with 1024 descriptors where it may have more.",
        (f"{CROWD}::test_it_takes_as_many_descriptors_as_it_may_have",),
    ),
    Variant(
        "nonsense-fills-the-log",
        f"{DOOR}:_Junk.exception",
        "        told =",
        "        log.error(text, *args, exc_info=True)\n        told =",
        "Each nonsensical request writes a traceback.",
        (f"{CROWD}::test_nonsense_is_a_line_a_kind_and_never_a_traceback",),
    ),
    Variant(
        "cut-request-fills-the-log",
        "gandiva_slurm/wire/http.py:_body",
        'raise PeerError(f"the request cannot be read to its end ({type(err).__name__})") from err',
        "raise",
        "A request whose body cannot be read is taken for an error of the daemon's.",
        (f"{CROWD}::test_nonsense_is_a_line_a_kind_and_never_a_traceback",),
    ),
    Variant(
        "questions-without-bound",
        "gandiva_slurm/wire/http.py:signed_route",
        "if per_user and asking[uid] >= per_user:",
        "if False:",
        "One user's questions keep all others' waiting.",
        (f"{TESTS}::test_a_user_is_answered_so_many_questions_at_a_time",),
    ),
    Variant(
        "a-stuck-cycle-lives",
        "gandiva_slurm/controller/loop.py:Controller.has_moved",
        "return self._resting.is_set() or last != self._seen_cycle",
        "return True",
        "A gandivactld whose cycle never ends gives signs of life.",
        ("tests/unit/test_watchdog.py::test_a_controller_whose_cycle_is_stuck_is_not_well",),
    ),
    Variant(
        "life-is-said-whatever-happens",
        "gandiva_slurm/watchdog.py:feed",
        "if is_well():",
        "if is_well() or True:",
        "A daemon gives signs of life though it does nothing.",
        ("tests/unit/test_watchdog.py::test_a_daemon_says_that_it_serves_and_then_that_it_lives",),
    ),
    Variant(
        "gandivad-never-ready",
        "gandiva_slurm/node/daemon.py:Daemon._run",
        "            watchdog.feed(),\n",
        "",
        "systemd waits in vain for gandivad to serve, and starts it again for ever.",
        ("tests/node/test_capabilities.py::test_it_tells_systemd_that_it_serves_and_lives",),
    ),
)
