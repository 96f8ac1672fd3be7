"""Known-wrong variants. Wire and configuration."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "signature-not-checked",
        "gandiva_slurm/wire/auth.py:MungeSigner.verify",
        "if digest != hashlib.sha256(payload).digest():",
        "if False:",
        "A message that was altered on its way is believed.",
        ("tests/unit/test_auth.py::test_altered_message_is_refused",),
    ),
    Variant(
        "replay-accepted",
        "gandiva_slurm/wire/auth.py:MungeSigner._check",
        "        if not code:\n",
        "        if not code or code == _REPLAYED:\n",
        "A message that was recorded and sent again is believed.",
        ("tests/unit/test_auth.py::test_replayed_message_is_refused",),
    ),
    Variant(
        "unsigned-accepted",
        "gandiva_slurm/wire/auth.py:MungeSigner.verify",
        'if not newline or len(line) > MAX_CREDENTIAL_BYTES or not line.startswith(b"MUNGE:"):',
        "if not line.startswith(b\"MUNGE:\"):\n            return payload, 0\n        if False:",
        "A message without a signature counts as root's.",
        ("tests/unit/test_auth.py::test_unsigned_message_is_refused",),
    ),
    Variant(
        "any-uid-may-call",
        "gandiva_slurm/wire/http.py:signed_route",
        "if not allow(uid):",
        "if False:",
        "Any user may give a daemon orders.",
        ("tests/controller/test_wire_http.py::test_uid_that_may_not_call_is_refused",),
    ),
    Variant(
        "answered-by-anybody",
        "gandiva_slurm/wire/http.py:post",
        "if uid not in want_uids:",
        "if False:",
        "An answer is believed, whatever user signed it.",
        ("tests/controller/test_wire_http.py::test_answer_of_a_stranger_is_refused",),
    ),
    Variant(
        "signed-for-another-use",
        "gandiva_slurm/wire/http.py:_unbind",
        "if head != context.encode():",
        "if False:",
        "A message signed for one path is taken at another.",
        ("tests/controller/test_wire_http.py::test_message_signed_for_another_path_is_refused",),
    ),
    Variant(
        "request-of-any-size",
        "gandiva_slurm/wire/http.py:_read",
        "if size > limit:",
        "if False:",
        "A peer may fill a daemon's memory.",
        ("tests/controller/test_wire_http.py::test_a_route_may_take_less_than_others",),
    ),
    Variant(
        "address-of-any-port",
        "gandiva_slurm/sections.py:is_address",
        'match is not None and 1 <= int(match["port"]) <= 65535',
        "match is not None",
        "An address with an impossible port is taken.",
        ("tests/unit/test_config.py::test_mistake_is_named_with_line_and_what_is_allowed",),
    ),
)
