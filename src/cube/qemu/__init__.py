"""Virtual machines on this machine, run by QEMU: disk images, processes, and what a machine needs for them."""
