"""Say what every byte on the wire of a distributed PyTorch job is for."""

__version__ = "0.1.0.dev0"
