"""Owns how sizes are written for people."""


def size_text(size: float) -> str:
    """Bytes in decimal units, as networks and disks are sold."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:.0f} B"
