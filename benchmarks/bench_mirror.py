"""mirror: a directory into S3 (a real SeaweedFS) with every byte hashed, beside plain copies; and into a directory."""

from __future__ import annotations

import statistics
import sys
import tempfile
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import seeded
from benchmarks.peers import SIGNED, tool
from benchmarks.rounds import WORK, Contestant, arguments, chosen, finish, in_own_network, run_rounds
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


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    in_own_network()
    WORK.mkdir(parents=True, exist_ok=True)
    data = seeded(int((args.gb or (0.03 if args.smoke else 0.5)) * 1e9), files=2)
    with tempfile.TemporaryDirectory(dir=WORK) as home, seaweed(Path(home)) as service:
        everyone = chosen(contestants(data.root / "bucket", service.endpoint), args.only)
        results = run_rounds(everyone, rounds=1 if args.smoke else args.rounds, seed=args.seed)
    ours, rclone = results["ours"].wall_s, results["rclone"].wall_s if "rclone" in results else []
    ratio = round(statistics.median(ours) / statistics.median(rclone), 3) if ours and rclone else None
    finish("mirror", results, data.total_bytes / 1e9, args, ratio_wall_to_rclone=ratio)


if __name__ == "__main__":
    main()
