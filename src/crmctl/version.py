"""The version of crmctl, apart from the package itself, which knows the Python API: whoever wants the version wants no more."""

__version__ = "0.1.0"
