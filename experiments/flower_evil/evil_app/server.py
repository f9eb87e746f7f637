"""The server knows nothing of lies."""

from pathlib import Path

from everfed.flower import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
