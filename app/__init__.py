"""The application: configuration, relay, nodes, commands, pages."""

import sys
from pathlib import Path

if [Path(word).stem for word in sys.argv[:2]] == ["flwr", "run"]:
    from coterie.app.config import root

    root.refuse_other_clone()
