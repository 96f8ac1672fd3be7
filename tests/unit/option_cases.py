"""What each --gandiva option takes and what not: the plugin (C) and job_submit (Lua) must both say so."""

GOOD = [
    ("tickets", "1"), ("tickets", "100"), ("tickets", "1000"),
    ("priority", "0"), ("priority", "100"),
    ("class", "guaranteed"), ("class", "opportunistic"),
    ("vc", "team-a"), ("vc", "A.b_9"),
    ("gpu-types", "v100"), ("gpu-types", "v100,k80"),
    ("cell", "gpu"), ("cell", "switch"), ("cell", "socket"), ("cell", "node"), ("cell", "any"),
    ("elastic", "1-1"), ("elastic", "2-8"),
    ("pack", "auto"), ("pack", "never"), ("migrate", "auto"), ("migrate", "never"),
    ("hook", "auto"), ("hook", "none"),
    ("checkpoint", "auto"), ("checkpoint", "signal:USR1"), ("checkpoint", "signal:TERM@1"),
    ("checkpoint", "signal:USR2@3600"), ("checkpoint", "submitit"), ("checkpoint", "self"),
    ("checkpoint", "none"), ("checkpoint", "self:/data/run-%j/ckpt_1"),
    ("checkpoint", "signal:USR1@60:out/%j"), ("checkpoint", "self:" + "a" * 200),
]

BAD = [
    ("tickets", "0"), ("tickets", "1001"), ("tickets", "-5"), ("tickets", "+5"), ("tickets", "5x"),
    ("tickets", " 5"), ("tickets", "1e2"), ("tickets", ""), ("tickets", "99999999999999999999"),
    ("tickets", "５"),
    ("priority", "101"), ("priority", "-1"), ("priority", "high"),
    ("class", "best"), ("class", "Guaranteed"), ("class", ""),
    ("vc", "a b"), ("vc", "a/b"), ("vc", "a" * 65), ("vc", '"'), ("vc", "a;b"), ("vc", "gandiva:{"),
    ("gpu-types", ",v100"), ("gpu-types", "v100,"), ("gpu-types", "v100,,k80"), ("gpu-types", "v100 k80"),
    ("gpu-types", ",".join(["v100"] * 80)),
    ("cell", "rack"), ("cell", "Node"),
    ("elastic", "2"), ("elastic", "0-4"), ("elastic", "4-2"), ("elastic", "2-"), ("elastic", "-2"),
    ("elastic", "a-b"), ("elastic", "1-999999"), ("elastic", "1-2-3"),
    ("pack", "yes"), ("migrate", "no"), ("hook", "never"), ("pack", "auto\x1b[31m"), ("hook", "auto\n"),
    ("checkpoint", "yes"), ("checkpoint", "signal:"), ("checkpoint", "signal:KILL"),
    ("checkpoint", "signal:USR1@"), ("checkpoint", "signal:USR1@0"), ("checkpoint", "signal:USR1@3601"),
    ("checkpoint", "signal:USR1@5x"), ("checkpoint", "signal:B:USR1"), ("checkpoint", "self:"),
    ("checkpoint", "self:/a b"),
    ("checkpoint", "signal:USR1:/x"), ("checkpoint", "signal:USR1@60:"), ("checkpoint", "signal:USR1@:/x"),
    ("checkpoint", "signal:USR1@60:a b"), ("checkpoint", "signal:USR1@60:" + "a" * 201),
    ("checkpoint", "signal:USR1;x"), ("checkpoint", "self:$(reboot)"), ("checkpoint", "self:" + "a" * 201),
    ("checkpoint", 'self:"'), ("checkpoint", "self:a\nb"),
]

#: What our sentence says an option takes.
TAKES = {
    "tickets": "a whole number from 1 to 1000",
    "priority": "a whole number from 0 to 100",
    "class": "guaranteed or opportunistic",
    "vc": "a name of letters, digits, '_', '.' and '-'",
    "gpu-types": "GPU types separated by commas, as in v100,p100",
    "cell": "gpu, switch, socket, node or any",
    "elastic": "MIN-MAX, whole numbers with 1 <= MIN <= MAX, as in 2-8",
    "pack": "auto or never",
    "migrate": "auto or never",
    "hook": "auto or none",
    "checkpoint": "auto, signal[:NAME[@SECONDS[:DIR]]], submitit, self[:DIR] or none",
}
