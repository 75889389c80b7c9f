"""The application: configuration, relay, nodes, commands, pages."""

import sys

if " ".join(sys.argv[:2]).endswith("flwr run"):  # it looks for the app before it sends it
    from coterie.app.config import root

    root.refuse_other_code()
