"""The documents on the wire and in files, as types."""

import os

# Read when the first model is built: crmctl has no plug-ins for pydantic, and looking for some in every installed package takes 10 ms.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
