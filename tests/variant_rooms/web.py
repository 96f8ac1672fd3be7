"""Known-wrong variants. The page and the API for browsers."""

from __future__ import annotations

from tests.variant_kit import Variant

ROOM = "gandiva_slurm/cli/web"
TESTS, LIMITS = "tests/controller/test_web.py", "tests/controller/test_web_limits.py"
TOKENS = "tests/unit/test_web_token.py"

VARIANTS = (
    Variant(
        "a-header-is-enough",
        f"{ROOM}/login.py:Login.user",
        "if self.secret is not None and not _is_same(",
        "if self.secret is not None and headers.getall(SECRET_HEADER, []) and not _is_same(",
        "Who leaves the secret out is believed whatever user the header names.",
        (f"{TESTS}::test_a_forged_header_is_refused_and_asks_nothing",),
    ),
    Variant(
        "the-first-of-two-users",
        f"{ROOM}/login.py:Login.user",
        'names[0] if len(names) == 1 else ""',
        'names[0] if names else ""',
        "A browser's own header counts where the proxy adds another behind it.",
        (f"{TESTS}::test_a_forged_header_is_refused_and_asks_nothing",),
    ),
    Variant(
        "a-secret-that-all-may-read",
        f"{ROOM}/files.py:_require_private",
        "or status.st_mode & others",
        "",
        "A secret that any user can read is taken.",
        ("tests/unit/test_web_login.py::test_a_secret_that_others_may_read_or_replace_is_refused",),
    ),
    Variant(
        "a-port-without-a-secret",
        "gandiva_slurm/sections.py:WebConfig._secret_beside_a_port",
        'if self.listen and not self.listen.startswith("/") and not (self.secret_file or self.jwt_key_file):',
        "if False:",
        "At a port without a secret any user of the host is whatever user it names.",
        ("tests/unit/test_web_login.py::test_a_wrong_section_stops_it",),
    ),
    Variant(
        "one-part-for-all",
        f"{ROOM}/look.py:Look.part",
        "viewer = viewer_of(self.rules, user)",
        "viewer = next(iter(self._parts), viewer_of(self.rules, user))",
        "Each user sees what the first one who asked sees.",
        (f"{TESTS}::test_one_users_answer_is_not_anothers",),
    ),
    Variant(
        "stories-of-others",
        f"{ROOM}/api.py:Api._story",
        "for row in asker.part.rows",
        "for row in asker.look.rows",
        "The story of another's job is told though Slurm hides it.",
        (f"{TESTS}::test_what_slurm_hides_is_in_no_answer",),
    ),
    Variant(
        "windows-of-others",
        "gandiva_slurm/controller/curtained.py:used",
        "if may_see_usage(row, viewer)",
        "",
        "What others have used is told to a coordinator of another account.",
        (f"{TESTS}::test_a_coordinator_of_one_account_sees_no_other",),
    ),
    Variant(
        "each-browser-asks-gandivactld",
        f"{ROOM}/look.py:Looks.get",
        "if self._asking is None and now_s >= self._due_s:",
        "if self._asking is None:",
        "Each request takes a look of its own.",
        (f"{LIMITS}::test_two_hundred_at_once_are_one_question",),
    ),
    Variant(
        "an-old-look-while-gandivactld-is-away",
        f"{ROOM}/look.py:Looks.get",
        "if self._last is None or self._trouble or",
        "if self._last is None or",
        "While gandivactld is away its last state is given as if all were well.",
        (f"{LIMITS}::test_while_gandivactld_is_away_that_is_told_with_the_age",),
    ),
    Variant(
        "one-user-fills-the-lane",
        f"{ROOM}/lane.py:Lane._require_room",
        "if self._waiting[user] >= MOST_OF_USER:",
        "if False:",
        "One user's questions keep all others waiting.",
        (f"{LIMITS}::test_a_user_waits_for_few_questions_and_keeps_nobody_out",),
    ),
    Variant(
        "a-token-signed-in-any-way",
        f"{ROOM}/token.py:user_of",
        'algorithms=["HS256"]',
        'algorithms=["HS256", "HS384", "HS512", "none"]',
        "A token says itself how it is signed.",
        (f"{TOKENS}::test_what_is_no_token_of_slurms_is_refused",),
    ),
    Variant(
        "a-token-for-ever",
        f"{ROOM}/token.py:user_of",
        '{"require": ["exp"], "verify_aud": False}',
        '{"verify_aud": False}',
        "A token without an end is believed.",
        (f"{TOKENS}::test_what_is_no_token_of_slurms_is_refused",),
    ),
    Variant(
        "a-port-is-everybodys-proxy",
        f"{ROOM}/login.py:login_of",
        'has_proxy = secret is not None or settings.listen.startswith("/")',
        "has_proxy = True",
        "Whoever connects to a port that is for tokens names a user in a header.",
        (f"{TOKENS}::test_on_a_port_without_a_secret_tokens_alone_count",),
    ),
)
