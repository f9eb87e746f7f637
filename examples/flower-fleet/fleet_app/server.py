"""What the server runs."""

from pathlib import Path

from everfed.flower import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
