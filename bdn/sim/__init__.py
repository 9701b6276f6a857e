"""The simulator: the core's own classes over simulated clocks, links, disks and faults. Uses ports, never adapters."""
