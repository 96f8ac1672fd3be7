"""Python runs this at start: while the file that GANDIVA_PACE names is there, optimizer steps take longer.

`GANDIVA_PACE=FILE:SECONDS`: a script that ends within seconds lives long enough to be moved twice. What it
computes does not change. Only a Python that is the script's own, or its child, sees it.
"""

import os

_FILE, _, _SECONDS = os.environ.get("GANDIVA_PACE", "").rpartition(":")

if _FILE and os.path.exists(_FILE):
    import time

    from torch.optim.optimizer import register_optimizer_step_post_hook

    def _wait(*_):
        if os.path.exists(_FILE):
            time.sleep(float(_SECONDS))

    register_optimizer_step_post_hook(_wait)
