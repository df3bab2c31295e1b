"""crmctl: the command line of the Customer Records Service. Holds the version and imports nothing, so that `--version` stays instant."""

__version__ = "0.1.0"
