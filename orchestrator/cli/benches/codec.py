"""`pdd bench codec`: what each codec does to real KV."""

import importlib
from typing import Any

from rich.console import Console
from rich.table import Table

from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError
from workers.engines.models import ModelNotFound


def codec(output: FormatOption = Format.TEXT) -> None:
    """Ratio, speed on one core, and the model's answers over KV that went through each codec."""
    # By name, when it is called: torch and transformers take seconds to import.
    codec_bench = importlib.import_module("benchmarks.codec")
    try:
        result = codec_bench.run(tell=tell)
    except ModelNotFound as error:
        raise UserError(str(error)) from error
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    tokens, larger_tokens = result["piece_tokens"], result["larger_piece_tokens"]
    table = Table(title=f"pieces of {tokens} tokens; in brackets of {larger_tokens}")
    for name in ("codec", "ratio", "encode MB/s", "decode MB/s", "two threads", "KL", "top-1"):
        table.add_column(name, justify="left" if name == "codec" else "right")
    for row, larger in zip(result["codecs"], result["larger_pieces"], strict=True):
        table.add_row(
            row["codec"],
            f"{row['ratio']:.2f} ({larger['ratio']:.2f})",
            f"{row['encode_MBps']:.0f} ({larger['encode_MBps']:.0f})",
            f"{row['decode_MBps']:.0f} ({larger['decode_MBps']:.0f})",
            f"{row['two_threads_encode_MBps']:.0f}",
            f"{row['kl']:.5f}",
            f"{row['top1']:.1%}",
        )
    Console().print(table)
    print(f"memcpy {result['memcpy_MBps']:.0f} MB/s")
