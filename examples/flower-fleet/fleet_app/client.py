"""What every node runs."""

from pathlib import Path

from everfed.flower import client_app

app = client_app(Path(__file__).with_name("experiment.toml"))
