"""mirror: a directory into S3 (a real SeaweedFS) with every byte hashed, beside plain copies; and into a directory.

With `--large 20` (workload mirror_large) single files of 1 and 20 GB into a directory: whether a GB costs the same."""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import seeded, stamped_file
from benchmarks.peers import SIGNED, tool
from benchmarks.rounds import (
    WORK,
    Contestant,
    Measured,
    about,
    arguments,
    chosen,
    finish,
    in_own_network,
    measure,
    run_rounds,
    tell,
)
from tests.servers import ADMIN, BUCKET, seaweed

KEYS = (("AWS_ACCESS_KEY_ID", ADMIN[0]), ("AWS_SECRET_ACCESS_KEY", ADMIN[1]), SIGNED[2])


def contestants(source: Path, endpoint: str) -> list[Contestant]:
    def place() -> str:
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:10]}"

    def ours(out: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks.ours", "mirror", str(source), place(), "--endpoint", endpoint]

    def rclone(out: Path) -> list[str]:
        remote = f":s3,provider=Other,env_auth=true,endpoint='{endpoint}':{place().removeprefix('s3://')}"
        return [tool("rclone"), "copy", "--config", "/dev/null", "--transfers", "8", str(source), remote]

    def s5cmd(out: Path) -> list[str]:
        return [tool("s5cmd"), "--endpoint-url", endpoint, "cp", f"{source}/*", f"{place()}/"]

    def aws(out: Path) -> list[str]:
        return [tool("aws"), "--endpoint-url", endpoint, "s3", "cp", "--quiet", "--recursive", str(source), place()]

    def directory(out: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks.ours", "mirror", str(source), str(out / "origin")]

    return [
        Contestant("ours", ours, verified=True, env=KEYS),
        Contestant("rclone", rclone, env=KEYS),
        Contestant("s5cmd", s5cmd, env=KEYS),
        Contestant("aws-cli", aws, env=KEYS),
        Contestant("ours (to a directory)", directory, verified=True),
    ]


def large(args: argparse.Namespace) -> None:
    sizes = (0.02, 0.05) if args.smoke else (1.0, args.large)
    results: dict[str, tuple[float, Measured]] = {}
    for number in range(1 if args.smoke else args.rounds):
        for gigabytes in sizes if number % 2 else reversed(sizes):
            source = WORK / f"large-{gigabytes:g}"
            if not source.exists():
                source.mkdir()
                stamped_file(source / "model.bin", int(gigabytes * 1e9))
            command = [sys.executable, "-m", "benchmarks.ours", "mirror", str(source)]
            contestant = Contestant("ours", lambda out, command=command: [*command, str(out / "origin")])  # type: ignore[misc]
            _, measured = results.setdefault(f"{gigabytes:g} GB", (gigabytes, Measured(verified=True)))
            measure(contestant, measured, (), lambda c, out: "", 300.0)
            shutil.rmtree(WORK / "out", ignore_errors=True)
            print(f"  {gigabytes:g} GB: {measured.failed or measured.cpu_s[-1] / gigabytes}", file=sys.stderr)
    for gigabytes in sizes:
        shutil.rmtree(WORK / f"large-{gigabytes:g}")
    rows = {name: measured.summary(size) for name, (size, measured) in results.items()}
    ours = rows.pop(f"{sizes[-1]:g} GB")
    variants = {f"ours ({name})": row for name, row in rows.items()}
    line = {
        **about("mirror_large", sizes[-1], args), "ours": ours, "variants": variants, "peers": {},
        "ratio_wall_to_best_peer": None, "ratio_cpu_to_best_peer": None,
    }  # fmt: skip
    tell({"ours": ours, **variants}, line, args)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--large", type=float, default=0.0, help="GB of one file into a directory, beside one of 1 GB")
    args = parser.parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    if args.large:
        large(args)
        return
    data = seeded(int((args.gb or (0.03 if args.smoke else 0.5)) * 1e9), files=2)
    with tempfile.TemporaryDirectory(dir=WORK) as home, seaweed(Path(home)) as service:
        everyone = chosen(contestants(data.root / "bucket", service.endpoint), args.only)
        results = run_rounds(
            everyone, rounds=1 if args.smoke else args.rounds, seed=args.seed, server_pids=(service.pid,)
        )
    ours, rclone = results["ours"].wall_s, results["rclone"].wall_s if "rclone" in results else []
    ratio = round(statistics.median(ours) / statistics.median(rclone), 3) if ours and rclone else None
    finish("mirror", results, data.total_bytes / 1e9, args, ratio_wall_to_rclone=ratio)


if __name__ == "__main__":
    main()
