"""`everfed export`: the trained model of a run, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everfed.cli import options as o
from everfed.cli.screen import Screen
from everfed.machine import readable
from everfed.store import export_model, open_run


@o.grouped
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .safetensors, .pt2 or .onnx file.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    plugin: o.Plugin = None,
    *,
    screen: Screen,
) -> None:
    """Write the trained model of a finished run to a file, for other programs.

    Its suffix says which kind of file: .safetensors (the weights), .pt2 (torch.export, for PyTorch without this
    package) or .onnx (needs the extra 'onnx'). The last two take batches of any size. Inputs are what the model sees:
    images as floats after scaling and cropping, not bytes; the file's metadata has their shapes and types. The file is
    read back and compared with the model on a few test samples.

    Example: everfed export everfed-out/runs/mine -o model.pt2
    """
    o.load_plugins(plugin)
    stored = open_run(run)
    path = export_model(stored, output, force=force)
    inputs = stored.environment.get("model", {}).get("inputs")
    size = path.stat().st_size
    if screen.as_json:
        screen.json({"path": str(path), "bytes": size, "rounds": stored.model_round, "inputs": inputs})
    else:
        said = f"{path} ({readable(size)}), the model after round {stored.model_round}; inputs: {inputs}"
        screen.out.print(said, soft_wrap=True)
